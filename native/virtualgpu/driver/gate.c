/* What every call passes: initialised in this process, not locked by a checkpoint, no error on request.
 * And what every call uses: the lock on the process's state, and the handles that programs hold. */
#define _GNU_SOURCE
#include "driver.h"

#include <errno.h>
#include <linux/futex.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pid_t initialised_by; /* 0: nobody yet */
static uint32_t inside;

void state_lock(void) {
    pthread_mutex_lock(&lock);
}

void state_unlock(void) {
    pthread_mutex_unlock(&lock);
}

static result watch_forks(void) {
    static bool watched;
    /* Admission registers its handlers first: prepare handlers run in reverse, so that a
     * forking thread takes this lock before that one, the order all calls use. */
    if (store_enter() != 0) return OPERATING_SYSTEM;
    store_leave();
    if (!watched) pthread_atfork(state_lock, state_unlock, state_unlock);
    watched = true;
    return OK;
}

static void wake(_Atomic uint32_t *word) {
    syscall(SYS_futex, word, FUTEX_WAKE, INT32_MAX, NULL, NULL, 0);
}

void gate_count_work(int change) {
    inside += (uint32_t)change;
    for (int device = 0; device < device_count(); device++) {
        struct client *client = client_of(device);
        if (!client) continue;
        client->holding.header->calls_inside = inside;
        /* The process that locks writes the state before it reads the count, so a call that counts itself sees it. */
        if (inside == 0 && client->holding.header->state != STORE_RUNNING) wake(&client->holding.header->calls_inside);
    }
}

/* The first client that a checkpoint keeps from running, or NULL. */
static struct store_client *held_client(void) {
    for (int device = 0; device < device_count(); device++) {
        struct client *client = client_of(device);
        if (client && client->holding.header->state != STORE_RUNNING) return client->holding.header;
    }
    return NULL;
}

static void wait_for_change(struct store_client *held, uint32_t state) {
    /* With a time limit, because the header may be unmapped by then: the kernel reports that at once. */
    struct timespec patience = {.tv_nsec = 100 * 1000 * 1000};
    syscall(SYS_futex, &held->state, FUTEX_WAIT, state, &patience, NULL, 0);
}

/* Counts this call, then reads the state; a process that locks writes the state, then reads the count. */
static result pass(void) {
    for (;;) {
        state_lock();
        gate_count_work(+1);
        struct store_client *held = held_client();
        uint32_t state = held ? held->state : STORE_RUNNING;
        if (state != STORE_RUNNING) gate_count_work(-1);
        state_unlock();
        if (state == STORE_RUNNING) return OK;
        if (state == STORE_FAILED) return ILLEGAL_STATE;
        wait_for_change(held, state);
    }
}

/* Faults name functions as the manual does: without "_v2", "_ptsz" and the like. */
static void plain_name(char *plain, size_t size, const char *function) {
    size_t length = strnlen(function, size - 1);
    memcpy(plain, function, length);
    plain[length] = '\0';
    if (length > 5 && memcmp(plain + length - 5, "_pt", 3) == 0) plain[length -= 5] = '\0';
    if (length > 3 && plain[length - 3] == '_' && plain[length - 2] == 'v') plain[length - 3] = '\0';
}

static int gpu_for_faults(int device) {
    struct context *current = device < 0 ? context_current() : NULL;
    return device_gpu(current ? current->device : device);
}

bool gate_initialised(void) {
    return initialised_by == getpid();
}

struct gate gate_enter(const char *function, int device, int counted) {
    char plain[96];
    struct gate gate = {0};
    if (!gate_initialised()) return (struct gate){.refused = NOT_INITIALIZED};
    /* A call from inside a call that was counted must not wait for it. */
    if (callback_inside_call()) counted = GATE_FREE;
    if (counted) gate.refused = pass();
    if (gate.refused) return gate;
    gate.counted = counted;
    plain_name(plain, sizeof plain, function);
    result refused = context_broken(plain);
    if (!refused) {
        gate.fault = store_fault(plain, gpu_for_faults(device));
        if (gate.fault.kind == FAULT_ERROR || gate.fault.kind == FAULT_STICKY) refused = (result)gate.fault.code;
        if (gate.fault.kind == FAULT_STICKY) context_break(gate.fault.code);
    }
    if (!refused) return gate;
    gate_leave(&gate);
    return (struct gate){.refused = refused, .fault = gate.fault};
}

void gate_leave(struct gate *gate) {
    if (!gate->counted) return;
    LOCKED();
    gate_count_work(-1);
    gate->counted = 0;
}

/* ---- cuInit: from now on /proc shows the process on every GPU; nothing is charged to it yet ---- */

static struct store_footprint control_files;

static result open_files(void) {
    int error = store_footprint_add(&control_files, "nvidiactl", 1, 1);
    if (!error) error = store_footprint_add(&control_files, "nvidia-uvm", 2, 0);
    result failed = result_from_errno(error);
    if (!failed) failed = clients_open();
    if (failed) store_footprint_drop(&control_files);
    return failed;
}

static result initialise(bool *first) {
    LOCKED();
    if (initialised_by) return initialised_by == getpid() ? OK : NOT_INITIALIZED;
    result failed = watch_forks();
    if (!failed) failed = open_files();
    if (failed) return failed;
    initialised_by = getpid();
    *first = true;
    return OK;
}

result cuInit(unsigned flags) {
    bool first = false;
    if (flags) return INVALID_VALUE;
    if (!store_config() || device_count() == 0) return NO_DEVICE;
    struct store_fault fault = store_fault("cuInit", -1);
    if (fault.kind == FAULT_ERROR) return (result)fault.code;
    result failed = initialise(&first);
    if (failed) return failed;
    injection_load(); /* also where another thread was first: it may not be ready yet */
    if (first) callback_resource(INIT_FINISHED, NULL, NULL);
    return OK;
}

result cuDriverGetVersion(int *version) {
    if (!version) return INVALID_VALUE;
    *version = store_config() ? store_config()->cuda_version : 0;
    return OK;
}

/* ---- handles: the addresses that programs hold, so that an invalid one is recognised ---- */

static struct handle *live[HANDLE_KINDS], *unused[HANDLE_KINDS];

void *handle_take(enum handle_kind kind, size_t size, struct context *owner) {
    struct handle *handle = unused[kind];
    if (store_step_fails("step.handle")) return NULL;
    if (handle)
        unused[kind] = handle->next;
    else if (!(handle = malloc(size)))
        return NULL;
    memset(handle, 0, size);
    *handle = (struct handle){kind, owner, live[kind]};
    live[kind] = handle;
    return handle;
}

static void unlink_live(struct handle *handle) {
    struct handle **link = &live[handle->kind];
    while (*link && *link != handle) link = &(*link)->next;
    if (*link) *link = handle->next;
}

void handle_drop(void *object) {
    struct handle *handle = object;
    enum handle_kind kind = handle->kind;
    unlink_live(handle);
    handle->kind = HANDLE_FREE;
    handle->next = unused[kind];
    unused[kind] = handle;
}

void handle_retire(void *object) {
    struct handle *handle = object;
    unlink_live(handle);
    handle->kind = HANDLE_FREE;
}

bool handle_is(const void *object, enum handle_kind kind) {
    for (const struct handle *handle = live[kind]; handle; handle = handle->next)
        if (handle == object) return true;
    return false;
}

void *handle_first(enum handle_kind kind) {
    return live[kind];
}

void *handle_next(void *object) {
    return ((struct handle *)object)->next;
}
