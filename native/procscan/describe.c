/* Which descriptors are one and the same open file: the kernel's kcmp, sorted by. */
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

static bool in_time(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec < deadline;
}

static long compare(const struct vramscan_descriptor *one, const struct vramscan_descriptor *other)
{
    return syscall(SYS_kcmp, one->pid, other->pid, KCMP_KIND_FILE, one->fd, other->fd);
}

/* The kernel orders open files in a way that leaks no address, and so can be sorted by:
 * n log n calls for n descriptors. What vanished meanwhile sorts anywhere; number() below
 * joins only what the kernel calls the same. */
static int order(const void *left, const void *right)
{
    const struct vramscan_descriptor *one = left, *other = right;
    if (one->group != other->group)
        return one->group < other->group ? -1 : 1;
    if (one->description != other->description) /* 0: not comparable */
        return one->description < other->description ? -1 : 1;
    if (one->description == 0)
        return 0;
    long answer = compare(one, other);
    return answer == LESS ? -1 : answer == GREATER ? 1 : 0;
}

static int number(struct vramscan_descriptor *all, uint64_t count)
{
    uint32_t descriptions = 0;
    for (uint64_t at = 0; at < count; at++) {
        struct vramscan_descriptor *before = at ? &all[at - 1] : NULL;
        if (all[at].description == 0)
            continue;
        bool same = before && before->description && before->group == all[at].group &&
                    compare(before, &all[at]) == SAME;
        all[at].description = same ? before->description : ++descriptions;
    }
    return (int)descriptions;
}

int vramscan_describe(struct vramscan_descriptor *all, uint64_t count, uint64_t deadline_ns)
{
    bool any = false;
    int error = EPERM;
    deadline = deadline_ns;
    for (uint64_t at = 0; at < count; at++) {
        /* Asking about itself tells whether we may ask at all. */
        bool comparable = in_time() && compare(&all[at], &all[at]) == SAME;
        if (!comparable)
            error = errno;
        all[at].description = comparable;
        any |= comparable;
    }
    if (count && !any)
        return -error;
    qsort(all, count, sizeof *all, order);
    return number(all, count);
}
