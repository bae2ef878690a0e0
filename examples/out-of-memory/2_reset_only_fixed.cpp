// A context with an owner of its own: made before any memory, destroyed after it, also when an exception comes between.
#include "../step.h"
#include "vram.hpp"
#include <iostream>

struct Context {
    Context() {
        VRAM_CHECK(cudaFree(nullptr));
    }
    Context(const Context &) = delete;
    ~Context() {
        cudaDeviceReset();
    }
};

void work() {
    Context context;
    step("context");
    vram::DeviceArray<float> values(256 * 1024 * 1024); // 1 GiB
    step("allocated");
    throw std::runtime_error("a bad batch");
}

int main() {
    step("started");
    try {
        work();
    } catch (const vram::Error &error) {
        std::cerr << error.what() << std::endl;
        return 1;
    } catch (const std::runtime_error &error) {
        std::cerr << "error: " << error.what() << std::endl;
        step("reset");
    }
    return 0;
}
