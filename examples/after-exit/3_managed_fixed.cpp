// The array owns its memory. Managed memory uses device memory where the device has written, 128 MiB of the 1 GiB here,
// until the end of the block frees it all. (The driver takes it in pieces of 128 MiB, also for the first byte.)
#include "../device_array.h"
#include "../step.h"
#include <iostream>

void work() {
    auto values = managed_array<float>(256 * 1024 * 1024); // 1 GiB
    step("allocated");
    check(cudaMemset(values.get(), 0, 128 * 1024 * 1024), "cudaMemset");
    check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
    step("128 MiB written by the device");
}

int main() {
    step("started");
    try {
        work();
        step("freed");
    } catch (const CudaError &error) {
        std::cerr << error.what() << std::endl;
        return 1;
    }
    std::cout << "the managed memory is free" << std::endl;
    return 0;
}
