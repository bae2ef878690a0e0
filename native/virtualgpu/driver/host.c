/* Pinned and registered host memory: the same address for host and device. */
#define _GNU_SOURCE
#include "driver.h"

#include <sys/mman.h>

static result allocate(void **address, uint64_t nbytes, unsigned flags) {
    struct context *context;
    LOCKED();
    result failed = context_need(&context);
    if (failed) return failed;
    if (!address || !nbytes || flags > 7) return INVALID_VALUE;
    void *begin = mmap(NULL, nbytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (begin == MAP_FAILED) return OUT_OF_MEMORY;
    struct range range = {.begin = (deviceptr)begin,
                          .nbytes = nbytes,
                          .kind = RANGE_PINNED,
                          .flags = flags,
                          .device = context->device,
                          .context = context,
                          .accessible = true};
    if (!range_add(range)) {
        munmap(begin, nbytes);
        return OUT_OF_MEMORY;
    }
    *address = begin;
    return OK;
}

/* Unified addressing maps every pinned allocation, whatever was asked: the driver reports so. */
result cuMemHostAlloc(void **address, size_t nbytes, unsigned flags) {
    GATE();
    return allocate(address, nbytes, flags | HOST_DEVICEMAP);
}

result cuMemAllocHost_v2(void **address, size_t nbytes) {
    GATE();
    return allocate(address, nbytes, HOST_PORTABLE | HOST_DEVICEMAP);
}

static void release(struct range *range) {
    munmap((void *)range->begin, range->nbytes);
    range_remove(range);
}

result cuMemFreeHost(void *address) {
    GATE();
    LOCKED();
    if (!address) return OK;
    struct range *range = range_exact((deviceptr)address);
    if (!range || range->kind != RANGE_PINNED) return INVALID_VALUE;
    release(range);
    return OK;
}

result cuMemHostRegister_v2(void *address, size_t nbytes, unsigned flags) {
    GATE();
    LOCKED();
    struct context *context;
    result failed = context_need(&context);
    if (failed) return failed;
    uint64_t end;
    if (!address || !nbytes || flags > 15 || !size_add((deviceptr)address, nbytes, &end)) return INVALID_VALUE;
    if (range_overlaps((deviceptr)address, nbytes)) return ALREADY_REGISTERED;
    struct range range = {.begin = (deviceptr)address,
                          .nbytes = nbytes,
                          .kind = RANGE_REGISTERED,
                          .flags = flags,
                          .device = context->device,
                          .context = context,
                          .accessible = true};
    return range_add(range) ? OK : OUT_OF_MEMORY;
}

result cuMemHostUnregister(void *address) {
    GATE();
    LOCKED();
    struct range *range = range_at((deviceptr)address);
    bool registered = range && range->kind == RANGE_REGISTERED;
    if (!address || (registered && range->begin != (deviceptr)address)) return INVALID_VALUE;
    if (!registered) return NOT_REGISTERED;
    range_remove(range);
    return OK;
}

static struct range *host_range(const void *address) {
    struct range *range = range_at((deviceptr)address);
    return range && (range->kind == RANGE_PINNED || range->kind == RANGE_REGISTERED) ? range : NULL;
}

result cuMemHostGetDevicePointer_v2(deviceptr *device_address, void *address, unsigned flags) {
    GATE();
    LOCKED();
    if (!device_address || flags || !host_range(address)) return INVALID_VALUE;
    *device_address = (deviceptr)address;
    return OK;
}

result cuMemHostGetFlags(unsigned *flags, void *address) {
    GATE();
    LOCKED();
    struct range *range = host_range(address);
    if (!flags || !range) return INVALID_VALUE;
    *flags = range->flags;
    return OK;
}

void host_free_context(struct context *context) {
    for (struct range *range = range_after(0); range;) {
        deviceptr end = range->begin + range->nbytes;
        if (range->context == context && range->kind == RANGE_PINNED)
            release(range);
        else if (range->context == context && range->kind == RANGE_REGISTERED)
            range_remove(range);
        range = range_after(end);
    }
}
