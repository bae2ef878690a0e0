// Nothing stays, and each cudaFree waits for the device. What is wrong shows when the program grows: for every array
// somebody must add a line that frees it, and a return or an exception in between skips them all.
#include "../step.h"
#include <cuda_runtime.h>
#include <stdio.h>

int main() {
    step("started");
    int *first, *second;
    size_t nbytes = 1024 * 1024 * sizeof(int);

    cudaMalloc((void **)&first, nbytes);
    step("first allocated");
    cudaMalloc((void **)&second, nbytes);
    step("second allocated");

    cudaFree(first);
    step("first freed");
    cudaFree(second);
    step("second freed");
    return 0;
}
