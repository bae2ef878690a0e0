/* Streams and events. */
#include "runtime.h"

_Thread_local bool per_thread_streams;

void *stream_meant(void *stream) {
    enum { PER_THREAD_STREAM = 2 };
    return !stream && per_thread_streams ? (void *)PER_THREAD_STREAM : stream;
}

API error cudaStreamCreateWithPriority(void **stream, unsigned flags, int priority) {
    NEED_DRIVER();
    if (!stream) return fail(INVALID_VALUE);
    NEED_CONTEXT();
    return fail(cu.cuStreamCreateWithPriority(stream, flags, priority));
}

API error cudaStreamCreateWithFlags(void **stream, unsigned flags) {
    return cudaStreamCreateWithPriority(stream, flags, 0);
}

API error cudaStreamCreate(void **stream) {
    return cudaStreamCreateWithPriority(stream, 0, 0);
}

API error cudaStreamDestroy(void *stream) {
    NEED_DRIVER();
    NEED_CONTEXT();
    return fail(cu.cuStreamDestroy_v2(stream));
}

/* Most functions of a stream pass on to the driver's function of the same name. */
#define ON_STREAM(name, driver_name, parameters, passed, arguments) \
    API error name parameters { \
        NEED_DRIVER(); \
        NEED_CONTEXT(); \
        return fail(cu.driver_name passed); \
    } \
    PER_THREAD(name, _ptsz, parameters, arguments)

ON_STREAM(cudaStreamQuery, cuStreamQuery, (void *stream), (stream_meant(stream)), (stream))
ON_STREAM(cudaStreamSynchronize, cuStreamSynchronize, (void *stream), (stream_meant(stream)), (stream))
ON_STREAM(cudaStreamGetPriority, cuStreamGetPriority, (void *stream, int *priority), (stream_meant(stream), priority),
          (stream, priority))
ON_STREAM(cudaStreamGetFlags, cuStreamGetFlags, (void *stream, unsigned *flags), (stream_meant(stream), flags),
          (stream, flags))
ON_STREAM(cudaStreamGetId, cuStreamGetId, (void *stream, unsigned long long *id), (stream_meant(stream), id),
          (stream, id))
ON_STREAM(cudaStreamGetDevice, cuStreamGetDevice, (void *stream, int *device), (stream_meant(stream), device),
          (stream, device))
ON_STREAM(cudaStreamWaitEvent, cuStreamWaitEvent, (void *stream, void *event, unsigned flags),
          (stream_meant(stream), event, flags), (stream, event, flags))
ON_STREAM(cudaStreamAddCallback, cuStreamAddCallback,
          (void *stream, void (*function)(void *, result, void *), void *data, unsigned flags),
          (stream_meant(stream), function, data, flags), (stream, function, data, flags))
ON_STREAM(cudaLaunchHostFunc, cuLaunchHostFunc, (void *stream, void (*function)(void *), void *data),
          (stream_meant(stream), function, data), (stream, function, data))
ON_STREAM(cudaStreamCopyAttributes, cuStreamCopyAttributes, (void *target, void *source), (target, source),
          (target, source))

/* ---- capture: no stream ever captures here ---- */

ON_STREAM(cudaStreamIsCapturing, cuStreamIsCapturing, (void *stream, int *status), (stream_meant(stream), status),
          (stream, status))

static error capture_info(void *stream, int *status, uint64_t *id, void **graph, void *nodes, void *edges,
                          size_t *count) {
    NEED_DRIVER();
    NEED_CONTEXT();
    return fail(cu.cuStreamGetCaptureInfo_v3(stream_meant(stream), status, id, graph, nodes, edges, count));
}

#if RUNTIME_MAJOR == 12
API error cudaStreamGetCaptureInfo(void *stream, int *status, uint64_t *id) {
    return capture_info(stream, status, id, NULL, NULL, NULL, NULL);
}
PER_THREAD(cudaStreamGetCaptureInfo, _ptsz, (void *stream, int *status, uint64_t *id), (stream, status, id))

API error cudaStreamGetCaptureInfo_v2(void *stream, int *status, uint64_t *id, void **graph, void *nodes,
                                      size_t *count) {
    return capture_info(stream, status, id, graph, nodes, NULL, count);
}
PER_THREAD(cudaStreamGetCaptureInfo_v2, _ptsz,
           (void *stream, int *status, uint64_t *id, void **graph, void *nodes, size_t *count),
           (stream, status, id, graph, nodes, count))

API error cudaStreamGetCaptureInfo_v3(void *stream, int *status, uint64_t *id, void **graph, void *nodes, void *edges,
                                      size_t *count) {
    return capture_info(stream, status, id, graph, nodes, edges, count);
}
PER_THREAD(cudaStreamGetCaptureInfo_v3, _ptsz,
           (void *stream, int *status, uint64_t *id, void **graph, void *nodes, void *edges, size_t *count),
           (stream, status, id, graph, nodes, edges, count))
#else
API error cudaStreamGetCaptureInfo(void *stream, int *status, uint64_t *id, void **graph, void *nodes, void *edges,
                                   size_t *count) {
    return capture_info(stream, status, id, graph, nodes, edges, count);
}
PER_THREAD(cudaStreamGetCaptureInfo, _ptsz,
           (void *stream, int *status, uint64_t *id, void **graph, void *nodes, void *edges, size_t *count),
           (stream, status, id, graph, nodes, edges, count))
#endif

API error cudaThreadExchangeStreamCaptureMode(int *mode) {
    NEED_DRIVER();
    NEED_CONTEXT();
    return fail(cu.cuThreadExchangeStreamCaptureMode(mode));
}

/* ---- events ---- */

API error cudaEventCreateWithFlags(void **event, unsigned flags) {
    NEED_DRIVER();
    if (!event) return fail(INVALID_VALUE);
    NEED_CONTEXT();
    return fail(cu.cuEventCreate(event, flags));
}

API error cudaEventCreate(void **event) {
    return cudaEventCreateWithFlags(event, 0);
}

API error cudaEventDestroy(void *event) {
    NEED_DRIVER();
    NEED_CONTEXT();
    return fail(cu.cuEventDestroy_v2(event));
}

ON_STREAM(cudaEventRecordWithFlags, cuEventRecordWithFlags, (void *event, void *stream, unsigned flags),
          (event, stream_meant(stream), flags), (event, stream, flags))

API error cudaEventRecord(void *event, void *stream) {
    return cudaEventRecordWithFlags(event, stream, 0);
}
PER_THREAD(cudaEventRecord, _ptsz, (void *event, void *stream), (event, stream))

API error cudaEventQuery(void *event) {
    NEED_DRIVER();
    NEED_CONTEXT();
    return fail(cu.cuEventQuery(event));
}

API error cudaEventSynchronize(void *event) {
    NEED_DRIVER();
    NEED_CONTEXT();
    return fail(cu.cuEventSynchronize(event));
}

API error cudaEventElapsedTime(float *milliseconds, void *start, void *end) {
    NEED_DRIVER();
    if (!milliseconds) return fail(INVALID_VALUE);
    NEED_CONTEXT();
    return fail(cu.cuEventElapsedTime_v2(milliseconds, start, end));
}

#if RUNTIME_MAJOR == 12
API error cudaEventElapsedTime_v2(float *milliseconds, void *start, void *end) {
    return cudaEventElapsedTime(milliseconds, start, end);
}
#endif
