/* Allocates and frees all the time, and leaks in one place; answers each line by its number of rounds. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static int (*take)(uint64_t *, size_t), (*give)(uint64_t), (*enter)(void *);
static void *context;
static atomic_ulong rounds;

static void require(int code) {
    if (code) exit(3);
}

__attribute__((noinline)) void leak_here(void) {
    uint64_t address;
    require(take(&address, 1 << 20));
    __asm__ volatile("" ::: "memory");
}

__attribute__((noinline)) void churn_here(void) {
    uint64_t address;
    require(take(&address, 2 << 20));
    require(give(address));
}

static void *work(void *unused) {
    require(enter(context));
    for (;;) {
        churn_here();
        if (atomic_fetch_add(&rounds, 1) % 20 == 0) leak_here();
        usleep(1000);
    }
    return unused;
}

int main(void) {
    char line[64];
    pthread_t thread;
    void *cuda = dlopen("libcuda.so.1", RTLD_NOW);
    if (!cuda) return 3;
    int (*init)(unsigned) = (int (*)(unsigned))dlsym(cuda, "cuInit");
    int (*retain)(void **, int) = (int (*)(void **, int))dlsym(cuda, "cuDevicePrimaryCtxRetain");
    enter = (int (*)(void *))dlsym(cuda, "cuCtxSetCurrent");
    take = (int (*)(uint64_t *, size_t))dlsym(cuda, "cuMemAlloc_v2");
    give = (int (*)(uint64_t))dlsym(cuda, "cuMemFree_v2");
    require(init(0));
    require(retain(&context, 0));
    pthread_create(&thread, NULL, work, NULL);
    puts("ready");
    fflush(stdout);
    while (fgets(line, sizeof line, stdin)) {
        printf("%lu\n", (unsigned long)atomic_load(&rounds));
        fflush(stdout);
    }
    return 0;
}
