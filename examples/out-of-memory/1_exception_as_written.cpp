// It never frees its 1 GiB, with or without an exception: the only throw comes when nothing was allocated. Run again
// and again it leaks nothing, because the end of each process frees all; inside a process that goes on it leaks 1 GiB a
// time. <stdexcept> is missing: it compiles only because the standard library's <iostream> happens to include it.
#include "../step.h"
#include <cuda_runtime.h>
#include <iostream>

int main() {
    step("started");
    cudaError_t code;
    float *values;
    size_t nbytes = 1024 * 1024 * 1024;

    try {
        code = cudaMalloc((void **)&values, nbytes);
        if (code != cudaSuccess) {
            throw std::runtime_error("no memory");
        }
        step("allocated");
    } catch (const std::runtime_error &error) {
        std::cerr << "error: " << error.what() << std::endl;
    }
    step("after the try block");

    return 0;
}
