/* The driver's own threads in a process that uses it, named as on an H200 (driver 580.159.04).
 *
 * The first one carries out what other processes ask of this one by the checkpoint calls. It works while all threads of
 * the program are stopped, wherever they are: so nothing here takes a lock that one of them may hold, memory from
 * malloc, or a variable of its own thread (whose first use may take memory). It reads and writes the client files,
 * which it knows from its start.
 *
 * RUNNING -lock-> LOCKED -checkpoint-> CHECKPOINTED -restore-> LOCKED -unlock-> RUNNING.
 * A checkpointed client holds nothing on the GPU; its bytes stay in its file, which is host
 * memory, as the real driver moves them into the target's own.
 */
#define _GNU_SOURCE
#include "driver.h"

#include <linux/futex.h>
#include <pthread.h>
#include <sys/syscall.h>
#include <unistd.h>

static struct store_client *clients[STORE_MAX_GPUS]; /* of this process, one for each GPU it uses */
static int client_count;

static bool in_state(uint32_t state) {
    for (int i = 0; i < client_count; i++)
        if (clients[i]->state != state) return false;
    return true;
}

static void set_state(uint32_t state) {
    for (int i = 0; i < client_count; i++) {
        clients[i]->state = state;
        syscall(SYS_futex, &clients[i]->state, FUTEX_WAKE, INT32_MAX, NULL, NULL, 0);
    }
}

/* ---- lock: the process that asked waits for the calls that are inside ---- */

static result lock(void) {
    if (!in_state(STORE_RUNNING)) return ILLEGAL_STATE;
    /* Measured: from the first subscription on, also after unsubscribing and cuptiFinalize. */
    if (callback_was_subscribed()) return NOT_SUPPORTED;
    set_state(STORE_LOCKED);
    return OK;
}

/* Measured: while a thread is stopped inside cuEventQuery, an unlock waits for a lock that this thread holds. */
static void wait_for_answering_calls(void) {
    for (uint32_t answering; (answering = clients[0]->answering);)
        syscall(SYS_futex, &clients[0]->answering, FUTEX_WAIT, answering, NULL, NULL, 0);
}

static result unlock(void) {
    if (!in_state(STORE_LOCKED)) return ILLEGAL_STATE;
    wait_for_answering_calls();
    set_state(STORE_RUNNING);
    return OK;
}

/* ---- checkpoint and restore, inside admission: usage changes in one step ---- */

static result can_checkpoint(void) {
    for (int i = 0; i < client_count; i++) {
        if (clients[i]->managed || clients[i]->shared_slots) return NOT_SUPPORTED;
        /* MIG is not supported, and shows as this in cuda-checkpoint's list of known issues. */
        if (clients[i]->gpu_instance != STORE_NO_INSTANCE) return OUT_OF_MEMORY;
    }
    return OK;
}

static result change_state(uint32_t state) {
    int admission = store_enter_alone();
    if (admission < 0) return OPERATING_SYSTEM;
    set_state(state);
    store_leave_alone(admission);
    return OK;
}

static result checkpoint(struct order order) {
    if (!in_state(STORE_LOCKED)) return ILLEGAL_STATE;
    result failed = can_checkpoint();
    if (failed) return failed;
    store_delay(order.delay_s);
    return change_state(order.breaks ? STORE_FAILED : STORE_CHECKPOINTED);
}

static bool is_roomy(int admission, const uint8_t to[STORE_MAX_GPUS]) {
    for (int i = 0; i < client_count; i++) {
        const struct store_client *client = clients[i];
        uint32_t gpu = to[client->gpu] ? to[client->gpu] - 1u : client->gpu;
        uint64_t wanted = size_sum(size_sum(client->context_bytes, client->overhead_bytes), client->private_bytes);
        uint64_t nbytes;
        if (store_free_by(admission, gpu, STORE_NO_INSTANCE, &nbytes) != 0 || nbytes < wanted) return false;
    }
    return true;
}

static result restore(struct order order) {
    if (!in_state(STORE_CHECKPOINTED)) return ILLEGAL_STATE;
    store_delay(order.delay_s);
    if (order.breaks) return change_state(STORE_FAILED);
    uint8_t to[STORE_MAX_GPUS];
    for (int gpu = 0; gpu < STORE_MAX_GPUS; gpu++) {
        to[gpu] = clients[0]->restore_to[gpu];
        clients[0]->restore_to[gpu] = 0;
    }
    int admission = store_enter_alone();
    if (admission < 0) return OPERATING_SYSTEM;
    result failed = is_roomy(admission, to) ? OK : OUT_OF_MEMORY;
    if (!failed) failed = clients_move(to);
    if (!failed) set_state(STORE_LOCKED);
    store_leave_alone(admission);
    return failed;
}

/* ---- the threads ---- */

static result carry_out(struct order order) {
    switch (order.verb) {
    case STORE_GET_STATE: return OK;
    case STORE_LOCK: return lock();
    case STORE_CHECKPOINT: return checkpoint(order);
    case STORE_RESTORE: return restore(order);
    case STORE_UNLOCK: return unlock();
    }
    return NOT_SUPPORTED;
}

static void *serve_orders(void *unused) {
    (void)unused;
    clients[0]->driver_thread = (uint32_t)syscall(SYS_gettid);
    for (;;) {
        struct order order = order_wait(clients[0]);
        result code = carry_out(order);
        order_answer(clients[0], (struct answer){code, clients[0]->state});
    }
    return NULL;
}

/* No event here needs a thread: it is there because it is there on an H200. */
static void *handle_events(void *unused) {
    for (;;) pause();
    return unused;
}

/* It has the caller's signal mask, as on an H200. */
static result start_thread(const char *name, void *(*run)(void *)) {
    pthread_attr_t attributes;
    pthread_t thread;
    pthread_attr_init(&attributes);
    pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
    bool started = !store_step_fails("step.thread") && pthread_create(&thread, &attributes, run, NULL) == 0;
    pthread_attr_destroy(&attributes);
    if (started) pthread_setname_np(thread, name);
    return started ? OK : OPERATING_SYSTEM;
}

result driver_thread_start(void) {
    client_count = 0;
    for (int device = 0; device < device_count(); device++) clients[client_count++] = client_of(device)->holding.header;
    if (!order_prepare(clients[0])) return OPERATING_SYSTEM;
    result failed = start_thread("cuda00001400006", serve_orders);
    if (failed) order_forget(clients[0]);
    return failed;
}

result event_thread_start(void) {
    static bool started;
    result failed = started ? OK : start_thread("cuda-EvtHandlr", handle_events);
    if (!failed) started = true;
    return failed;
}
