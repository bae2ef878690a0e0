// What a CUDA runtime answers about kernels, and after one of them has broken the context.
//
//   nvcc -cudart shared -o launches launches.cu && ./launches
//
// Each scene is a process of its own. A line is: scene, call, what it returned, what cudaGetLastError said after it.
#include <cassert>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <sys/wait.h>
#include <unistd.h>

#include <cuda_runtime.h>

__global__ void nothing() {}
__global__ void add_one(int *at) { *at += 1; }
__global__ void write_to_sixteen() { *(volatile int *)16 = 1; }
__global__ void trap() { asm("trap;"); }
__global__ void fail_assert(int zero) { assert(zero); }
__global__ void misaligned(char *at) { *(volatile int *)(at + 1) = 1; }
__device__ int counter[256];
__constant__ int table[64];

static const char *scene;

static void say(const char *call, cudaError_t code) {
    cudaError_t last = cudaGetLastError();
    printf("%s | %s | %d %d\n", scene, call, (int)code, (int)last);
    fflush(stdout);
}
#define ASK(call) say(#call, call)

static void launches() {
    int *at = nullptr;
    ASK((nothing<<<1, 1>>>(), cudaPeekAtLastError()));
    ASK(cudaDeviceSynchronize());
    ASK((nothing<<<0, 1>>>(), cudaPeekAtLastError()));
    ASK((nothing<<<1, 0>>>(), cudaPeekAtLastError()));
    ASK((nothing<<<1, 2048>>>(), cudaPeekAtLastError()));
    ASK((nothing<<<dim3(1, 70000, 1), 1>>>(), cudaPeekAtLastError()));
    ASK((nothing<<<1, dim3(1, 1, 65)>>>(), cudaPeekAtLastError()));
    ASK((nothing<<<1, 1, 1 << 20>>>(), cudaPeekAtLastError()));
    ASK((nothing<<<1, 1, 48 << 10>>>(), cudaPeekAtLastError()));
    ASK((nothing<<<1, 1, 49 << 10>>>(), cudaPeekAtLastError()));
    ASK(cudaDeviceSynchronize());
    ASK(cudaLaunchKernel((void *)nothing, dim3(1), dim3(1), nullptr, 0, 0));
    ASK(cudaLaunchKernel((void *)nothing, dim3(0), dim3(1), nullptr, 0, 0));
    ASK(cudaFuncSetAttribute((void *)nothing, cudaFuncAttributeMaxDynamicSharedMemorySize, 64 << 10));
    ASK((nothing<<<1, 1, 49 << 10>>>(), cudaPeekAtLastError()));
    ASK(cudaFuncSetAttribute((void *)nothing, cudaFuncAttributeMaxDynamicSharedMemorySize, 1 << 20));
    ASK(cudaFuncSetAttribute((void *)nothing, (cudaFuncAttribute)77, 1));
    cudaFuncAttributes attributes;
    ASK(cudaFuncGetAttributes(&attributes, (void *)nothing));
    printf("%s | attributes of an empty kernel | %d %d\n", scene, attributes.maxThreadsPerBlock,
           (int)attributes.localSizeBytes);
    ASK(cudaFuncGetAttributes(nullptr, (void *)nothing));
    int blocks = 0;
    ASK(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, nothing, 128, 0));
    printf("%s | blocks | %d 0\n", scene, blocks);
    ASK(cudaMalloc(&at, 4));
    ASK(cudaMemset(at, 0, 4));
    ASK((add_one<<<1, 1>>>(at), cudaPeekAtLastError()));
    ASK(cudaDeviceReset());
    ASK((nothing<<<1, 1>>>(), cudaPeekAtLastError()));
    ASK(cudaDeviceSynchronize());
}

static void variables() {
    void *at = nullptr;
    size_t nbytes = 0;
    int host[256] = {7, 8, 9};
    int back[256] = {0};
    ASK(cudaGetSymbolSize(&nbytes, counter));
    printf("%s | size of counter | %zu 0\n", scene, nbytes);
    ASK(cudaGetSymbolAddress(&at, counter));
    ASK(cudaMemcpyToSymbol(counter, host, sizeof host));
    ASK(cudaMemcpyFromSymbol(back, counter, sizeof back));
    printf("%s | bytes came back | %d 0\n", scene, memcmp(host, back, sizeof host) == 0);
    ASK(cudaMemcpyToSymbol(counter, host, sizeof host, 4));
    ASK(cudaMemcpyToSymbol(counter, host, 4, 1020));
    ASK(cudaMemcpyToSymbol(counter, host, 4, 1024));
    ASK(cudaMemcpyToSymbol(counter, host, 4, 0, cudaMemcpyDeviceToHost));
    ASK(cudaMemcpyToSymbol(table, host, sizeof table));
    ASK(cudaGetSymbolAddress(&at, table));
    ASK(cudaMemset(at, 0, 4));
    ASK(cudaFree(at));
    cudaPointerAttributes found;
    ASK(cudaPointerGetAttributes(&found, at));
    printf("%s | its type | %d 0\n", scene, (int)found.type);
    ASK(cudaDeviceReset());
    memset(back, 1, sizeof back);
    ASK(cudaMemcpyFromSymbol(back, counter, sizeof back));
    printf("%s | after a reset | %d 0\n", scene, back[0]);
}

static void (*break_context)(char *);

static void after_a_broken_context() {
    char *at = nullptr, *more = nullptr, *pinned = nullptr;
    cudaStream_t stream;
    cudaEvent_t event;
    size_t free_bytes = 0, total = 0;
    int device = 0, count = 0;
    cudaDeviceProp properties;
    cudaPointerAttributes found;
    cudaMalloc(&at, 64 << 20);
    cudaMallocHost(&pinned, 1 << 20);
    cudaStreamCreate(&stream);
    cudaEventCreate(&event);
    cudaMemGetInfo(&free_bytes, &total);
    break_context(at);
    ASK(cudaPeekAtLastError());
    ASK(cudaDeviceSynchronize());
    ASK(cudaGetLastError());
    ASK(cudaGetLastError());
    ASK(cudaPeekAtLastError());
    ASK(cudaFree(nullptr));
    ASK(cudaFree(at));
    ASK(cudaFree((void *)16));
    ASK(cudaFreeHost(pinned));
    ASK(cudaMalloc(&more, 1 << 20));
    ASK(cudaMalloc(nullptr, 1 << 20));
    ASK(cudaMallocHost(&more, 1 << 20));
    ASK(cudaMallocManaged(&more, 1 << 20));
    ASK(cudaMallocAsync(&more, 1 << 20, stream));
    ASK(cudaMemGetInfo(&free_bytes, &total));
    ASK(cudaMemset(at, 0, 16));
    ASK(cudaMemcpy(pinned, at, 16, cudaMemcpyDeviceToHost));
    ASK(cudaStreamSynchronize(stream));
    ASK(cudaStreamQuery(stream));
    ASK(cudaStreamCreate(&stream));
    ASK(cudaEventRecord(event));
    ASK(cudaEventQuery(event));
    ASK(cudaEventDestroy(event));
    ASK((nothing<<<1, 1>>>(), cudaPeekAtLastError()));
    ASK(cudaGetDevice(&device));
    ASK(cudaGetDeviceCount(&count));
    ASK(cudaGetDeviceProperties(&properties, 0));
    ASK(cudaDeviceGetAttribute(&device, cudaDevAttrMultiProcessorCount, 0));
    ASK(cudaPointerGetAttributes(&found, at));
    ASK(cudaSetDevice(0));
    ASK(cudaDeviceSynchronize());
    ASK(cudaDeviceReset());
    ASK(cudaGetLastError());
    ASK(cudaFree(nullptr));
    ASK(cudaMalloc(&more, 1 << 20));
    ASK(cudaDeviceSynchronize());
    ASK(cudaDeviceReset());
    ASK(cudaMalloc(&more, 1 << 20));
}

static void in_scene(const char *name, void (*run)()) {
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        scene = name;
        run();
        fflush(stdout);
        _exit(0);
    }
    int status = 0;
    waitpid(child, &status, 0);
    if (status) printf("%s | ended | %d 0\n", name, status);
}

static const struct {
    const char *name;
    void (*run)();
    void (*breaks)(char *);
} scenes[] = {
    {"launches", launches, nullptr},
    {"variables", variables, nullptr},
    {"illegal address", after_a_broken_context, [](char *) { write_to_sixteen<<<1, 1>>>(); }},
    {"trap", after_a_broken_context, [](char *) { trap<<<1, 1>>>(); }},
    {"assert", after_a_broken_context, [](char *) { fail_assert<<<1, 1>>>(0); }},
    {"misaligned", after_a_broken_context, [](char *at) { misaligned<<<1, 1>>>(at); }},
};

// With the name of a scene, that one alone.
int main(int count, char **words) {
    for (const auto &each : scenes) {
        if (count > 1 && strcmp(words[1], each.name) != 0) continue;
        break_context = each.breaks;
        in_scene(each.name, each.run);
    }
}
