/* Which descriptors are one and the same open file: the kernel's kcmp, sorted by.
 *
 * A fork has its parent's files under the same numbers: one call shows that, and only what is left is
 * sorted. So ten thousand forks cost a call for each descriptor, and no more. */
#include "scan.h"

#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum { KCMP_KIND_FILE = 0 };
enum { SAME = 0, LESS = 1, GREATER = 2 };

static _Thread_local uint64_t deadline;

static bool in_time(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec < deadline;
}

static long compare(const struct vramscan_descriptor *one, const struct vramscan_descriptor *other) {
    return syscall(SYS_kcmp, one->pid, other->pid, KCMP_KIND_FILE, one->fd, other->fd);
}

/* By group and number, so that what a fork inherited lies beside what it was inherited from. */
static int order_by_number(const void *left, const void *right) {
    const struct vramscan_descriptor *one = left, *other = right;
    if (one->group != other->group) return one->group < other->group ? -1 : 1;
    if (one->fd != other->fd) return one->fd < other->fd ? -1 : 1;
    return one->pid < other->pid ? -1 : one->pid > other->pid;
}

/* The kernel orders open files in a way that leaks no address, and so can be sorted by:
 * n log n calls for n descriptors. What vanished meanwhile sorts anywhere; number() below
 * joins only what the kernel calls the same. */
static int order(const void *left, const void *right) {
    const struct vramscan_descriptor *one = left, *other = right;
    if (one->group != other->group) return one->group < other->group ? -1 : 1;
    if (!in_time()) return 0; /* whatever comes of it is not used */
    long answer = compare(one, other);
    return answer == LESS ? -1 : answer == GREATER ? 1 : 0;
}

/* Finds the descriptors to sort: of those that a fork shares with the one before it in *all*, the first.
 * Each of *all* is told its place in *firsts*, from 1 on, or 0 where the kernel does not compare it. */
static uint64_t find_firsts(struct vramscan_descriptor *all, uint64_t count, struct vramscan_descriptor *firsts,
                            int *error) {
    uint64_t found = 0;
    for (uint64_t at = 0; at < count; at++) {
        struct vramscan_descriptor *last = found ? &firsts[found - 1] : NULL;
        bool in_line = last && last->group == all[at].group && last->fd == all[at].fd;
        all[at].description = 0;
        if (!in_time()) continue;
        if (!in_line || compare(last, &all[at]) != SAME) {
            /* Comparing it with itself shows whether the kernel lets us compare. */
            if (compare(&all[at], &all[at]) != SAME) {
                *error = errno;
                continue;
            }
            firsts[found] = all[at];
            firsts[found].description = (uint32_t)found;
            found++;
        }
        all[at].description = (uint32_t)found;
    }
    return found;
}

/* Sorts *firsts*, and numbers the open files behind them by the places that they had; 0 where there was no
 * time for all of them: a number that is missing would look like an open file of its own. */
static uint32_t number(struct vramscan_descriptor *firsts, uint64_t count, uint32_t *numbers) {
    uint32_t descriptions = 0;
    qsort(firsts, count, sizeof *firsts, order);
    for (uint64_t at = 0; at < count; at++) {
        bool same = at && firsts[at - 1].group == firsts[at].group && compare(&firsts[at - 1], &firsts[at]) == SAME;
        numbers[firsts[at].description] = same ? descriptions : ++descriptions;
    }
    return in_time() ? descriptions : 0;
}

int vramscan_describe(struct vramscan_descriptor *all, uint64_t count, uint64_t deadline_ns) {
    int result, error = EPERM;
    deadline = deadline_ns;
    if (count == 0) return 0;
    if (count > INT32_MAX) return -EINVAL; /* descriptions are numbered by 32 bits */
    struct vramscan_descriptor *firsts = calloc(count, sizeof *firsts);
    uint32_t *numbers = calloc(count, sizeof *numbers);
    qsort(all, count, sizeof *all, order_by_number);
    uint64_t found = firsts && numbers ? find_firsts(all, count, firsts, &error) : 0;
    if (found) {
        uint32_t descriptions = number(firsts, found, numbers);
        result = descriptions ? (int)descriptions : -ETIMEDOUT;
        for (uint64_t at = 0; at < count; at++)
            if (all[at].description) all[at].description = descriptions ? numbers[all[at].description - 1] : 0;
    } else {
        result = firsts && numbers ? -error : -ENOMEM;
    }
    free(firsts);
    free(numbers);
    return result;
}
