// The array owns its memory: leaving its scope is enough.
#include "../step.h"
#include "vram.hpp"
#include <stdio.h>

void work() {
    vram::DeviceArray<int> values(1024 * 1024); // 4 MiB
    step("allocated");
}

int main() {
    step("started");
    try {
        work();
        step("freed");
    } catch (const vram::Error &error) {
        fprintf(stderr, "%s\n", error.what());
        return 1;
    }
    return 0;
}
