/* A library for CUDA_INJECTION64_PATH: it subscribes to $INJECTED_CUPTI and writes what it is told, a line each, to
 * $INJECTED_LOG. Numbers and layouts are those of cupti_callbacks.h. */
#include <dlfcn.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

enum { DOMAIN_DRIVER = 1, DOMAIN_RESOURCE = 3 };

struct callback_data {
    int site;
    const char *function;
};

static int log_file;

static void callback(void *userdata, int domain, uint32_t id, const void *data) {
    const struct callback_data *call = data;
    (void)userdata;
    if (domain == DOMAIN_RESOURCE)
        dprintf(log_file, "resource %u\n", id);
    else
        dprintf(log_file, "%s %s\n", call->site ? "exit" : "enter", call->function);
}

/* The driver may load the library under several names, and calls this in each process that initialises CUDA. */
int InitializeInjection(void) {
    void *handle, *library = dlopen(getenv("INJECTED_CUPTI"), RTLD_NOW), *driver = dlopen("libcuda.so.1", RTLD_NOW);
    int (*subscribe)(void **, void *, void *) = (int (*)(void **, void *, void *))dlsym(library, "cuptiSubscribe");
    int (*enable)(uint32_t, void *, int) = (int (*)(uint32_t, void *, int))dlsym(library, "cuptiEnableDomain");
    int (*init)(unsigned) = (int (*)(unsigned))dlsym(driver, "cuInit");
    log_file = open(getenv("INJECTED_LOG"), O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0600);
    dprintf(log_file, "injected\n");
    int code = subscribe(&handle, (void *)callback, NULL);
    dprintf(log_file, "subscribe %d\n", code);
    enable(1, handle, DOMAIN_DRIVER);
    enable(1, handle, DOMAIN_RESOURCE);
    if (getenv("INJECTED_INIT")) dprintf(log_file, "cuInit %d\n", init(0));
    return getenv("INJECTED_RESULT") ? atoi(getenv("INJECTED_RESULT")) : 1;
}
