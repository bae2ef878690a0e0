/* The cost of a cuMemAlloc and cuMemFree pair of 4 MiB, through whichever libcuda.so.1 is
 * found: prints the seconds per pair, over many. */
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

static void *library;

static void *symbol(const char *name) {
    void *found = library ? dlsym(library, name) : NULL;
    if (!found) {
        fprintf(stderr, "no %s\n", name);
        exit(1);
    }
    return found;
}

static void must(int code) {
    if (code) {
        fprintf(stderr, "the driver answered %d\n", code);
        exit(1);
    }
}

static double now(void) {
    struct timespec at;
    clock_gettime(CLOCK_MONOTONIC, &at);
    return (double)at.tv_sec + (double)at.tv_nsec * 1e-9;
}

int main(int argc, char **argv) {
    int pairs = argc > 1 ? atoi(argv[1]) : 1000;
    void *context;
    uint64_t pointer;
    library = dlopen("libcuda.so.1", RTLD_NOW);
    int (*init)(unsigned) = symbol("cuInit");
    int (*retain)(void **, int) = symbol("cuDevicePrimaryCtxRetain");
    int (*enter)(void *) = symbol("cuCtxSetCurrent");
    int (*take)(uint64_t *, size_t) = symbol("cuMemAlloc_v2");
    int (*give)(uint64_t) = symbol("cuMemFree_v2");
    must(init(0));
    must(retain(&context, 0));
    must(enter(context));
    double begin = now();
    for (int i = 0; i < pairs; i++) {
        must(take(&pointer, 4u << 20));
        must(give(pointer));
    }
    printf("%.9f\n", (now() - begin) / pairs);
    return 0;
}
