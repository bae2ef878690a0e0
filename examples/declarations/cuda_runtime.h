// What a program that includes the runtime's header finds there: the calls, and in C++ their forms with types.
#pragma once

#include "cuda_runtime_api.h"

#ifdef __cplusplus
template <class T> cudaError_t cudaMalloc(T **pointer, size_t nbytes) {
    return cudaMalloc(reinterpret_cast<void **>(pointer), nbytes);
}
template <class T> cudaError_t cudaMallocAsync(T **pointer, size_t nbytes, cudaStream_t stream) {
    return cudaMallocAsync(reinterpret_cast<void **>(pointer), nbytes, stream);
}
#endif
