// Managed memory is not safer: every kind of memory is freed when the process ends. The 1 GiB uses no device memory at
// all here, because nothing on the device touches it; only the context does (527 MiB). No call is checked.
#include "../step.h"
#include <cuda_runtime.h>
#include <iostream>

int main() {
    step("started");
    float *values;
    size_t nbytes = 1024 * 1024 * 1024;

    cudaMallocManaged((void **)&values, nbytes);
    step("allocated");

    cudaFree(values);
    step("freed");

    std::cout << "the managed memory is free" << std::endl;
    return 0;
}
