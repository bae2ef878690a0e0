// The secret is erased by a call that is checked and awaited, whatever happens to the work before it, and the array
// frees its memory afterwards.
#include "../step.h"
#include "vram.hpp"
#include <stdio.h>

const size_t COUNT = 1024 * 1024; // 4 MiB

void erase(const vram::DeviceArray<int> &secret) {
    VRAM_CHECK(cudaMemset(secret.data(), 0, secret.size_bytes()));
    VRAM_CHECK(cudaDeviceSynchronize());
}

void work(const vram::DeviceArray<int> &) {
    throw std::runtime_error("a bad batch");
}

void with_secret() {
    vram::DeviceArray<int> secret(COUNT);
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
    } catch (const vram::Error &error) {
        fprintf(stderr, "%s\n", error.what());
        return 1;
    }
    return 0;
}
