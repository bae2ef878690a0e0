/* A library that vram loads into a running program for one visit. It works in a thread of its own, answers on
 * vram's socket, and unloads itself.
 *
 * Runs inside other people's programs: nothing is printed, no signal is handled, no context is made, and no CUDA
 * library is loaded that is not there already.
 */
#ifndef VRAM_VISITOR_H
#define VRAM_VISITOR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* ---- the request: reach/visitor_library.py writes it into a copy of this file ---- */

enum { MARK_NBYTES = 32, SECRET_NBYTES = 32, ADDRESS_NBYTES = 4056, VALUE_NBYTES = 4096, REQUEST_NBYTES = 28608 };

struct visit {
    char mark[MARK_NBYTES];
    uint64_t until_ns; /* of CLOCK_MONOTONIC: later than that nothing is begun */
    int32_t pid;       /* the process that was meant, as it knows itself */
    uint32_t carried;  /* so many bytes of the recorder's library come through the socket, after the secret */
    char secret[SECRET_NBYTES + 8]; /* only vram and this program know it; empty with a folder */
    char address[ADDRESS_NBYTES];   /* a folder with the socket "answers", or after "@" an abstract name */
    char request[REQUEST_NBYTES];   /* lines of key=value; after "settings:" the rest is for the recorder */
};

extern const volatile struct visit visit;

/* The value of *key*, or NULL: a copy that is valid until the next call for the same key. */
const char *request_value(const char *key);
/* The n-th value of *key*, from 0. */
const char *request_nth(const char *key, int number);
/* Where the recorder's library is, as a path: a file of vram's, or one in memory with what came. */
const char *recorder_library(void);
/* Everything after the line "settings:". */
const char *request_settings(void);

/* ---- answer.c: one JSON object, built in a buffer ---- */

void answer_begin(void);
/* Text as it is. */
void answer_raw(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* A JSON string; bytes that are no UTF-8 are spelled out as \xNN. */
void answer_text(const char *text);
void answer_note(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* The object, ended by a newline; NULL where it did not fit. */
const char *answer_end(size_t *nbytes);

/* ---- the verbs ---- */

void trim_pools(bool releases); /* pools.c: "trim" and "measure" */
/* The ordinal of the device with that UUID, -1 where there is none; whether the program has started CUDA. */
int device_ordinal(const char *uuid);
bool uses_cuda(void);

void recorder_start(void); /* recorder.c */
void recorder_stop(void);
void recorder_status(void);

#endif
