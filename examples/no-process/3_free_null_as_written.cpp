// It does not compile as C++ either. cudaFree(0) is no error: it succeeds, frees nothing, and makes the context, 527 MiB
// that stay until the process ends. Where a context cannot be made it fails, and here its result is ignored.
#include "../step.h"
#include <cuda.h>
#include <iostream>

int main() {
    step("started");
    cudaFree(0);
    step("cudaFree(0)");

    int *values;
    size_t nbytes = 1024 * sizeof(int);
    cudaError_t code = cudaMalloc((void **)&values, nbytes);
    if (code != cudaSuccess) {
        std::cerr << "no memory: " << cudaGetErrorString(code) << std::endl;
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
