// Nothing stays: the memory is free the moment cudaFree returns, and nothing has to be flushed. It is 4 MiB, not the
// 1 MB that such a size is taken for: a million ints have four bytes each. No call is checked.
#include "../step.h"
#include <cuda_runtime.h>
#include <stdio.h>

int main() {
    step("started");
    int *values;
    size_t nbytes = 1024 * 1024 * sizeof(int);

    cudaMalloc((void **)&values, nbytes);
    step("allocated");

    cudaFree(values);
    step("freed");
    return 0;
}
