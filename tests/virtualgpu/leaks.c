/* Allocates, lets steps fail, and frees, without Python: `make sanitize` looks for what was lost at the end. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

typedef unsigned long long u64;

int cuInit(unsigned flags);
int cuDevicePrimaryCtxRetain(void **context, int device);
int cuDevicePrimaryCtxRelease_v2(int device);
int cuCtxSetCurrent(void *context);
int cuMemAlloc_v2(u64 *address, size_t nbytes);
int cuMemAllocManaged(u64 *address, size_t nbytes, unsigned flags);
int cuMemAllocAsync(u64 *address, size_t nbytes, void *stream);
int cuMemFree_v2(u64 address);
int cuMemCreate(u64 *handle, size_t nbytes, const void *prop, u64 flags);
int cuMemRelease(u64 handle);
int cuMemAddressReserve(u64 *address, size_t nbytes, size_t alignment, u64 wanted, u64 flags);
int cuMemAddressFree(u64 address, size_t nbytes);
int cuMemMap(u64 address, size_t nbytes, size_t offset, u64 handle, u64 flags);
int cuMemUnmap(u64 address, size_t nbytes);
int cuMemExportToShareableHandle(void *descriptor, u64 handle, int type, u64 flags);
int cuMemImportFromShareableHandle(u64 *handle, void *descriptor, int type);
int cuStreamCreate(void **stream, unsigned flags);
int cuStreamDestroy_v2(void *stream);
int cuStreamSynchronize(void *stream);
int cuLaunchHostFunc(void *stream, void (*function)(void *), void *data);
int cuMemsetD8Async(u64 address, unsigned char value, size_t count, void *stream);

enum { PAGE = 2 << 20 };

static void fail(int step) {
    char path[4096], line[64];
    snprintf(path, sizeof path, "%s/faults", getenv("VRAM_VIRTUAL_GPU"));
    snprintf(line, sizeof line, "step.* nth=%d error=2\n%*s", step, step % 50, "");
    FILE *file = fopen(path, "w");
    if (!file) exit(2);
    fputs(step ? line : "", file);
    fclose(file);
}

static void called(void *data) {
    *(volatile int *)data += 1;
}

/* Returns how many of the calls failed. */
static int all_calls(void) {
    const int prop[8] = {1, 1, 1, 0}; /* pinned, exportable, on device 0 */
    int count = 0, failed = 0, descriptor = -1;
    u64 small = 0, large = 0, managed = 0, pooled = 0, handle = 0, imported = 0, place = 0;
    void *stream = NULL;
    failed += cuMemAlloc_v2(&small, 1000) != 0;
    failed += cuMemAlloc_v2(&large, 3 * PAGE) != 0;
    failed += cuMemAllocManaged(&managed, PAGE, 1) != 0;
    failed += cuMemAllocAsync(&pooled, 1000, NULL) != 0;
    failed += cuMemCreate(&handle, PAGE, prop, 0) != 0;
    failed += cuMemAddressReserve(&place, PAGE, 0, 0, 0) != 0;
    int unmapped = handle && place ? cuMemMap(place, PAGE, 0, handle, 0) : 1;
    if (handle) failed += cuMemExportToShareableHandle(&descriptor, handle, 1, 0) != 0;
    if (descriptor >= 0) failed += cuMemImportFromShareableHandle(&imported, (void *)(intptr_t)descriptor, 1) != 0;
    failed += cuStreamCreate(&stream, 0) != 0;
    if (stream) failed += cuLaunchHostFunc(stream, called, &count) != 0;
    if (stream && small) failed += cuMemsetD8Async(small, 1, 100, NULL) != 0;
    failed += unmapped != 0;
    if (stream) cuStreamSynchronize(stream);
    cuStreamSynchronize(NULL);
    if (stream) cuStreamDestroy_v2(stream);
    if (imported) cuMemRelease(imported);
    if (descriptor >= 0) close(descriptor);
    if (!unmapped) cuMemUnmap(place, PAGE);
    if (place) cuMemAddressFree(place, PAGE);
    if (handle) cuMemRelease(handle);
    u64 addresses[] = {pooled, managed, large, small};
    for (int i = 0; i < 4; i++)
        if (addresses[i]) cuMemFree_v2(addresses[i]);
    return failed;
}

int main(void) {
    void *context = NULL;
    if (cuInit(0) || cuDevicePrimaryCtxRetain(&context, 0) || cuCtxSetCurrent(context)) return 2;
    for (int step = 1; step < 100; step++) {
        fail(step);
        if (!all_calls()) break;
        if (step == 99) return 3;
    }
    fail(0);
    if (all_calls()) return 4;
    /* A context that ends frees what was forgotten. */
    u64 forgotten;
    void *stream;
    if (cuMemAlloc_v2(&forgotten, PAGE) || cuMemAllocAsync(&forgotten, 1000, NULL) || cuStreamCreate(&stream, 0)) return 5;
    return cuDevicePrimaryCtxRelease_v2(0);
}
