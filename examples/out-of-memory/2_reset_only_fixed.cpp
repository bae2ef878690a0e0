// A context with an owner of its own: made before any memory, destroyed after it, also when an exception comes between.
#include "../device_array.h"
#include "../step.h"
#include <iostream>

struct Context {
    Context() {
        check(cudaFree(nullptr), "making the context");
    }
    Context(const Context &) = delete;
    ~Context() {
        cudaDeviceReset();
    }
};

void work() {
    Context context;
    step("context");
    auto values = device_array<float>(256 * 1024 * 1024); // 1 GiB
    step("allocated");
    throw std::runtime_error("a bad batch");
}

int main() {
    step("started");
    try {
        work();
    } catch (const CudaError &error) {
        std::cerr << error.what() << std::endl;
        return 1;
    } catch (const std::runtime_error &error) {
        std::cerr << "error: " << error.what() << std::endl;
        step("reset");
    }
    return 0;
}
