// A process that goes on without the GPU resets it after the last owner is gone, and checks that call: an owner that
// outlives the reset would free a pointer that is no longer valid. A process that ends needs no reset.
#include "../device_array.h"
#include "../step.h"
#include <iostream>

void work() {
    auto values = device_array<float>(256 * 1024 * 1024); // 1 GiB
    step("allocated");
}

int main() {
    step("started");
    try {
        work();
        step("freed");
        check(cudaDeviceReset(), "cudaDeviceReset");
        step("reset");
    } catch (const CudaError &error) {
        std::cerr << error.what() << std::endl;
        return 1;
    }
    std::cout << "the memory is free and the device is reset" << std::endl;
    return 0;
}
