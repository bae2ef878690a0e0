/* A library that frees what it allocates in one function, and forgets it in another. It finds the driver
 * itself, as libraries do. */
#include <dlfcn.h>
#include <stddef.h>
#include <stdint.h>

typedef int (*init_function)(unsigned);
typedef int (*device_function)(int *, int);
typedef int (*retain_function)(void **, int);
typedef int (*current_function)(void *);
typedef int (*alloc_function)(uint64_t *, size_t);
typedef int (*free_function)(uint64_t);

static alloc_function driver_alloc;
static free_function driver_free;

int library_begin(void) {
    void *driver = dlopen("libcuda.so.1", RTLD_NOW);
    if (driver == NULL)
        return -1;
    init_function init = (init_function)dlsym(driver, "cuInit");
    device_function get = (device_function)dlsym(driver, "cuDeviceGet");
    retain_function retain = (retain_function)dlsym(driver, "cuDevicePrimaryCtxRetain");
    current_function current = (current_function)dlsym(driver, "cuCtxSetCurrent");
    driver_alloc = (alloc_function)dlsym(driver, "cuMemAlloc_v2");
    driver_free = (free_function)dlsym(driver, "cuMemFree_v2");
    int device = 0;
    void *context = NULL;
    if (init(0) || get(&device, 0) || retain(&context, device))
        return -2;
    return current(context);
}

/* Honest. */
int library_step(size_t nbytes) {
    uint64_t address = 0;
    int code = driver_alloc(&address, nbytes);
    return code ? code : driver_free(address);
}

/* A frame of its own, so that no compiler makes a jump of it. */
__attribute__((noinline)) int library_cache(size_t nbytes) {
    uint64_t address = 0;
    volatile int code = driver_alloc(&address, nbytes); /* planted leak */
    return code;
}
