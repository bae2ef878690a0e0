// The few declarations of the CUDA runtime that the examples use, so that they compile on machines without its
// toolkit. They are linked with the virtual GPU's own runtime library. With nvcc, its own header is used.
#pragma once

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef enum { cudaSuccess = 0 } cudaError_t;
typedef struct CUstream_st *cudaStream_t;
enum { cudaMemAttachGlobal = 1 };

const char *cudaGetErrorString(cudaError_t code);
cudaError_t cudaMalloc(void **pointer, size_t nbytes);
cudaError_t cudaFree(void *pointer);
cudaError_t cudaMemset(void *pointer, int value, size_t nbytes);
cudaError_t cudaMemsetAsync(void *pointer, int value, size_t nbytes, cudaStream_t stream);
cudaError_t cudaStreamCreate(cudaStream_t *stream);
cudaError_t cudaStreamDestroy(cudaStream_t stream);
cudaError_t cudaDeviceSynchronize(void);
cudaError_t cudaDeviceReset(void);

#ifdef __cplusplus
cudaError_t cudaMallocManaged(void **pointer, size_t nbytes, unsigned int flags = cudaMemAttachGlobal);
}
#else
cudaError_t cudaMallocManaged(void **pointer, size_t nbytes, unsigned int flags);
#endif
