// A C++ program with the static runtime (nvcc's default): what it keeps, what it frees, what it forgets.
#include <chrono>
#include <cstdio>
#include <cuda_runtime.h>
#include <thread>

static const size_t MIB = 1 << 20;

static void require(cudaError_t code) {
    if (code != cudaSuccess) {
        std::fprintf(stderr, "%s\n", cudaGetErrorString(code));
        std::exit(1);
    }
}

extern "C" __attribute__((noinline)) void honest_step() {
    void *address = nullptr;
    require(cudaMalloc(&address, 5 * MIB));
    require(cudaFree(address));
}

extern "C" __attribute__((noinline)) void planted_leak() {
    void *address = nullptr;
    require(cudaMalloc(&address, 3 * MIB));
    asm volatile(""); // keeps the call from being the last thing, which would leave no frame
}

extern "C" __attribute__((noinline)) void load_model() {
    void *address = nullptr;
    for (int number = 0; number < 6; ++number)
        require(cudaMalloc(&address, 8 * MIB));
    asm volatile("");
}

int main() {
    auto began = std::chrono::steady_clock::now();
    load_model();
    auto each = std::max<std::chrono::steady_clock::duration>(
        4 * (std::chrono::steady_clock::now() - began), std::chrono::milliseconds(400)) / 24;
    for (int number = 0; number < 24; ++number) {
        std::this_thread::sleep_for(each);
        honest_step();
        if (number % 2 == 0)
            planted_leak();
    }
    return 0;
}
