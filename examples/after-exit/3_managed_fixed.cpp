// The array owns its memory. Managed memory uses device memory where the device has written, 128 MiB of the 1 GiB here,
// until the end of the block frees it all. (The driver takes it in pieces of 128 MiB, also for the first byte.)
#include "../step.h"
#include "vram.hpp"
#include <iostream>

void work() {
    vram::ManagedArray<float> values(256 * 1024 * 1024); // 1 GiB
    step("allocated");
    VRAM_CHECK(cudaMemset(values.data(), 0, 128 * 1024 * 1024));
    VRAM_CHECK(cudaDeviceSynchronize());
    step("128 MiB written by the device");
}

int main() {
    step("started");
    try {
        work();
        step("freed");
    } catch (const vram::Error &error) {
        std::cerr << error.what() << std::endl;
        return 1;
    }
    std::cout << "the managed memory is free" << std::endl;
    return 0;
}
