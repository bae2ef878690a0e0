/* Subscribing, and turning callbacks on and off. The driver keeps who subscribed (driver/callbacks.c), so that there
 * is one subscriber in a process, whichever libcupti it used. */
#include "cupti.h"

#include <stdio.h>
#include <string.h>

/* How many callbacks each domain has: 0 up to this number (CUDA 13.0). */
static const uint32_t callback_count[DOMAINS] = {
    [DOMAIN_DRIVER] = 807,    [DOMAIN_RUNTIME] = 523, [DOMAIN_RESOURCE] = 24,
    [DOMAIN_SYNCHRONIZE] = 3, [DOMAIN_NVTX] = 50,     [DOMAIN_STATE] = 4,
};

static bool is_domain(int domain) {
    return domain > 0 && domain < DOMAINS;
}

static bool is_callback(int domain, uint32_t id) {
    return is_domain(domain) && id < callback_count[domain];
}

static cupti_result refuse_second(const struct callback_calls *calls, const struct subscriber_params *params) {
    const struct subscriber *present = calls->subscriber();
    if (!present) return CUPTI_ERROR_OUT_OF_MEMORY;
    if (params && params->old_name && params->old_name_size)
        snprintf(params->old_name, params->old_name_size, "%s", calls->name(present));
    return CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED;
}

static cupti_result subscribe(struct subscriber **subscriber, callback_function callback, void *userdata,
                              const struct subscriber_params *params) {
    char name[SUBSCRIBER_NAME];
    const struct callback_calls *calls = driver_calls();
    if (!calls) return CUPTI_ERROR_UNKNOWN; /* as NVIDIA's does where there is no driver */
    if (!subscriber) return CUPTI_ERROR_INVALID_PARAMETER;
    snprintf(name, sizeof name, "CUPTI for %.53s", params && params->name ? params->name : "<not provided>");
    struct subscriber *made = calls->subscriber() ? NULL : calls->subscribe(callback, userdata, name);
    if (!made) return refuse_second(calls, params);
    *subscriber = made;
    return CUPTI_SUCCESS;
}

API cupti_result cuptiSubscribe(struct subscriber **subscriber, callback_function callback, void *userdata) {
    cupti_result fault = fault_of(__func__);
    return fault ? fault : subscribe(subscriber, callback, userdata, NULL);
}

#if CUPTI_MAJOR >= 13
API cupti_result cuptiSubscribe_v2(struct subscriber **subscriber, callback_function callback, void *userdata,
                                   struct subscriber_params *params) {
    cupti_result fault = fault_of(__func__);
    return fault ? fault : subscribe(subscriber, callback, userdata, params);
}
#endif

/* A handle that has unsubscribed may do so again, as with NVIDIA's. */
API cupti_result cuptiUnsubscribe(struct subscriber *subscriber) {
    const struct callback_calls *calls = driver_calls();
    cupti_result fault = fault_of(__func__);
    if (fault) return fault;
    if (!calls || !subscriber) return CUPTI_ERROR_INVALID_PARAMETER;
    calls->unsubscribe(subscriber);
    return CUPTI_SUCCESS;
}

API cupti_result cuptiFinalize(void) {
    const struct callback_calls *calls = driver_calls();
    cupti_result fault = fault_of(__func__);
    if (fault) return fault;
    struct subscriber *present = calls ? calls->subscriber() : NULL;
    if (present) calls->unsubscribe(present);
    return CUPTI_SUCCESS;
}

/* ---- on and off ---- */

/* The driver's table, where this is the subscriber; else NULL. */
static const struct callback_calls *calls_for(const struct subscriber *subscriber) {
    const struct callback_calls *calls = driver_calls();
    return calls && subscriber && calls->subscriber() == subscriber ? calls : NULL;
}

API cupti_result cuptiEnableCallback(uint32_t on, struct subscriber *subscriber, int domain, uint32_t id) {
    const struct callback_calls *calls = calls_for(subscriber);
    cupti_result fault = fault_of(__func__);
    if (fault) return fault;
    if (!calls || !is_callback(domain, id)) return CUPTI_ERROR_INVALID_PARAMETER;
    calls->enable(subscriber, domain, id, id, on != 0);
    return CUPTI_SUCCESS;
}

API cupti_result cuptiEnableDomain(uint32_t on, struct subscriber *subscriber, int domain) {
    const struct callback_calls *calls = calls_for(subscriber);
    cupti_result fault = fault_of(__func__);
    if (fault) return fault;
    if (!calls || !is_domain(domain)) return CUPTI_ERROR_INVALID_PARAMETER;
    calls->enable(subscriber, domain, 0, callback_count[domain] - 1, on != 0);
    return CUPTI_SUCCESS;
}

API cupti_result cuptiEnableAllDomains(uint32_t on, struct subscriber *subscriber) {
    cupti_result failed = CUPTI_SUCCESS;
    for (int domain = 1; domain < DOMAINS && !failed; domain++) failed = cuptiEnableDomain(on, subscriber, domain);
    return failed;
}

API cupti_result cuptiGetCallbackState(uint32_t *on, struct subscriber *subscriber, int domain, uint32_t id) {
    const struct callback_calls *calls = calls_for(subscriber);
    if (!on || !calls || !is_callback(domain, id)) return CUPTI_ERROR_INVALID_PARAMETER;
    *on = calls->is_enabled(subscriber, domain, id);
    return CUPTI_SUCCESS;
}

API cupti_result cuptiSupportedDomains(size_t *count, const int **domains) {
    static const int all[] = {DOMAIN_DRIVER,      DOMAIN_RUNTIME, DOMAIN_RESOURCE,
                              DOMAIN_SYNCHRONIZE, DOMAIN_NVTX,    DOMAIN_STATE};
    if (!driver_calls()) return CUPTI_ERROR_UNKNOWN;
    if (!count || !domains) return CUPTI_ERROR_INVALID_PARAMETER;
    *count = sizeof all / sizeof *all;
    *domains = all;
    return CUPTI_SUCCESS;
}
