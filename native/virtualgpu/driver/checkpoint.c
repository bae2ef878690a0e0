/* Checkpoint and restore of another process: what is asked of the driver's thread there (driver_thread.c).
 *
 * That thread carries out all of it, so nothing comes back while it is stopped, and what was begun is finished
 * though the process that asked has died: measured, driver 580.159. Only the wait for the calls that a lock finds inside
 * is in the process that asked, so that others get an answer meanwhile.
 */
#define _GNU_SOURCE
#include "driver.h"

#include <errno.h>
#include <linux/futex.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#ifndef SYS_pidfd_open
#define SYS_pidfd_open 434
#endif

/* All client files of the process, one for each GPU it uses; orders go into the first that it made. */
struct target {
    struct order_target orders;
    struct store_client *clients[STORE_MAX_GPUS];
    int count;
};

static void target_release(struct target *target) {
    for (int i = 0; i < target->count; i++) store_client_unmap(target->clients[i]);
    if (target->orders.pidfd >= 0) close(target->orders.pidfd);
}

static bool is_alive(int pid) {
    return pid > 0 && (syscall(SYS_kill, pid, 0) == 0 || errno == EPERM);
}

/* A process that never used CUDA and one that does not exist give different codes: measured, driver 580.159. */
static result target_admit(int pid, const struct target *target) {
    if (target->count == 0) return is_alive(pid) ? NOT_INITIALIZED : OPERATING_SYSTEM;
    for (int i = 0; i < target->count; i++)
        if (geteuid() != 0 && target->clients[i]->uid != geteuid()) return OPERATING_SYSTEM;
    /* A forked child keeps the files of a dead process, but not its threads. */
    return is_alive(pid) ? OK : OPERATING_SYSTEM;
}

static void target_add(struct target *target, struct store_client *client) {
    struct order_target *orders = &target->orders;
    if (!client) return;
    if (!orders->slot || client->serial < orders->slot->serial) orders->slot = client;
    target->clients[target->count++] = client;
}

/* Checkpointing is the Linux kernel driver's; in WSL2 the kernel driver is Windows'. */
static result target_find(int pid, struct target *target) {
    struct store_found found[STORE_MAX_GPUS];
    *target = (struct target){.orders = {.pid = pid, .pidfd = -1}};
    if (store_config()->wddm) return NOT_SUPPORTED;
    target->orders.pidfd = pid > 0 ? (int)syscall(SYS_pidfd_open, pid, 0) : -1;
    int count = store_clients_of((uint32_t)pid, found, STORE_MAX_GPUS);
    if (count < 0) return OPERATING_SYSTEM; /* another user may not even read the folder */
    for (int i = 0; i < count; i++) target_add(target, store_client_map(found[i].gpu, found[i].serial));
    return target_admit(pid, target);
}

#define TARGET(pid) \
    struct target target __attribute__((cleanup(target_release))); \
    result failed = target_find(pid, &target); \
    if (failed) return failed

static struct answer ask(const struct target *target, enum store_verb verb) {
    return order_give(&target->orders, (struct order){.verb = verb});
}

/* ---- lock ---- */

static int64_t now_ms(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000ll + now.tv_nsec / 1000000;
}

/* Waits until no call runs inside; at most *patience_ms* at a time, since the target may die. */
static void wait_for_calls(struct store_client *client, int64_t patience_ms) {
    uint32_t inside = client->calls_inside;
    struct timespec patience = {patience_ms / 1000, patience_ms % 1000 * 1000000};
    if (inside) syscall(SYS_futex, &client->calls_inside, FUTEX_WAIT, inside, &patience, NULL, 0);
}

static struct store_client *still_busy(struct target *target) {
    for (int i = 0; i < target->count; i++)
        if (target->clients[i]->calls_inside) return target->clients[i];
    return NULL;
}

static result wait_until_quiet(struct target *target, unsigned timeout_ms) {
    int64_t deadline = now_ms() + timeout_ms;
    for (struct store_client *busy; (busy = still_busy(target));) {
        int64_t left = timeout_ms ? deadline - now_ms() : 100;
        if (left <= 0) return NOT_READY;
        if (order_target_ended(&target->orders)) return INVALID_VALUE;
        wait_for_calls(busy, left < 100 ? left : 100);
    }
    return OK;
}

result cuCheckpointProcessLock(int pid, const struct lock_args *args) {
    GATE_AS(-1, GATE_FREE);
    TARGET(pid);
    failed = ask(&target, STORE_LOCK).code;
    if (failed) return failed;
    failed = wait_until_quiet(&target, args ? args->timeout_ms : 0);
    if (failed) ask(&target, STORE_UNLOCK);
    return failed;
}

result cuCheckpointProcessUnlock(int pid, const void *args) {
    GATE_AS(-1, GATE_FREE);
    (void)args;
    TARGET(pid);
    return ask(&target, STORE_UNLOCK).code;
}

/* ---- checkpoint and restore ---- */

static result ask_to_change(const struct target *target, enum store_verb verb, struct store_fault fault) {
    const char *step = verb == STORE_CHECKPOINT ? "step.checkpoint" : "step.restore";
    struct order order = {
        .verb = verb,
        .breaks = fault.kind == FAULT_HALFWAY,
        .delay_s = store_step_delay_s(step),
    };
    result failed = order_give(&target->orders, order).code;
    return failed || !order.breaks ? failed : (result)fault.code;
}

result cuCheckpointProcessCheckpoint(int pid, const void *args) {
    GATE_AS(-1, GATE_FREE);
    (void)args;
    TARGET(pid);
    return ask_to_change(&target, STORE_CHECKPOINT, gate.fault);
}

/* ---- restored onto another GPU: not measured; as the driver's manual and cuda-checkpoint's README have it ---- */

enum { REMAPS_SINCE = 580 };

static int gpu_with(const struct uuid *wanted) {
    struct uuid uuid;
    for (int gpu = 0; gpu < store_config()->gpus; gpu++) {
        device_parse_uuid(store_config()->gpu[gpu].uuid, &uuid);
        if (memcmp(&uuid, wanted, sizeof uuid) == 0) return gpu;
    }
    return -1;
}

static bool is_same_chip(int gpu, int other) {
    const struct store_gpu *config = store_config()->gpu;
    return strcmp(config[gpu].name, config[other].name) == 0 && !config[gpu].mig_enabled && !config[other].mig_enabled;
}

/* Every GPU that was checkpointed must be named, and none be given to two. */
static result read_pairs(const struct target *target, const struct restore_args *args, uint8_t to[STORE_MAX_GPUS]) {
    uint8_t taken[STORE_MAX_GPUS] = {0};
    if (atoi(store_config()->driver_version) < REMAPS_SINCE) return NOT_SUPPORTED;
    for (unsigned i = 0; i < args->pair_count; i++) {
        int from = gpu_with(&args->pairs[i].old_uuid), wanted = gpu_with(&args->pairs[i].new_uuid);
        if (from < 0 || wanted < 0 || to[from] || taken[wanted]) return INVALID_VALUE;
        if (!is_same_chip(from, wanted)) return NOT_SUPPORTED;
        to[from] = (uint8_t)(wanted + 1);
        taken[wanted] = 1;
    }
    for (int i = 0; i < target->count; i++)
        if (!to[target->clients[i]->gpu]) return INVALID_VALUE;
    return OK;
}

result cuCheckpointProcessRestore(int pid, const struct restore_args *args) {
    GATE_AS(-1, GATE_FREE);
    TARGET(pid);
    uint8_t to[STORE_MAX_GPUS] = {0};
    if (args && args->pairs && args->pair_count) {
        failed = read_pairs(&target, args, to);
        if (failed) return failed;
        struct answer answer = ask(&target, STORE_GET_STATE);
        if (answer.code) return answer.code;
        if (answer.state != STORE_CHECKPOINTED) return ILLEGAL_STATE;
    }
    for (int gpu = 0; gpu < STORE_MAX_GPUS; gpu++) target.orders.slot->restore_to[gpu] = to[gpu];
    return ask_to_change(&target, STORE_RESTORE, gate.fault);
}

/* ---- questions ---- */

result cuCheckpointProcessGetState(int pid, int *state) {
    GATE_AS(-1, GATE_FREE);
    TARGET(pid);
    struct answer answer = ask(&target, STORE_GET_STATE);
    if (answer.code) return answer.code;
    if (!state) return INVALID_VALUE;
    *state = gate.fault.kind == FAULT_VALUE ? gate.fault.code : (int)answer.state;
    return OK;
}

/* Not measured: that thread carries a restore out here. A number of another namespace would name somebody else there. */
result cuCheckpointProcessGetRestoreThreadId(int pid, int *thread) {
    GATE_AS(-1, GATE_FREE);
    TARGET(pid);
    struct answer answer = ask(&target, STORE_GET_STATE); /* once it answers, its number is known */
    if (answer.code) return answer.code;
    if (!thread) return INVALID_VALUE;
    bool same_namespace = target.orders.slot->pid == (uint32_t)pid;
    *thread = same_namespace ? (int)target.orders.slot->driver_thread : pid;
    return OK;
}
