// A program that is visited while it computes: ./visited POOL_BYTES. It checks every round of its work, and leaves
// POOL_BYTES unused in the default pool each time that it is asked to ("fill"). "status" answers one line.
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <thread>
#include <unistd.h>

static std::atomic<long> rounds{0}, wrong{0};
static std::atomic<bool> stop{false};

static void check(cudaError_t code, const char *what) {
    if (code == cudaSuccess) return;
    if (wrong++ == 0) fprintf(stderr, "%s: %s\n", what, cudaGetErrorString(code));
}

__global__ void add(unsigned *numbers, int count, unsigned more) {
    int at = blockIdx.x * blockDim.x + threadIdx.x;
    if (at < count) numbers[at] = at * 3u + more;
}

static void compute() {
    enum { COUNT = 1 << 14 };
    cudaStream_t stream;
    unsigned *host = static_cast<unsigned *>(malloc(COUNT * sizeof(unsigned)));
    check(cudaStreamCreate(&stream), "stream");
    for (unsigned round = 0; !stop; round++) {
        unsigned *device = nullptr;
        check(cudaMallocAsync(&device, COUNT * sizeof(unsigned), stream), "allocation");
        add<<<COUNT / 256, 256, 0, stream>>>(device, COUNT, round);
        check(cudaMemcpyAsync(host, device, COUNT * sizeof(unsigned), cudaMemcpyDeviceToHost, stream), "copy");
        check(cudaFreeAsync(device, stream), "free");
        check(cudaStreamSynchronize(stream), "synchronisation");
        for (int i = 0; i < COUNT; i++)
            if (host[i] != i * 3u + round) wrong++;
        rounds++;
    }
    free(host);
}

static void fill(size_t nbytes) {
    void *address = nullptr;
    check(cudaMallocAsync(&address, nbytes, nullptr), "fill");
    check(cudaFreeAsync(address, nullptr), "empty");
    check(cudaStreamSynchronize(nullptr), "fill");
}

int main(int, char **argv) {
    char line[64];
    cudaMemPool_t pool;
    unsigned long long keeps = ~0ull;
    size_t nbytes = strtoull(argv[1], nullptr, 10);
    check(cudaDeviceGetDefaultMemPool(&pool, 0), "pool");
    check(cudaMemPoolSetAttribute(pool, cudaMemPoolAttrReleaseThreshold, &keeps), "threshold");
    fill(nbytes);
    std::thread worker(compute);
    printf("ready\n");
    fflush(stdout);
    while (fgets(line, sizeof line, stdin)) {
        if (!strncmp(line, "fill", 4)) fill(nbytes);
        printf("%ld %ld\n", rounds.load(), wrong.load());
        fflush(stdout);
    }
    stop = true;
    worker.join();
    return wrong ? 1 : 0;
}
