/* What the programs that are visited share: work that checks itself, and waits that count their wake-ups. */
#ifndef VISITED_PROGRAM_H
#define VISITED_PROGRAM_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Whatever must not happen: a wrong sum, an EINTR, a failed call. */
void went_wrong(const char *what);
/* A round of work was right. */
void count_round(void);
/* A loop for a thread: sums over vector registers and memory from malloc, checked. */
void *work(void *unused);
/* Threads that rest in each kind of wait, and one that wakes all of them in turns. */
void start_resting(void);
/* Starts CUDA, if *nbytes*, and leaves so many bytes unused in the default pool. */
void start_cuda(uint64_t nbytes);
/* Answers each line on standard input by one line of JSON, until there is none, or one that begins with q. */
int answer_lines(void);

#ifdef __cplusplus
}
#endif

#endif
