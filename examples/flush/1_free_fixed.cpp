// The array owns its memory: leaving its scope is enough.
#include "../device_array.h"
#include "../step.h"
#include <stdio.h>

void work() {
    auto values = device_array<int>(1024 * 1024); // 4 MiB
    step("allocated");
}

int main() {
    step("started");
    try {
        work();
        step("freed");
    } catch (const CudaError &error) {
        fprintf(stderr, "%s\n", error.what());
        return 1;
    }
    return 0;
}
