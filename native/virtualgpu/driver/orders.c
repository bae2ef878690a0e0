/* Orders: how one process asks the driver's thread of another one for something, through its client file.
 *
 * One caller at a time: it has a lock on the client's data file, which the kernel takes back when it dies. It writes the
 * next number and what to do into the word `order`, in one step, and waits until `answered` is that number. The thread
 * carries the order out whoever still waits for it. After a caller that has died, the next one waits for that answer
 * first.
 */
#define _GNU_SOURCE
#include "driver.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "a futex has 32 bits: the low half of an order comes first");

enum { STEP_MS = 100, TURN_STEP_MS = 5 }; /* so soon a caller sees that the target has died */
enum { VERB_SHIFT = 32, BREAKS_SHIFT = 36, DELAY_SHIFT = 40, STATE_SHIFT = 16 };
#define MAX_DELAY_MS ((1u << 24) - 1)

/* ---- in the process that asks ---- */

bool order_target_ended(const struct order_target *target) {
    struct pollfd process = {.fd = target->pidfd, .events = POLLIN};
    /* Linux before 5.3 has no pidfds. There, a process that nobody has waited for looks alive. */
    if (target->pidfd < 0) return kill(target->pid, 0) != 0 && errno == ESRCH;
    return poll(&process, 1, 0) == 1;
}

/* The thread waits in poll, as on an H200, for a pipe of its process. A program that closes files it did not open may
 * have something else under that number by now. */
static void wake_driver_thread(const struct order_target *target) {
    char path[64];
    struct stat about;
    snprintf(path, sizeof path, "/proc/%d/fd/%d", target->pid, target->slot->doorbell);
    int pipe_end = open(path, O_WRONLY | O_NONBLOCK | O_CLOEXEC);
    if (pipe_end >= 0) {
        if (fstat(pipe_end, &about) == 0 && S_ISFIFO(about.st_mode) &&
            (uint32_t)about.st_ino == target->slot->doorbell_inode)
            (void)!write(pipe_end, "", 1); /* full has woken it already */
        close(pipe_end);
    }
    syscall(SYS_futex, &target->slot->order, FUTEX_WAKE, INT32_MAX, NULL, NULL, 0);
}

static bool wait_for_answer(const struct order_target *target, uint32_t number) {
    struct timespec step = {.tv_nsec = STEP_MS * 1000000};
    for (uint32_t seen; (int32_t)((seen = target->slot->answered) - number) < 0;) {
        if (order_target_ended(target)) return false;
        /* Also for an order of somebody else, who may have died between giving it and waking the thread. */
        wake_driver_thread(target);
        syscall(SYS_futex, &target->slot->answered, FUTEX_WAIT, seen, &step, NULL, 0);
    }
    return true;
}

static uint64_t packed_delay(double delay_s) {
    if (delay_s <= 0) return 0;
    return delay_s < MAX_DELAY_MS / 1e3 ? (uint64_t)(delay_s * 1e3) : MAX_DELAY_MS;
}

static uint64_t packed(struct order order, uint32_t number) {
    return number | (uint64_t)order.verb << VERB_SHIFT | (uint64_t)order.breaks << BREAKS_SHIFT |
           packed_delay(order.delay_s) << DELAY_SHIFT;
}

/* Not F_OFD_SETLKW: a caller that is stopped keeps the lock, and the target may die meanwhile. */
static bool wait_for_turn(const struct order_target *target, int fd) {
    struct flock whole = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
    struct timespec step = {.tv_nsec = TURN_STEP_MS * 1000000};
    while (fcntl(fd, F_OFD_SETLK, &whole) != 0) {
        if ((errno != EAGAIN && errno != EACCES) || order_target_ended(target)) return false;
        nanosleep(&step, NULL);
    }
    return true;
}

static struct answer give(const struct order_target *target, struct order order) {
    struct store_client *slot = target->slot;
    struct answer ended = {.code = OPERATING_SYSTEM};
    uint32_t latest = (uint32_t)slot->order;
    if (!wait_for_answer(target, latest)) return ended;
    slot->order = packed(order, latest + 1);
    if (!wait_for_answer(target, latest + 1)) return ended;
    uint32_t answer = slot->answer;
    return (struct answer){(result)(answer & 0xffff), answer >> STATE_SHIFT};
}

static void release_turn(int fd) {
    struct flock whole = {.l_type = F_UNLCK, .l_whence = SEEK_SET};
    fcntl(fd, F_OFD_SETLK, &whole); /* a forked child may have a copy, so closing is not enough */
    close(fd);
}

struct answer order_give(const struct order_target *target, struct order order) {
    char data_file[32];
    struct answer answer = {.code = OPERATING_SYSTEM};
    snprintf(data_file, sizeof data_file, "nvidia%u.%u", target->slot->gpu, target->slot->serial);
    int fd = store_data_open(data_file);
    if (fd < 0) return answer;
    if (wait_for_turn(target, fd)) answer = give(target, order);
    release_turn(fd);
    return answer;
}

/* ---- in the driver's thread ---- */

static int doorbell = -1; /* the end of the pipe that is read */

bool order_prepare(struct store_client *slot) {
    int ends[2];
    struct stat about;
    if (pipe2(ends, O_CLOEXEC | O_NONBLOCK) != 0) return false;
    if (fstat(ends[1], &about) != 0) {
        close(ends[0]);
        close(ends[1]);
        return false;
    }
    doorbell = ends[0];
    slot->doorbell_inode = (uint32_t)about.st_ino;
    slot->doorbell = ends[1];
    return true;
}

void order_forget(struct store_client *slot) {
    close(doorbell);
    close(slot->doorbell);
}

static void wait_for_order(struct store_client *slot, uint32_t latest) {
    char bytes[64];
    struct pollfd bell = {.fd = doorbell, .events = POLLIN};
    if (poll(&bell, 1, -1) < 0) return; /* a signal, or the kernel is short of memory */
    if (bell.revents & POLLIN)
        while (read(doorbell, bytes, sizeof bytes) > 0) {
        }
    else /* the program has closed it */
        syscall(SYS_futex, &slot->order, FUTEX_WAIT, latest, NULL, NULL, 0);
}

struct order order_wait(struct store_client *slot) {
    uint64_t latest;
    while ((uint32_t)(latest = slot->order) == slot->answered) wait_for_order(slot, (uint32_t)latest);
    return (struct order){
        .verb = (enum store_verb)(latest >> VERB_SHIFT & 0xf),
        .breaks = latest >> BREAKS_SHIFT & 1,
        .delay_s = (double)(latest >> DELAY_SHIFT) / 1e3,
    };
}

void order_answer(struct store_client *slot, struct answer answer) {
    slot->answer = (uint32_t)answer.code | answer.state << STATE_SHIFT;
    slot->answered++;
    syscall(SYS_futex, &slot->answered, FUTEX_WAKE, INT32_MAX, NULL, NULL, 0);
}
