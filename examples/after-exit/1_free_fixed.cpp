// The array owns its memory: the end of the block frees it. A GPU without room is an error and exit code 1.
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
    } catch (const vram::Error &error) {
        std::cerr << error.what() << std::endl;
        return 1;
    }
    std::cout << "the memory is free" << std::endl;
    return 0;
}
