// Arrays and streams have owners: an exception destroys the streams and frees both arrays, and each cudaFree waits for
// the device. The 2 MiB that a second stream takes stay with the context, also when the stream is destroyed.
#include "../device_array.h"
#include "../step.h"
#include <stdio.h>

struct Stream {
    Stream() {
        check(cudaStreamCreate(&handle), "cudaStreamCreate");
    }
    Stream(const Stream &) = delete;
    ~Stream() {
        cudaStreamDestroy(handle);
    }
    cudaStream_t handle;
};

void work() {
    const size_t count = 1024 * 1024; // 4 MiB
    auto first = device_array<int>(count);
    step("first allocated");
    auto second = device_array<int>(count);
    step("second allocated");
    Stream one, other;
    step("two streams");
    check(cudaMemsetAsync(first.get(), 1, count * sizeof(int), one.handle), "cudaMemsetAsync");
    check(cudaMemsetAsync(second.get(), 2, count * sizeof(int), other.handle), "cudaMemsetAsync");
    throw std::runtime_error("a bad batch");
}

int main() {
    step("started");
    try {
        work();
    } catch (const CudaError &error) {
        fprintf(stderr, "%s\n", error.what());
        return 1;
    } catch (const std::runtime_error &error) {
        fprintf(stderr, "error: %s\n", error.what());
        step("both freed");
    }
    return 0;
}
