/* Checkpoint and restore of another process, by writing the state into its client files.
 *
 * RUNNING -lock-> LOCKED -checkpoint-> CHECKPOINTED -restore-> LOCKED -unlock-> RUNNING.
 * A checkpointed client holds nothing on the GPU; its bytes stay in its file, which is host
 * memory, as the real driver moves them into the target's own.
 */
#define _GNU_SOURCE
#include "driver.h"

#include <errno.h>
#include <linux/futex.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

/* All client files of the process, one for each GPU it uses. */
struct target {
    struct store_client *clients[STORE_MAX_GPUS];
    int count;
};

static void target_release(struct target *target) {
    for (int i = 0; i < target->count; i++) store_client_unmap(target->clients[i]);
}

static bool is_alive(int pid) {
    return pid > 0 && (syscall(SYS_kill, pid, 0) == 0 || errno == EPERM);
}

/* A process that never used CUDA and one that does not exist give different codes: measured, driver 580.159. */
static result target_admit(int pid, const struct target *target) {
    if (target->count == 0) return is_alive(pid) ? NOT_INITIALIZED : OPERATING_SYSTEM;
    for (int i = 0; i < target->count; i++)
        if (geteuid() != 0 && target->clients[i]->uid != geteuid()) return OPERATING_SYSTEM;
    return OK;
}

static result target_find(int pid, struct target *target) {
    struct store_found found[STORE_MAX_GPUS];
    int count = store_clients_of((uint32_t)pid, found, STORE_MAX_GPUS);
    if (count < 0) return OPERATING_SYSTEM; /* another user may not even read the folder */
    target->count = 0;
    for (int i = 0; i < count; i++) {
        struct store_client *client = store_client_map(found[i].gpu, found[i].serial);
        if (client) target->clients[target->count++] = client;
    }
    return target_admit(pid, target);
}

static bool is_stopped(int pid) {
    char path[32], line[512] = "";
    snprintf(path, sizeof path, "/proc/%d/stat", pid);
    FILE *file = fopen(path, "re");
    if (!file) return false;
    size_t length = fread(line, 1, sizeof line - 1, file);
    fclose(file);
    const char *name_end = length ? strrchr(line, ')') : NULL;
    return name_end && (name_end[2] == 'T' || name_end[2] == 't');
}

/* Checkpointing is the Linux kernel driver's; in WSL2 the kernel driver is Windows'. A thread of the
 * target answers, so nothing comes back while the target is stopped: measured, driver 580.159. */
static result target_reach(int pid, struct target *target) {
    if (store_config()->wddm) return NOT_SUPPORTED;
    result failed = target_find(pid, target);
    while (!failed && is_stopped(pid)) nanosleep(&(struct timespec){.tv_nsec = 10 * 1000 * 1000}, NULL);
    return failed;
}

#define TARGET(pid) \
    struct target target __attribute__((cleanup(target_release))) = {0}; \
    result failed = target_reach(pid, &target); \
    if (failed) return failed

static bool in_state(const struct target *target, uint32_t state) {
    for (int i = 0; i < target->count; i++)
        if (target->clients[i]->state != state) return false;
    return true;
}

static void set_state(struct target *target, uint32_t state) {
    for (int i = 0; i < target->count; i++) {
        target->clients[i]->state = state;
        syscall(SYS_futex, &target->clients[i]->state, FUTEX_WAKE, INT32_MAX, NULL, NULL, 0);
    }
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

static result wait_until_quiet(struct target *target, int pid, unsigned timeout_ms) {
    int64_t deadline = now_ms() + timeout_ms;
    for (struct store_client *busy; (busy = still_busy(target));) {
        int64_t left = timeout_ms ? deadline - now_ms() : 100;
        if (left <= 0) return NOT_READY;
        if (!is_alive(pid)) return INVALID_VALUE;
        wait_for_calls(busy, left < 100 ? left : 100);
    }
    return OK;
}

result cuCheckpointProcessLock(int pid, const struct lock_args *args) {
    GATE_AS(-1, GATE_FREE);
    TARGET(pid);
    if (!in_state(&target, STORE_RUNNING)) return ILLEGAL_STATE;
    set_state(&target, STORE_LOCKED);
    failed = wait_until_quiet(&target, pid, args ? args->timeout_ms : 0);
    if (failed) set_state(&target, STORE_RUNNING);
    return failed;
}

result cuCheckpointProcessUnlock(int pid, const void *args) {
    GATE_AS(-1, GATE_FREE);
    (void)args;
    TARGET(pid);
    if (!in_state(&target, STORE_LOCKED)) return ILLEGAL_STATE;
    set_state(&target, STORE_RUNNING);
    return OK;
}

/* ---- checkpoint and restore, inside admission: usage changes in one step ---- */

static result can_checkpoint(const struct target *target) {
    for (int i = 0; i < target->count; i++) {
        const struct store_client *client = target->clients[i];
        if (client->managed || client->shared_slots) return NOT_SUPPORTED;
        /* MIG is not supported, and shows as this in cuda-checkpoint's list of known issues. */
        if (client->gpu_instance != STORE_NO_INSTANCE) return OUT_OF_MEMORY;
    }
    return OK;
}

static result change_state(struct target *target, uint32_t state) {
    if (store_enter() != 0) return OPERATING_SYSTEM;
    set_state(target, state);
    store_leave();
    return OK;
}

static result break_halfway(struct target *target, int code) {
    change_state(target, STORE_FAILED);
    return (result)code;
}

result cuCheckpointProcessCheckpoint(int pid, const void *args) {
    GATE_AS(-1, GATE_FREE);
    (void)args;
    TARGET(pid);
    if (!in_state(&target, STORE_LOCKED)) return ILLEGAL_STATE;
    failed = can_checkpoint(&target);
    if (failed) return failed;
    if (gate.fault.kind == FAULT_HALFWAY) return break_halfway(&target, gate.fault.code);
    return change_state(&target, STORE_CHECKPOINTED);
}

static bool is_roomy(const struct target *target) {
    struct store_usage usage[STORE_MAX_GPUS];
    if (store_walk(usage, NULL, NULL) != 0) return false;
    for (int i = 0; i < target->count; i++) {
        const struct store_client *client = target->clients[i];
        uint64_t wanted = size_sum(size_sum(client->context_bytes, client->overhead_bytes), client->private_bytes);
        if (usage[client->gpu].free_bytes < wanted) return false;
    }
    return true;
}

/* A GPU can only be restored to itself here: every pair must name it twice. */
static bool moves_elsewhere(const struct restore_args *args) {
    for (unsigned i = 0; args && args->pairs && i < args->pair_count; i++)
        if (memcmp(&args->pairs[i].old_uuid, &args->pairs[i].new_uuid, sizeof(struct uuid)) != 0) return true;
    return false;
}

static result restore(struct target *target) {
    if (store_enter() != 0) return OPERATING_SYSTEM;
    result failed = is_roomy(target) ? OK : OUT_OF_MEMORY;
    if (!failed) set_state(target, STORE_LOCKED);
    store_leave();
    return failed;
}

result cuCheckpointProcessRestore(int pid, const struct restore_args *args) {
    GATE_AS(-1, GATE_FREE);
    TARGET(pid);
    if (!in_state(&target, STORE_CHECKPOINTED)) return ILLEGAL_STATE;
    if (moves_elsewhere(args)) return NOT_SUPPORTED;
    if (gate.fault.kind == FAULT_HALFWAY) return break_halfway(&target, gate.fault.code);
    return restore(&target);
}

result cuCheckpointProcessGetState(int pid, int *state) {
    GATE_AS(-1, GATE_FREE);
    TARGET(pid);
    if (!state) return INVALID_VALUE;
    *state = gate.fault.kind == FAULT_VALUE ? gate.fault.code : (int)target.clients[0]->state;
    return OK;
}

result cuCheckpointProcessGetRestoreThreadId(int pid, int *thread) {
    GATE_AS(-1, GATE_FREE);
    TARGET(pid);
    if (!thread) return INVALID_VALUE;
    *thread = pid; /* no thread of the target takes part in a restore: its main thread is named */
    return OK;
}
