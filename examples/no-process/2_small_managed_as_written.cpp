// It does not compile as C++ either, for the same reason. Managed memory belongs to its process like every other kind:
// the 4 KiB use no device memory until the device touches them, and end with the process.
#include "../step.h"
#include <cuda.h>
#include <iostream>

int main() {
    step("started");
    int *values;
    size_t nbytes = 1024 * sizeof(int);

    cudaError_t code = cudaMallocManaged((void **)&values, nbytes);
    if (code != cudaSuccess) {
        std::cerr << "no managed memory: " << cudaGetErrorString(code) << std::endl;
        return 1;
    }
    step("allocated");

    code = cudaFree(values);
    if (code != cudaSuccess) {
        std::cerr << "not freed: " << cudaGetErrorString(code) << std::endl;
        return 1;
    }
    step("freed");

    return 0;
}
