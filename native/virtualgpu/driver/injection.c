/* CUDA_INJECTION64_PATH: a library that the driver loads when a process initialises it, for tools. */
#define _GNU_SOURCE
#include "driver.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdlib.h>

/* A library that cannot be loaded, or has no such function, changes nothing for the program. */
static void load(const char *path) {
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    int (*start)(void) = library ? (int (*)(void))dlsym(library, "InitializeInjection") : NULL;
    if (start) start();
}

void injection_load(void) {
    /* Recursive: the library may call cuInit itself. Other threads wait until it is ready. */
    static pthread_mutex_t loading = PTHREAD_RECURSIVE_MUTEX_INITIALIZER_NP;
    static bool loaded;
    const char *path = secure_getenv("CUDA_INJECTION64_PATH");
    if (!path || !*path) return;
    pthread_mutex_lock(&loading);
    bool first = !loaded;
    loaded = true;
    if (first) load(path);
    pthread_mutex_unlock(&loading);
}
