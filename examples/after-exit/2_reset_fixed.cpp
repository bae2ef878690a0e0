// A process that goes on without the GPU resets it after the last owner is gone, and checks that call: memory that a
// reset has freed must not be used any more. A process that ends needs no reset.
#include "../step.h"
#include "vram.hpp"
#include <iostream>

void work() {
    vram::DeviceArray<float> values(256 * 1024 * 1024); // 1 GiB
    step("allocated");
}

int main() {
    step("started");
    try {
        work();
        step("freed");
        VRAM_CHECK(cudaDeviceReset());
        step("reset");
    } catch (const vram::Error &error) {
        std::cerr << error.what() << std::endl;
        return 1;
    }
    std::cout << "the memory is free and the device is reset" << std::endl;
    return 0;
}
