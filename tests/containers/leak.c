/* Allocates, and frees nothing, until its input ends; each line is answered. Built twice: NAME is the function. */
#include <dlfcn.h>
#include <poll.h>
#include <stdio.h>
#include <unistd.h>

static int (*alloc)(unsigned long long *, size_t);

__attribute__((noinline)) int NAME(void) {
    unsigned long long at;
    int code = alloc(&at, 1 << 20);
    return code + 1;
}

static int call(void *library, const char *name, void *to, int number) {
    int (*function)(void *, int) = (int (*)(void *, int))dlsym(library, name);
    return function(to, number);
}

int main(void) {
    char line[16];
    void *context = NULL, *library = dlopen("libcuda.so.1", RTLD_NOW);
    if (!library) return 1;
    int (*begin)(unsigned) = (int (*)(unsigned))dlsym(library, "cuInit");
    int (*use)(void *) = (int (*)(void *))dlsym(library, "cuCtxSetCurrent");
    alloc = (int (*)(unsigned long long *, size_t))dlsym(library, "cuMemAlloc_v2");
    if (begin(0) || call(library, "cuDevicePrimaryCtxRetain", &context, 0) || use(context)) return 2;
    puts("{\"alive\": 0}");
    fflush(stdout);
    for (int made = 0;;) {
        struct pollfd input = {.fd = 0, .events = POLLIN};
        if (made < 2000) made += NAME() == 1;
        if (poll(&input, 1, 5) == 1) {
            if (read(0, line, sizeof line) <= 0) return 0;
            printf("{\"alive\": %d}\n", made);
            fflush(stdout);
        }
    }
}
