/* First versions of calls whose arguments never changed: programs that link them by name still run. */
#include "driver.h"

result cuCtxCreate_v2(struct context **context, unsigned flags, int device);
result cuCtxDestroy_v2(struct context *context);
result cuCtxPushCurrent_v2(struct context *context);
result cuCtxPopCurrent_v2(struct context **context);
result cuStreamDestroy_v2(struct stream *stream);
result cuEventDestroy_v2(struct event *event);
result cuDevicePrimaryCtxRelease_v2(int device);
result cuDevicePrimaryCtxReset_v2(int device);
result cuDevicePrimaryCtxSetFlags_v2(int device, unsigned flags);
result cuIpcOpenMemHandle_v2(deviceptr *address, struct opaque64 handle, unsigned flags);
result cuMemHostRegister_v2(void *address, size_t nbytes, unsigned flags);
result cuStreamGetCaptureInfo_v2(void *handle, int *status, uint64_t *id, void **graph, void *nodes, size_t *count);

API result cuCtxCreate(struct context **context, unsigned flags, int device) {
    return cuCtxCreate_v2(context, flags, device);
}

API result cuCtxDestroy(struct context *context) {
    return cuCtxDestroy_v2(context);
}

API result cuCtxPushCurrent(struct context *context) {
    return cuCtxPushCurrent_v2(context);
}

API result cuCtxPopCurrent(struct context **context) {
    return cuCtxPopCurrent_v2(context);
}

/* Usage counts of contexts: long deprecated, and a context has just one owner. */
API result cuCtxAttach(struct context **context, unsigned flags) {
    GATE();
    (void)context;
    (void)flags;
    return NOT_SUPPORTED;
}

API result cuCtxDetach(struct context *context) {
    return cuCtxDestroy_v2(context);
}

API result cuStreamDestroy(struct stream *stream) {
    return cuStreamDestroy_v2(stream);
}

API result cuEventDestroy(struct event *event) {
    return cuEventDestroy_v2(event);
}

API result cuDevicePrimaryCtxRelease(int device) {
    return cuDevicePrimaryCtxRelease_v2(device);
}

API result cuDevicePrimaryCtxReset(int device) {
    return cuDevicePrimaryCtxReset_v2(device);
}

API result cuDevicePrimaryCtxSetFlags(int device, unsigned flags) {
    return cuDevicePrimaryCtxSetFlags_v2(device, flags);
}

API result cuIpcOpenMemHandle(deviceptr *address, struct opaque64 handle, unsigned flags) {
    return cuIpcOpenMemHandle_v2(address, handle, flags);
}

API result cuMemHostRegister(void *address, size_t nbytes, unsigned flags) {
    return cuMemHostRegister_v2(address, nbytes, flags);
}

API result cuStreamGetCaptureInfo(void *handle, int *status, uint64_t *id) {
    return cuStreamGetCaptureInfo_v2(handle, status, id, NULL, NULL, NULL);
}
