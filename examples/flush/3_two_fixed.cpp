// Arrays and streams have owners: an exception destroys the streams and frees both arrays, and each cudaFree waits for
// the device. The 2 MiB that a second stream takes stay with the context, also when the stream is destroyed.
#include "../step.h"
#include "vram.hpp"
#include <stdio.h>

struct Stream {
    Stream() {
        VRAM_CHECK(cudaStreamCreate(&handle));
    }
    Stream(const Stream &) = delete;
    ~Stream() {
        cudaStreamDestroy(handle);
    }
    cudaStream_t handle;
};

void work() {
    const size_t count = 1024 * 1024; // 4 MiB
    vram::DeviceArray<int> first(count);
    step("first allocated");
    vram::DeviceArray<int> second(count);
    step("second allocated");
    Stream one, other;
    step("two streams");
    VRAM_CHECK(cudaMemsetAsync(first.data(), 1, first.size_bytes(), one.handle));
    VRAM_CHECK(cudaMemsetAsync(second.data(), 2, second.size_bytes(), other.handle));
    throw std::runtime_error("a bad batch");
}

int main() {
    step("started");
    try {
        work();
    } catch (const vram::Error &error) {
        fprintf(stderr, "%s\n", error.what());
        return 1;
    } catch (const std::runtime_error &error) {
        fprintf(stderr, "error: %s\n", error.what());
        step("both freed");
    }
    return 0;
}
