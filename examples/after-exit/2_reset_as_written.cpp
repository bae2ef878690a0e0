// It frees everything: 3 MiB stay after the reset, until the process ends. Two of its calls are not needed for that:
// cudaFree waits for the device by itself, and the end of the process frees the context. What is wrong is that the
// reset destroys the memory of every other library in the process too, and that no call is checked.
#include "../step.h"
#include <cuda_runtime.h>
#include <iostream>

int main() {
    step("started");
    float *values;
    size_t nbytes = 1024 * 1024 * 1024;

    cudaMalloc((void **)&values, nbytes);
    step("allocated");

    cudaDeviceSynchronize();
    step("synchronized");
    cudaFree(values);
    step("freed");

    cudaDeviceReset();
    step("reset");

    std::cout << "the memory is free and the device is reset" << std::endl;
    return 0;
}
