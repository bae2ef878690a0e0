/* Names and numbers: of callbacks and results, of the version, of contexts, devices and streams. */
#include "cupti.h"

#include "../driver/functions.h"

struct callback_name {
    uint32_t id;
    const char *name;
};

#define ENTRY(name, version, symbol, id, ...) {id, #symbol},
static const struct callback_name driver_names[] = {
    {0, "INVALID"}, FUNCTIONS(ENTRY) UNREPORTED_FUNCTIONS(ENTRY) PER_THREAD_FUNCTIONS(ENTRY) UNSUPPORTED(ENTRY)};

/* Only functions of the driver have names here. */
API cupti_result cuptiGetCallbackName(int domain, uint32_t id, const char **name) {
    if (!name) return CUPTI_ERROR_INVALID_PARAMETER;
    *name = NULL;
    if (domain != DOMAIN_DRIVER) return CUPTI_ERROR_INVALID_PARAMETER;
    for (size_t i = 0; i < sizeof driver_names / sizeof *driver_names; i++)
        if (driver_names[i].id == id) *name = driver_names[i].name;
    return *name ? CUPTI_SUCCESS : CUPTI_ERROR_INVALID_PARAMETER;
}

API cupti_result cuptiGetResultString(cupti_result code, const char **name) {
    static const struct callback_name names[] = {
#define NAMED(number, name) {number, #name},
        CUPTI_RESULTS(NAMED)};
    if (!name) return CUPTI_ERROR_INVALID_PARAMETER;
    *name = "<unknown>";
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        if (names[i].id != code) continue;
        *name = names[i].name;
        return CUPTI_SUCCESS;
    }
    return CUPTI_ERROR_INVALID_PARAMETER;
}

API cupti_result cuptiGetVersion(uint32_t *version) {
    if (!version) return CUPTI_ERROR_INVALID_PARAMETER;
    *version = CUPTI_MAJOR >= 13 ? 130001 : 26; /* of CUDA 13.0 Update 1 and of 12.8 */
    return CUPTI_SUCCESS;
}

/* ---- objects of the driver; these calls are not reported ---- */

API cupti_result cuptiGetDeviceId(void *context, uint32_t *device) {
    const struct callback_calls *calls = driver_calls();
    int found;
    if (!calls || !device) return CUPTI_ERROR_INVALID_PARAMETER;
    if (calls->context_device(&found, context)) return CUPTI_ERROR_INVALID_CONTEXT;
    *device = (uint32_t)found;
    return CUPTI_SUCCESS;
}

API cupti_result cuptiGetContextId(void *context, uint32_t *id) {
    const struct callback_calls *calls = driver_calls();
    unsigned long long found;
    if (!calls || !id) return CUPTI_ERROR_INVALID_PARAMETER;
    if (calls->context_id(context, &found)) return CUPTI_ERROR_INVALID_CONTEXT;
    *id = (uint32_t)found;
    return CUPTI_SUCCESS;
}

API cupti_result cuptiGetStreamIdEx(void *context, void *stream, uint8_t per_thread, uint32_t *id) {
    enum { PER_THREAD_STREAM = 2 };
    const struct callback_calls *calls = driver_calls();
    unsigned long long found;
    (void)context;
    if (!calls || !id) return CUPTI_ERROR_INVALID_PARAMETER;
    if (calls->stream_id(!stream && per_thread ? (void *)PER_THREAD_STREAM : stream, &found))
        return CUPTI_ERROR_INVALID_STREAM;
    *id = (uint32_t)found;
    return CUPTI_SUCCESS;
}

API cupti_result cuptiGetStreamId(void *context, void *stream, uint32_t *id) {
    return cuptiGetStreamIdEx(context, stream, 0, id);
}
