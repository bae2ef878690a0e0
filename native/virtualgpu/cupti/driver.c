/* Finding the virtual driver, and errors on request. */
#define _GNU_SOURCE
#include "cupti.h"

#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

const struct callback_calls *driver_calls(void) {
    /* dlopen and dlsym are thread-safe and idempotent: there is nothing to remember and no lock for a fork to break. */
    void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    if (!library) return NULL;
    const struct callback_calls *(*calls)(void) =
        (const struct callback_calls *(*)(void))dlsym(library, "vramCallbacks");
    return calls ? calls() : NULL;
}

/* "39" is for cuptiSubscribe; "cuptiEnableCallback=7" names the function. */
cupti_result fault_of(const char *function) {
    const char *asked = getenv("VRAM_VIRTUAL_CUPTI_ERROR");
    if (!asked) return CUPTI_SUCCESS;
    const char *equals = strchr(asked, '=');
    size_t length = equals ? (size_t)(equals - asked) : 0;
    bool meant = equals ? length == strlen(function) && strncmp(asked, function, length) == 0
                        : strncmp(function, "cuptiSubscribe", strlen("cuptiSubscribe")) == 0;
    return meant ? (cupti_result)atoi(equals ? equals + 1 : asked) : CUPTI_SUCCESS;
}
