/* What every call passes: initialised in this process, not locked by a checkpoint, no error on request.
 * And what every call uses: the lock on the process's state, and the handles that programs hold. */
#define _GNU_SOURCE
#include "driver.h"

#include <dlfcn.h>
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

/* The state that a checkpoint keeps the process in, and the first client that has it; or RUNNING. Each state is read
 * once, because it changes at any time. */
static uint32_t held_state(struct store_client **held) {
    for (int device = 0; device < device_count(); device++) {
        struct client *client = client_of(device);
        uint32_t state = client ? client->holding.header->state : STORE_RUNNING;
        if (state == STORE_RUNNING) continue;
        *held = client->holding.header;
        return state;
    }
    return STORE_RUNNING;
}

static void wait_for_change(struct store_client *held, uint32_t state) {
    /* With a time limit, because the header may be unmapped by then: the kernel reports that at once. */
    struct timespec patience = {.tv_nsec = 100 * 1000 * 1000};
    syscall(SYS_futex, &held->state, FUTEX_WAIT, state, &patience, NULL, 0);
}

/* Counts this call where the state is RUNNING, and returns the state. It counts, then reads the state; who locks writes
 * the state, then reads the count. The first look keeps a thread that is stopped here from staying counted. */
static uint32_t count_if_running(struct store_client **held) {
    LOCKED();
    uint32_t state = held_state(held);
    if (state != STORE_RUNNING) return state;
    gate_count_work(+1);
    state = held_state(held);
    if (state != STORE_RUNNING) gate_count_work(-1);
    return state;
}

/* A true fault, as in the driver: a debugger and the program's own handler see one. */
__attribute__((noreturn, no_sanitize("address", "undefined"))) static void die_of_segmentation_fault(void) {
    volatile int *volatile nowhere = NULL;
    for (;;) *nowhere = 0;
}

static struct store_client *first_client(void) {
    return client_of(0)->holding.header;
}

static void begin_answering(struct gate *gate) {
    gate->answering = gate->keeps_from_unlock = true;
    atomic_fetch_add(&first_client()->answering, 1);
}

void gate_before_wait(struct gate *gate) {
    if (!gate->keeps_from_unlock) return;
    gate->keeps_from_unlock = false;
    if (atomic_fetch_sub(&first_client()->answering, 1) == 1) wake(&first_client()->answering);
}

/* For a call that does not wait while the process is locked. */
static result answer(struct gate *gate, enum gate_kind kind, uint32_t state) {
    if (state == STORE_CHECKPOINTED && kind == GATE_ANSWERS_OR_FAILS) return OPERATING_SYSTEM;
    if (state == STORE_CHECKPOINTED && kind == GATE_ANSWERS_OR_DIES) die_of_segmentation_fault();
    begin_answering(gate);
    return OK;
}

static result pass(struct gate *gate, enum gate_kind kind) {
    for (;;) {
        struct store_client *held;
        uint32_t state = count_if_running(&held);
        gate->counted = state == STORE_RUNNING;
        if (gate->counted) return OK;
        if (state == STORE_FAILED) return ILLEGAL_STATE;
        if (kind != GATE_WAITS) return answer(gate, kind, state);
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

struct gate gate_enter(const char *function, int device, enum gate_kind kind) {
    char plain[96];
    struct gate gate = {0};
    if (!gate_initialised()) return (struct gate){.refused = NOT_INITIALIZED};
    /* A call from inside a call that was counted must not wait for it. */
    if (callback_inside_call()) kind = GATE_FREE;
    if (kind != GATE_FREE) gate.refused = pass(&gate, kind);
    if (gate.refused) return gate;
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
    gate_before_wait(gate);
    if (!gate->counted) return;
    LOCKED();
    gate_count_work(-1);
    gate->counted = false;
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

static void close_files(void) {
    clients_close();
    store_footprint_drop(&control_files);
}

/* The driver's thread never ends, so its code must stay. Not locked, since the loader has a lock of its own. */
static result stay_loaded(void) {
    Dl_info here;
    bool found = dladdr((void *)stay_loaded, &here) != 0;
    return found && dlopen(here.dli_fname, RTLD_LAZY | RTLD_NOLOAD | RTLD_NODELETE) ? OK : OPERATING_SYSTEM;
}

static result initialise(bool *first) {
    LOCKED();
    if (initialised_by) return initialised_by == getpid() ? OK : NOT_INITIALIZED;
    result failed = watch_forks();
    if (!failed) failed = open_files();
    if (failed) return failed;
    failed = driver_thread_start();
    if (failed) {
        close_files();
        return failed;
    }
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
    result failed = gate_initialised() ? OK : stay_loaded();
    if (!failed) failed = initialise(&first);
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
