/* Callbacks of CUPTI: who subscribed, to which calls, and how a call is reported.
 *
 * Nothing here takes a lock, so that callbacks can be turned on and off while other threads call, in a callback,
 * and in a forked child. A thread that has read the subscriber just before it unsubscribes still calls it, so its
 * record is never freed.
 */
#include "callbacks.h"
#include "driver.h"

#include <stdatomic.h>
#include <stdio.h>

struct subscriber {
    callback_function callback;
    void *userdata;
    char name[SUBSCRIBER_NAME];
    _Atomic uint64_t enabled[DOMAINS][CALLBACK_IDS / 64];
    struct subscriber *older; /* only to keep it reachable */
};

_Atomic(struct subscriber *) callback_subscriber;
static _Atomic bool was_subscribed;
static _Thread_local const struct call *outermost; /* of the reported calls that this thread is in */
static _Thread_local bool in_resource_callback;

static bool is_enabled(const struct subscriber *subscriber, int domain, uint32_t id) {
    return atomic_load_explicit(&subscriber->enabled[domain][id / 64], memory_order_relaxed) >> id % 64 & 1;
}

/* The subscriber that wants this callback, or NULL. It may subscribe without a function. */
static struct subscriber *wanted_by(int domain, uint32_t id) {
    struct subscriber *subscriber = atomic_load_explicit(&callback_subscriber, memory_order_acquire);
    return subscriber && subscriber->callback && is_enabled(subscriber, domain, id) ? subscriber : NULL;
}

/* ---- calls ---- */

/* As on an H200 (580.159.04): calls before cuInit, the first cuInit itself, and calls in a forked child are not
 * reported. Calls that a callback makes are, under the correlation id of the call that they were made in. */

static void note_context(struct callback_data *data) {
    const struct context *current = context_current();
    data->context = (void *)current;
    data->context_uid = current && current->alive ? (uint32_t)current->id : 0;
}

void call_begin(struct call *call, uint32_t id, const char *symbol, void *parameters) {
    static _Atomic uint32_t calls;
    call->reported_to = wanted_by(DOMAIN_DRIVER, id);
    if (call->reported_to && !gate_initialised()) call->reported_to = NULL;
    if (!call->reported_to) return;
    if (!outermost) outermost = call;
    call->id = id;
    call->correlation = 0;
    call->code = OK;
    call->data = (struct callback_data){
        .site = SITE_ENTER,
        .function = symbol,
        .parameters = parameters,
        .return_value = &call->code,
        .correlation_data = &call->correlation,
        .correlation_id = outermost == call ? atomic_fetch_add_explicit(&calls, 1, memory_order_relaxed) + 1
                                            : outermost->data.correlation_id,
    };
    note_context(&call->data);
    call->reported_to->callback(call->reported_to->userdata, DOMAIN_DRIVER, id, &call->data);
}

/* Who was told of the beginning is told of the end, unless it turned the callback off or unsubscribed meanwhile. */
result call_end(struct call *call, result code) {
    if (!call->reported_to) return code;
    call->code = code;
    if (wanted_by(DOMAIN_DRIVER, call->id) == call->reported_to) {
        call->data.site = SITE_EXIT;
        note_context(&call->data);
        call->reported_to->callback(call->reported_to->userdata, DOMAIN_DRIVER, call->id, &call->data);
    }
    if (outermost == call) outermost = NULL;
    return call->code;
}

/* ---- resources ---- */

void callback_resource(enum resource_id id, struct context *context, struct stream *stream) {
    const struct subscriber *subscriber = wanted_by(DOMAIN_RESOURCE, id);
    if (!subscriber) return;
    struct resource_data data = {.context = context, .stream = stream};
    in_resource_callback = true;
    subscriber->callback(subscriber->userdata, DOMAIN_RESOURCE, id, id == INIT_FINISHED ? NULL : &data);
    in_resource_callback = false;
}

bool callback_was_subscribed(void) {
    return was_subscribed;
}

bool callback_inside_call(void) {
    return in_resource_callback;
}

/* ---- what libcupti asks for ---- */

static struct subscriber *subscribe(callback_function callback, void *userdata, const char *name) {
    static _Atomic(struct subscriber *) newest;
    struct subscriber *made = calloc(1, sizeof *made), *nobody = NULL;
    if (!made) return NULL;
    made->callback = callback;
    made->userdata = userdata;
    snprintf(made->name, sizeof made->name, "%s", name);
    if (!atomic_compare_exchange_strong(&callback_subscriber, &nobody, made)) {
        free(made);
        return NULL;
    }
    was_subscribed = true;
    made->older = atomic_exchange(&newest, made);
    return made;
}

static void unsubscribe(struct subscriber *subscriber) {
    atomic_compare_exchange_strong(&callback_subscriber, &subscriber, NULL);
}

static struct subscriber *present_subscriber(void) {
    return atomic_load(&callback_subscriber);
}

static const char *name_of(const struct subscriber *subscriber) {
    return subscriber->name;
}

static void enable(struct subscriber *subscriber, int domain, uint32_t first, uint32_t last, bool on) {
    for (uint32_t id = first; id <= last && id < CALLBACK_IDS; id++) {
        uint64_t bit = UINT64_C(1) << id % 64;
        if (on)
            atomic_fetch_or(&subscriber->enabled[domain][id / 64], bit);
        else
            atomic_fetch_and(&subscriber->enabled[domain][id / 64], ~bit);
    }
}

static result context_device(int *device, void *context) {
    return cuCtxGetDevice_v2(device, context);
}

static result context_id(void *context, unsigned long long *id) {
    return cuCtxGetId(context, id);
}

API const struct callback_calls *vramCallbacks(void) {
    static const struct callback_calls calls = {
        .subscribe = subscribe,
        .unsubscribe = unsubscribe,
        .subscriber = present_subscriber,
        .name = name_of,
        .enable = enable,
        .is_enabled = is_enabled,
        .context_device = context_device,
        .context_id = context_id,
        .stream_id = cuStreamGetId,
    };
    return &calls;
}
