/* Holders: N processes, each with a context and some memory on one of the GPUs, in turn.
 *
 *   gpu_crowd N NBYTES
 *
 * Prints "ready" once all of them hold it, and ends them when its standard input closes. They die with it
 * whatever ends it, and it dies with whoever started it. None is a Python: thousands fit into a machine.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <signal.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

static void die_with(pid_t parent) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) /* the parent ended before the call above */
        _exit(1);
}

static void must(int code) {
    if (code) _exit(2);
}

/* The library is loaded by each process of its own: a context does not survive a fork. */
static void hold(int number, size_t nbytes) {
    void *library = dlopen("libcuda.so.1", RTLD_NOW);
    if (!library) _exit(3);
    int (*init)(unsigned) = (int (*)(unsigned))dlsym(library, "cuInit");
    int (*count)(int *) = (int (*)(int *))dlsym(library, "cuDeviceGetCount");
    int (*retain)(void **, int) = (int (*)(void **, int))dlsym(library, "cuDevicePrimaryCtxRetain");
    int (*enter)(void *) = (int (*)(void *))dlsym(library, "cuCtxSetCurrent");
    int (*take)(uint64_t *, size_t) = (int (*)(uint64_t *, size_t))dlsym(library, "cuMemAlloc_v2");
    int gpus = 0;
    void *context;
    uint64_t pointer;
    must(init(0));
    must(count(&gpus));
    must(retain(&context, number % gpus));
    must(enter(context));
    must(take(&pointer, nbytes));
}

int main(int argc, char **argv) {
    if (argc != 3) return 2;
    int wanted = atoi(argv[1]), ready[2];
    size_t nbytes = strtoull(argv[2], NULL, 10);
    pid_t self = getpid();
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    pid_t *crowd = calloc((size_t)wanted, sizeof *crowd);
    if (!crowd || pipe(ready)) return 1;
    for (int i = 0; i < wanted; i++) {
        crowd[i] = fork();
        if (crowd[i] == 0) {
            die_with(self);
            hold(i, nbytes);
            if (write(ready[1], "", 1) != 1) _exit(1);
            close_range(0, 2, 0);
            for (;;) pause();
        }
        char said;
        if (crowd[i] < 0 || read(ready[0], &said, 1) != 1) return 1;
    }
    puts("ready");
    fflush(stdout);
    while (getchar() != EOF);
    for (int i = 0; i < wanted; i++) kill(crowd[i], SIGKILL);
    while (wait(NULL) > 0);
    return 0;
}
