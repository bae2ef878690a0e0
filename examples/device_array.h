// An owner for device memory: freed at the end of its scope, also when an exception ends the scope.
//
//     auto values = device_array<float>(count);     // throws CudaError where there is no room
//     kernel<<<blocks, threads>>>(values.get());
#pragma once

#include <cstddef>
#include <cstdio>
#include <cuda_runtime.h>
#include <memory>
#include <stdexcept>
#include <string>

struct CudaError : std::runtime_error {
    CudaError(const char *call, cudaError_t code)
        : std::runtime_error(std::string(call) + " failed: " + cudaGetErrorString(code)) {
    }
};

inline void check(cudaError_t code, const char *call) {
    if (code != cudaSuccess) throw CudaError(call, code);
}

struct CudaFree {
    // A destructor must not throw. An error here usually comes from earlier work, which cudaFree waits for.
    void operator()(void *pointer) const {
        if (cudaError_t code = cudaFree(pointer)) std::fprintf(stderr, "%s\n", CudaError("cudaFree", code).what());
    }
};

template <class T> using DeviceArray = std::unique_ptr<T[], CudaFree>;

template <class T> DeviceArray<T> device_array(std::size_t count) {
    void *pointer = nullptr;
    check(cudaMalloc(&pointer, count * sizeof(T)), "cudaMalloc");
    return DeviceArray<T>(static_cast<T *>(pointer));
}

template <class T> DeviceArray<T> managed_array(std::size_t count) {
    void *pointer = nullptr;
    check(cudaMallocManaged(&pointer, count * sizeof(T), cudaMemAttachGlobal), "cudaMallocManaged");
    return DeviceArray<T>(static_cast<T *>(pointer));
}
