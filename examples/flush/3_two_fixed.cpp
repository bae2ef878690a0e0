// Arrays and the stream have owners: an exception destroys the stream and frees both arrays, whose work cudaFree
// waits for.
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
    Stream stream;
    check(cudaMemsetAsync(first.get(), 1, count * sizeof(int), stream.handle), "cudaMemsetAsync");
    check(cudaMemsetAsync(second.get(), 2, count * sizeof(int), nullptr), "cudaMemsetAsync"); // the default stream
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
