/* Finding the virtual driver, which NVIDIA's runtime also does only when it is first needed: a program that
 * merely links the runtime has nothing to do with a GPU. */
#include "runtime.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <unistd.h>

struct driver cu;
static _Atomic int failure;

static bool take(void *library, const char *name, void **place) {
    *place = dlsym(library, name);
    return *place != NULL;
}

static error load(void) {
    void *library = dlopen("libcuda.so.1", RTLD_NOW);
    bool whole = library != NULL;
#define TAKE(name, ...) whole = whole && take(library, #name, (void **)&cu.name);
    DRIVER_CALLS(TAKE)
#undef TAKE
    if (whole) return OK;
    fprintf(stderr,
            "vram virtual: this CUDA runtime belongs to the virtual GPU, and %s.\n"
            "Start the program with `vram virtual -- COMMAND`, or use NVIDIA's own runtime.\n",
            library ? "the libcuda.so.1 that was found is another one" : "there is no libcuda.so.1");
    return INSUFFICIENT_DRIVER;
}

int device_count;

static void initialise(void) {
    error found = load();
    if (!found) found = cu.cuInit(0);
    if (!found) found = cu.cuDeviceGetCount(&device_count);
    failure = found;
}

error driver_ready(void) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, initialise);
    /* A forked child is told by every driver call, and by this one without any. */
    return failure ? failure : (error)cu.cuInit(0);
}

error driver_failure(void) {
    return failure;
}

API error cudaDriverGetVersion(int *version) {
    if (!version) return fail(INVALID_VALUE);
    *version = 0;
    if (driver_ready() == INSUFFICIENT_DRIVER) return OK;
    return fail(cu.cuDriverGetVersion(version));
}

API error cudaRuntimeGetVersion(int *version) {
    if (!version) return fail(INVALID_VALUE);
    *version = RUNTIME_VERSION;
    return OK;
}

/* ---- the driver's functions by name ---- */

enum { PER_THREAD_STREAMS = 2 };

static error entry_point(const char *name, void **function, unsigned version, uint64_t flags, int *status) {
    int found = 0;
    NEED_DRIVER();
    if (!name || !function || flags > PER_THREAD_STREAMS) return fail(INVALID_VALUE);
    error code = cu.cuGetProcAddress_v2(name, function, (int)version, flags, &found);
    if (status) *status = found;
    /* That there is no such function is an answer, for whoever asked for the status. */
    return code == NOT_FOUND && status ? OK : fail(code);
}

API error cudaGetDriverEntryPointByVersion(const char *name, void **function, unsigned version,
                                           unsigned long long flags, int *status) {
    return entry_point(name, function, version, flags, status);
}

API error cudaGetDriverEntryPoint(const char *name, void **function, unsigned long long flags, int *status) {
    return entry_point(name, function, RUNTIME_VERSION, flags, status);
}

API error cudaGetDriverEntryPointByVersion_ptsz(const char *name, void **function, unsigned version,
                                                unsigned long long flags, int *status) {
    return entry_point(name, function, version, flags ? flags : PER_THREAD_STREAMS, status);
}

API error cudaGetDriverEntryPoint_ptsz(const char *name, void **function, unsigned long long flags, int *status) {
    return entry_point(name, function, RUNTIME_VERSION, flags ? flags : PER_THREAD_STREAMS, status);
}

API error cudaProfilerStart(void) {
    NEED_DRIVER();
    NEED_CONTEXT();
    return fail(cu.cuProfilerStart());
}

API error cudaProfilerStop(void) {
    NEED_DRIVER();
    NEED_CONTEXT();
    return fail(cu.cuProfilerStop());
}
