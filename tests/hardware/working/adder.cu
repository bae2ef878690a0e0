// A C++ program that works all the time: one thread adds and compares, one asks for an event without a pause,
// one waits for its stream. It answers each line with how much it has done, and how much of that was wrong.
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <thread>
#include <vector>

static void must(cudaError_t code) {
    if (code == cudaSuccess || code == cudaErrorNotReady) return;
    std::fprintf(stderr, "%s\n", cudaGetErrorString(code));
    std::exit(3);
}

__global__ void add(const int *a, const int *b, int *sum, int count) {
    int at = blockIdx.x * blockDim.x + threadIdx.x;
    if (at < count) sum[at] = a[at] + b[at];
}

int main() {
    const int count = 1 << 22;
    std::vector<int> host(count);
    int *a, *b, *sum;
    cudaStream_t stream;
    cudaEvent_t event;
    for (int at = 0; at < count; at++) host[at] = at;
    for (int **each : {&a, &b, &sum}) must(cudaMalloc(each, count * sizeof(int)));
    must(cudaMemcpy(a, host.data(), count * sizeof(int), cudaMemcpyHostToDevice));
    must(cudaMemcpy(b, host.data(), count * sizeof(int), cudaMemcpyHostToDevice));
    must(cudaStreamCreate(&stream));
    must(cudaEventCreate(&event));
    must(cudaEventRecord(event, stream));
    std::atomic<long> done{0}, wrong{0};
    std::thread([&] {
        for (;;) must(cudaEventQuery(event));
    }).detach();
    std::thread([&] {
        for (;;) {
            must(cudaStreamSynchronize(stream));
            std::this_thread::sleep_for(std::chrono::milliseconds(1));
        }
    }).detach();
    std::thread([&] {
        std::vector<int> found(count);
        for (;;) {
            must(cudaMemsetAsync(sum, 0, count * sizeof(int), stream));
            add<<<(count + 255) / 256, 256, 0, stream>>>(a, b, sum, count);
            must(cudaMemcpyAsync(found.data(), sum, count * sizeof(int), cudaMemcpyDeviceToHost, stream));
            must(cudaStreamSynchronize(stream));
            for (int at = 0; at < count; at++) wrong += found[at] != 2 * at;
            done++;
        }
    }).detach();
    std::puts("ready");
    std::fflush(stdout);
    for (char line[64]; std::fgets(line, sizeof line, stdin);) {
        std::printf("%ld %ld\n", done.load(), wrong.load());
        std::fflush(stdout);
    }
    std::_Exit(0);
}
