// With the runtime's header it compiles, and the array owns its memory. The host writes to it: no device memory.
#include "../device_array.h"
#include "../step.h"
#include <iostream>

void work() {
    auto values = managed_array<int>(1024);
    step("allocated");
    for (int index = 0; index < 1024; index++) values[index] = index;
    step("written by the host");
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
    return 0;
}
