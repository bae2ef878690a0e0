// Zeroing frees nothing, and plain memory needs none: its next owner finds zeros anyway. Pools hand over old bytes, and
// there it is needed. But nobody checks cudaMemset: where it fails, the secret is still there and the exit code is 0.
#include "../step.h"
#include <cuda_runtime.h>
#include <stdio.h>

int main() {
    step("started");
    int *values;
    size_t nbytes = 1024 * 1024 * sizeof(int);

    cudaMalloc((void **)&values, nbytes);
    step("allocated");

    cudaMemset(values, 0, nbytes);
    step("zeroed");
    cudaFree(values);
    step("freed");
    return 0;
}
