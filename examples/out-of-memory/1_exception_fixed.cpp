// The array owns its memory, so an exception on the way frees it: 527 MiB, the context, are left when it is caught. The
// loop shows that a process may fail like this as often as it wants.
#include "../step.h"
#include "vram.hpp"
#include <iostream>
#include <stdexcept>

void work() {
    vram::DeviceArray<float> values(256 * 1024 * 1024); // 1 GiB
    step("allocated");
    throw std::runtime_error("a bad batch");
}

int main() {
    step("started");
    for (int attempt = 0; attempt < 2; attempt++) {
        try {
            work();
        } catch (const vram::Error &error) {
            std::cerr << error.what() << std::endl;
            return 1;
        } catch (const std::runtime_error &error) {
            std::cerr << "error: " << error.what() << std::endl;
            step("caught");
        }
    }
    return 0;
}
