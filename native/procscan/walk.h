/* Declarations for the files of this folder only: a walk over /proc, and its worker threads. */
#ifndef VRAM_PROCSCAN_WALK_H
#define VRAM_PROCSCAN_WALK_H

#include "scan.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>

#define MAX_THREADS 8
#define MAX_USERS 1024 /* who are told apart */

struct buffer {
    uint8_t *bytes;
    size_t used, room;
};

struct worker {
    struct walk *walk;
    struct buffer files, denied; /* changed under the walk's lock */
    bool exhausted;              /* of memory */
};

/* How many descriptors of one user were recorded. */
struct share {
    uint32_t uid, files;
};

/* Freed by the last thread that leaves it: a thread that hangs in a driver may outlive the call. */
struct walk {
    int proc;
    bool counted; /* the kernel reports how many descriptors a process has */
    char *prefixes, *info_prefixes;
    int32_t *pids;
    size_t count;
    uint64_t deadline_ns;
    struct vramscan_limits limits;
    atomic_size_t next, found;
    struct share shares[MAX_USERS]; /* changed under the lock, as are those below */
    unsigned users_seen;
    uint32_t files_of_users; /* of all but root */
    atomic_bool late, full;
    pthread_mutex_t lock;
    pthread_cond_t left; /* a worker has left */
    unsigned busy, users;
    unsigned threads;
    struct worker workers[MAX_THREADS];
};

/* Room for *nbytes* more at the end of *buffer*; NULL where there is no memory. */
void *grow(struct buffer *buffer, size_t nbytes);
int append(struct buffer *to, const struct buffer *from);

/* Looks at every descriptor of one process; those that match go into *worker*. */
void scan_process(struct worker *worker, int32_t pid);

#endif
