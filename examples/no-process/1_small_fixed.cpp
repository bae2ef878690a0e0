// With the runtime's header it compiles, and the array owns its memory.
#include "../device_array.h"
#include "../step.h"
#include <iostream>

void work() {
    auto values = device_array<int>(1024);
    step("allocated");
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
