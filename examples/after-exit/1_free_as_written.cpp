// Nothing stays: after cudaFree the 1024 MiB are free at once, and the context's 527 MiB when the process ends.
// What is wrong is that no call is checked. On a GPU without room for 1 GiB it allocates nothing, frees nothing,
// reports that the memory is free, and exits with 0.
#include "../step.h"
#include <cuda_runtime.h>
#include <iostream>

int main() {
    step("started");
    float *values;
    size_t nbytes = 1024 * 1024 * 1024;

    cudaMalloc((void **)&values, nbytes);
    step("allocated");

    cudaFree(values);
    step("freed");

    std::cout << "the memory is free" << std::endl;
    return 0;
}
