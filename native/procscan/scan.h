/* Who has device files open: a walk over /proc, made for ten thousand processes.
 *
 * vramscan_scan lists the descriptors; vramscan_describe finds those that are one and the same open file.
 * Both only read. Python calls them through ctypes with these layouts (src/vram/host/local); where the
 * library is missing it does the same in Python, slower.
 */
#ifndef VRAM_PROCSCAN_SCAN_H
#define VRAM_PROCSCAN_SCAN_H

#include <stddef.h>
#include <stdint.h>

#define VRAMSCAN_API __attribute__((visibility("default")))

#define VRAMSCAN_NO_INFO UINT32_MAX

/* One matching descriptor; `length` bytes of link text follow, then zeros up to a multiple
 * of eight. `mode` is 0 where the file behind the descriptor could not be read. Unless `info_length`
 * is VRAMSCAN_NO_INFO, so many bytes of fdinfo follow the link, then zeros likewise; where
 * they were wanted and could not be read, `error` says why. */
struct vramscan_file {
    int32_t pid, fd;
    int32_t thread;      /* whose folder it was read from: the first thread's, unless that has ended */
    uint32_t cut;        /* 1 in the last one of a process that has more, which are left out */
    uint64_t started_at; /* field 22 of stat; UINT64_MAX where it could not be read */
    uint64_t device, inode;
    int64_t size;
    uint32_t mode, length;
    uint32_t info_length, error;
};

struct vramscan_result {
    uint8_t *files;
    uint64_t files_nbytes;
    uint32_t *denied_uids; /* owner of each process whose descriptors may not be read */
    uint64_t denied;
    uint64_t processes; /* how many were scanned */
    uint32_t late;      /* 1: the deadline came first, and the answer is incomplete */
    uint32_t full;      /* 1: there are more than were wanted, and the answer is incomplete */
};

/* How many descriptors may match: of one process, in all, of one user, and of all users but root together.
 * Anybody can open thousands of files whose links match, and the scan must not run out of memory or time for
 * it. Of a user who has more, only the first of each further process is reported. */
struct vramscan_limits {
    uint32_t of_process, in_all, of_user, of_users;
};

/* Scans *pids*, or every process under *proc* where count is 0. A link matches when
 * it begins with one of *prefixes*, each ended by NUL, the list by an empty one; one that
 * begins with one of *info_prefixes* comes with its fdinfo (NULL: none does). The deadline is
 * CLOCK_MONOTONIC in nanoseconds. Returns 0 or -errno; a process that ends meanwhile is
 * left out.
 *
 * A driver in trouble may never finish a read of fdinfo. Where any is wanted, threads do the
 * reading; one that hangs is abandoned at the deadline, and what it has found until then is reported. */
VRAMSCAN_API int vramscan_scan(const char *proc, const char *prefixes, const char *info_prefixes, const int32_t *pids,
                               uint64_t count, uint64_t deadline_ns, const struct vramscan_limits *limits,
                               struct vramscan_result *result);
VRAMSCAN_API void vramscan_release(struct vramscan_result *result);

struct vramscan_descriptor {
    int32_t pid, fd;
    uint32_t group;       /* only descriptors of one group are compared */
    uint32_t description; /* out: the same number for the same open file; 0: not known */
};

/* Numbers open file descriptions from 1 on. Returns how many there are, or -errno where
 * the kernel compares none at all, or not in time: then none has a number. */
VRAMSCAN_API int vramscan_describe(struct vramscan_descriptor *all, uint64_t count, uint64_t deadline_ns);

#endif
