/* A driver that answers at once, so that what callers add on top of it can be measured alone:
 * the calls that bench/pair.py makes, and nothing behind them. */
#include <stddef.h>
#include <stdint.h>

#define API __attribute__((visibility("default")))

API int cuInit(unsigned flags) {
    return (int)flags;
}

API int cuDevicePrimaryCtxRetain(void **context, int device) {
    *context = (char *)64 + device;
    return 0;
}

API int cuCtxSetCurrent(void *context) {
    return context == NULL;
}

API int cuMemAlloc_v2(uint64_t *pointer, size_t nbytes) {
    *pointer = 0x700000000000 + nbytes;
    return 0;
}

API int cuMemFree_v2(uint64_t pointer) {
    return pointer == 0;
}

API int cuPointerGetAttribute(uint64_t *value, int attribute, uint64_t pointer) {
    *value = (uint64_t)attribute + pointer;
    return 0;
}
