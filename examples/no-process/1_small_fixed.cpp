// With the runtime's header it compiles, and the array owns its memory.
#include "../step.h"
#include "vram.hpp"
#include <iostream>

void work() {
    vram::DeviceArray<int> values(1024);
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
    return 0;
}
