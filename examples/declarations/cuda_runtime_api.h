// The few declarations of the CUDA runtime that vram.hpp, the examples and their tests use, so that they compile on
// machines without its toolkit. They are linked with the virtual GPU's own runtime library. With nvcc, its own headers
// are used.
#pragma once

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef enum {
    cudaSuccess = 0,
    cudaErrorInvalidValue = 1,
    cudaErrorMemoryAllocation = 2,
    cudaErrorCudartUnloading = 4,
    cudaErrorInvalidDevice = 101,
    cudaErrorIllegalAddress = 700,
    cudaErrorContextIsDestroyed = 709,
    cudaErrorUnknown = 999
} cudaError_t;
typedef struct CUstream_st *cudaStream_t;
typedef struct CUmemPoolHandle_st *cudaMemPool_t;
enum { cudaMemAttachGlobal = 1 };
enum { cudaHostAllocDefault = 0, cudaHostAllocPortable = 1 };
enum cudaMemcpyKind { cudaMemcpyDefault = 4 };
enum cudaMemPoolAttr {
    cudaMemPoolAttrReleaseThreshold = 4,
    cudaMemPoolAttrReservedMemCurrent = 5,
    cudaMemPoolAttrUsedMemCurrent = 7
};

const char *cudaGetErrorName(cudaError_t code);
const char *cudaGetErrorString(cudaError_t code);
cudaError_t cudaGetLastError(void);
cudaError_t cudaPeekAtLastError(void);
cudaError_t cudaGetDevice(int *device);
cudaError_t cudaGetDeviceCount(int *count);
cudaError_t cudaSetDevice(int device);
cudaError_t cudaDeviceGetPCIBusId(char *text, int length, int device);
cudaError_t cudaDeviceSynchronize(void);
cudaError_t cudaDeviceReset(void);
cudaError_t cudaMemGetInfo(size_t *free, size_t *total);
cudaError_t cudaMalloc(void **pointer, size_t nbytes);
cudaError_t cudaMallocAsync(void **pointer, size_t nbytes, cudaStream_t stream);
cudaError_t cudaMallocFromPoolAsync(void **pointer, size_t nbytes, cudaMemPool_t pool, cudaStream_t stream);
cudaError_t cudaHostAlloc(void **pointer, size_t nbytes, unsigned int flags);
cudaError_t cudaFree(void *pointer);
cudaError_t cudaFreeAsync(void *pointer, cudaStream_t stream);
cudaError_t cudaFreeHost(void *pointer);
cudaError_t cudaMemset(void *pointer, int value, size_t nbytes);
cudaError_t cudaMemsetAsync(void *pointer, int value, size_t nbytes, cudaStream_t stream);
cudaError_t cudaMemcpy(void *to, const void *from, size_t nbytes, enum cudaMemcpyKind kind);
cudaError_t cudaStreamCreate(cudaStream_t *stream);
cudaError_t cudaStreamDestroy(cudaStream_t stream);
cudaError_t cudaStreamSynchronize(cudaStream_t stream);
cudaError_t cudaDeviceGetDefaultMemPool(cudaMemPool_t *pool, int device);
cudaError_t cudaDeviceGetMemPool(cudaMemPool_t *pool, int device);
cudaError_t cudaMemPoolGetAttribute(cudaMemPool_t pool, enum cudaMemPoolAttr attribute, void *value);
cudaError_t cudaMemPoolSetAttribute(cudaMemPool_t pool, enum cudaMemPoolAttr attribute, void *value);
cudaError_t cudaMemPoolTrimTo(cudaMemPool_t pool, size_t keep);

#ifdef __cplusplus
cudaError_t cudaMallocManaged(void **pointer, size_t nbytes, unsigned int flags = cudaMemAttachGlobal);
}
#else
cudaError_t cudaMallocManaged(void **pointer, size_t nbytes, unsigned int flags);
#endif
