// The secret is erased by a call that is checked and awaited, whatever happens to the work before it, and the array
// frees its memory afterwards.
#include "../device_array.h"
#include "../step.h"
#include <stdio.h>

const size_t COUNT = 1024 * 1024; // 4 MiB

void erase(const DeviceArray<int> &secret) {
    check(cudaMemset(secret.get(), 0, COUNT * sizeof(int)), "cudaMemset");
    check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
}

void work(const DeviceArray<int> &) {
    throw std::runtime_error("a bad batch");
}

void with_secret() {
    auto secret = device_array<int>(COUNT);
    step("allocated");
    try {
        work(secret);
    } catch (const std::runtime_error &error) {
        fprintf(stderr, "error: %s\n", error.what());
    }
    erase(secret);
    step("zeroed");
}

int main() {
    step("started");
    try {
        with_secret();
        step("freed");
    } catch (const CudaError &error) {
        fprintf(stderr, "%s\n", error.what());
        return 1;
    }
    return 0;
}
