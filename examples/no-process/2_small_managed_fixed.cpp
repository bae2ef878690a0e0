// With the runtime's header it compiles, and the array owns its memory. The host writes to it: no device memory.
#include "../step.h"
#include "vram.hpp"
#include <iostream>

void work() {
    vram::ManagedArray<int> values(1024);
    step("allocated");
    for (int &value : values.view()) value = 1;
    step("written by the host");
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
