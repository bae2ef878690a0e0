/* What is measured by overhead.py: pairs of allocation and free, and kernel launches, in nanoseconds each.
 * A library for Python, and with -DPROGRAM a program for compute-sanitizer. The runtime is loaded by name, so
 * that no toolkit is needed to compile it. */
#include <dlfcn.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

static int (*malloc_async)(void **, size_t, void *);
static int (*free_async)(void *, void *);
static int (*malloc_plain)(void **, size_t);
static int (*free_plain)(void *);
static int (*synchronize)(void);
static int (*launch)(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **,
                     void **);
static void *kernel;

static const char PTX[] = ".version 6.0\n.target sm_52\n.address_size 64\n.visible .entry nothing()\n{\n    ret;\n}\n";

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return 1e9 * (double)time.tv_sec + (double)time.tv_nsec;
}

#define FIND(library, place, name) ((*(void **)&(place) = dlsym(library, name)) == NULL)

/* Loads the runtime and the driver, makes a context and a kernel. 0, or where it failed. */
int begin(const char *runtime) {
    void *cudart = dlopen(runtime, RTLD_NOW), *driver = dlopen("libcuda.so.1", RTLD_NOW);
    if (!cudart || !driver) return 1;
    int (*load)(void **, const void *), (*function)(void **, void *, const char *);
    if (FIND(cudart, malloc_async, "cudaMallocAsync") || FIND(cudart, free_async, "cudaFreeAsync") ||
        FIND(cudart, malloc_plain, "cudaMalloc") || FIND(cudart, free_plain, "cudaFree") ||
        FIND(cudart, synchronize, "cudaDeviceSynchronize") || FIND(driver, launch, "cuLaunchKernel") ||
        FIND(driver, load, "cuModuleLoadData") || FIND(driver, function, "cuModuleGetFunction"))
        return 2;
    if (free_plain(NULL)) return 3;
    void *module = NULL;
    if (load(&module, PTX) || function(&kernel, module, "nothing")) kernel = NULL; /* measured as 0 */
    return 0;
}

double async_pairs(long count) {
    void *address = NULL;
    double began = now();
    for (long at = 0; at < count; at++)
        if (malloc_async(&address, 1 << 20, NULL) || free_async(address, NULL)) return -1;
    double each = (now() - began) / (double)count;
    return synchronize() ? -1 : each;
}

double plain_pairs(long count) {
    void *address = NULL;
    double began = now();
    for (long at = 0; at < count; at++)
        if (malloc_plain(&address, 4 << 20) || free_plain(address)) return -1;
    return (now() - began) / (double)count;
}

/* In groups that fit the queue: what the call takes, not how fast the GPU is. */
double launches(long count) {
    double spent = 0;
    if (!kernel) return 0;
    for (long at = 0; at < count; at += 256) {
        double began = now();
        for (int number = 0; number < 256; number++)
            if (launch(kernel, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL)) return -1;
        spent += now() - began;
        if (synchronize()) return -1;
    }
    return spent / (double)((count + 255) / 256 * 256);
}

#ifdef PROGRAM
static int by_value(const void *left, const void *right) {
    double difference = *(const double *)left - *(const double *)right;
    return (difference > 0) - (difference < 0);
}

static double median(double (*measure)(long), long count) {
    double rounds[5];
    for (int at = 0; at < 5; at++) rounds[at] = measure(count);
    qsort(rounds, 5, sizeof *rounds, by_value);
    return rounds[2];
}

int main(int count, char **words) {
    if (count < 2 || begin(words[1])) return 1;
    async_pairs(200), plain_pairs(10), launches(512);
    printf("{\"async\": %.1f, \"plain\": %.1f, \"launch\": %.1f}\n", median(async_pairs, 5000), median(plain_pairs, 100),
           median(launches, 2048));
    return 0;
}
#endif
