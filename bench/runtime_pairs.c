/* The cost of a cudaMalloc and cudaFree pair of 4 MiB, through whichever libcudart.so.13 is found: prints the
 * seconds per pair, over many. */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

static double now(void) {
    struct timespec at;
    clock_gettime(CLOCK_MONOTONIC, &at);
    return (double)at.tv_sec + (double)at.tv_nsec * 1e-9;
}

int main(int argc, char **argv) {
    int pairs = argc > 1 ? atoi(argv[1]) : 1000, failed = 0;
    void *pointer, *library = dlopen("libcudart.so.13", RTLD_NOW);
    if (!library) {
        fprintf(stderr, "%s\n", dlerror());
        return 1;
    }
    int (*take)(void **, size_t) = dlsym(library, "cudaMalloc");
    int (*give)(void *) = dlsym(library, "cudaFree");
    failed += give(NULL);
    double begin = now();
    for (int i = 0; i < pairs; i++) failed += take(&pointer, 4u << 20) || give(pointer);
    printf("%.9f\n", (now() - begin) / pairs);
    return failed != 0;
}
