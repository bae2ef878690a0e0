// The context is made on purpose, by a call that is checked, and destroyed on purpose when the last owner is gone.
#include "../step.h"
#include "vram.hpp"
#include <iostream>

void work() {
    VRAM_CHECK(cudaFree(nullptr));
    step("cudaFree(0)");
    vram::DeviceArray<int> values(1024);
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
    return 0;
}
