/* Lookup by cuGetProcAddress, older names of functions, and functions that have little to do. */
#include "driver.h"

#include <stdbool.h>
#include <string.h>

/* ---- the table, from the lists in functions.h ---- */

struct function {
    const char *name, *symbol;
    int version;
    void (*address)(void);
};

/* Only the addresses of the exported functions (entry.c) are needed here, and no signatures. */
#define DECLARE(name, version, symbol, ...) extern void address_of_##symbol(void) __asm__(#symbol);
FUNCTIONS(DECLARE)
UNREPORTED_FUNCTIONS(DECLARE)
PER_THREAD_FUNCTIONS(DECLARE)
UNSUPPORTED(DECLARE)

#define ENTRY(name, version, symbol, ...) {#name, #symbol, version, address_of_##symbol},
static const struct function function_table[] = {FUNCTIONS(ENTRY) UNREPORTED_FUNCTIONS(ENTRY)
                                                     PER_THREAD_FUNCTIONS(ENTRY) UNSUPPORTED(ENTRY)};
static const size_t function_count = sizeof function_table / sizeof *function_table;

/* ---- cuGetProcAddress: from a name and a CUDA version to the form that the caller knows ---- */

enum { FOUND = 0, SYMBOL_NOT_FOUND = 1, VERSION_NOT_SUFFICIENT = 2 };

static bool is_per_thread(const char *symbol) {
    size_t length = strlen(symbol);
    return length > 5 && (strcmp(symbol + length - 5, "_ptsz") == 0 || strcmp(symbol + length - 5, "_ptds") == 0);
}

/* Whether *one* is to be preferred: it is of the wanted kind where the other is not, or newer. */
static bool better(const struct function *one, const struct function *other, bool per_thread) {
    if (!other) return true;
    bool fits = is_per_thread(one->symbol) == per_thread, other_fits = is_per_thread(other->symbol) == per_thread;
    return fits != other_fits ? fits : one->version > other->version;
}

/* The newest form that the caller's version knows; with *per_thread* one with the thread's own default stream, if
 * the function has such forms. */
static const struct function *find(const char *name, int version, bool per_thread, bool *name_known) {
    const struct function *best = NULL;
    for (size_t i = 0; i < function_count; i++) {
        const struct function *known = &function_table[i];
        bool exact = strcmp(known->symbol, name) == 0 && strcmp(known->name, name) != 0;
        if (exact) return known;
        if (strcmp(known->name, name) != 0 || (is_per_thread(known->symbol) && !per_thread)) continue;
        *name_known = true;
        if (known->version <= version && better(known, best, per_thread)) best = known;
    }
    return best;
}

result cuGetProcAddress_v2(const char *name, void **function, int version, uint64_t flags, int *status) {
    enum { PER_THREAD_DEFAULT_STREAM = 2 };
    bool name_known = false;
    if (!name || !function) return INVALID_VALUE;
    const struct function *known = find(name, version, flags & PER_THREAD_DEFAULT_STREAM, &name_known);
    *function = known ? (void *)known->address : NULL;
    if (status) *status = known ? FOUND : name_known ? VERSION_NOT_SUFFICIENT : SYMBOL_NOT_FOUND;
    return known || status ? OK : NOT_FOUND;
}

result cuGetProcAddress(const char *name, void **function, int version, uint64_t flags) {
    return cuGetProcAddress_v2(name, function, version, flags, NULL);
}

/* ---- first versions of calls whose arguments never changed: programs that link them by name still run ---- */

result cuCtxCreate(struct context **context, unsigned flags, int device) {
    return cuCtxCreate_v2(context, flags, device);
}

result cuCtxDestroy(struct context *context) {
    return cuCtxDestroy_v2(context);
}

result cuCtxPushCurrent(struct context *context) {
    return cuCtxPushCurrent_v2(context);
}

result cuCtxPopCurrent(struct context **context) {
    return cuCtxPopCurrent_v2(context);
}

/* Usage counts of contexts are long deprecated. */
result cuCtxAttach(struct context **context, unsigned flags) {
    GATE();
    (void)context;
    (void)flags;
    return NOT_SUPPORTED;
}

result cuCtxDetach(struct context *context) {
    return cuCtxDestroy_v2(context);
}

result cuStreamDestroy(struct stream *stream) {
    return cuStreamDestroy_v2(stream);
}

result cuEventDestroy(struct event *event) {
    return cuEventDestroy_v2(event);
}

result cuDevicePrimaryCtxRelease(int device) {
    return cuDevicePrimaryCtxRelease_v2(device);
}

result cuDevicePrimaryCtxReset(int device) {
    return cuDevicePrimaryCtxReset_v2(device);
}

result cuDevicePrimaryCtxSetFlags(int device, unsigned flags) {
    return cuDevicePrimaryCtxSetFlags_v2(device, flags);
}

result cuIpcOpenMemHandle(deviceptr *address, struct opaque64 handle, unsigned flags) {
    return cuIpcOpenMemHandle_v2(address, handle, flags);
}

result cuMemHostRegister(void *address, size_t nbytes, unsigned flags) {
    return cuMemHostRegister_v2(address, nbytes, flags);
}

result cuStreamGetCaptureInfo(void *handle, int *status, uint64_t *id) {
    return cuStreamGetCaptureInfo_v2(handle, status, id, NULL, NULL, NULL);
}

/* ---- functions that have little to do ---- */

enum jit_option { JIT_INFO_LOG_SIZE = 4, JIT_ERROR_LOG_SIZE = 6 };

/* Callers read both logs after a failure, so their sizes are answered: nothing was written. */
result cuModuleLoadDataEx(void **module, const void *image, unsigned count, const int *options, void **values) {
    GATE();
    (void)module;
    (void)image;
    for (unsigned i = 0; options && values && i < count; i++) {
        if (options[i] == JIT_INFO_LOG_SIZE || options[i] == JIT_ERROR_LOG_SIZE) values[i] = NULL;
    }
    return NOT_SUPPORTED;
}

result cuModuleGetLoadingMode(int *mode) {
    GATE();
    if (!mode) return INVALID_VALUE;
    *mode = 2; /* lazy */
    return OK;
}

result cuProfilerStart(void) {
    GATE();
    return OK;
}

result cuProfilerStop(void) {
    GATE();
    return OK;
}

result cuFlushGPUDirectRDMAWrites(int target, int scope) {
    GATE();
    (void)target;
    (void)scope;
    return OK;
}
