// The context is made on purpose, by a call that is checked, and destroyed on purpose when the last owner is gone.
#include "../device_array.h"
#include "../step.h"
#include <iostream>

void work() {
    check(cudaFree(nullptr), "making the context");
    step("cudaFree(0)");
    auto values = device_array<int>(1024);
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
    return 0;
}
