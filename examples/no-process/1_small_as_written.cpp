// It does not compile as C++: <cuda.h> declares the driver's calls, and these are the runtime's. (nvcc accepts it in a
// file that ends in .cu, because it includes cuda_runtime.h there by itself.) Then its 4 KiB cost 529 MiB: a context,
// and 2 MiB that small allocations share. All of it is free when the process ends, also without cudaFree.
#include "../step.h"
#include <cuda.h>
#include <iostream>

int main() {
    step("started");
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
