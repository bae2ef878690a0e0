/* Finds libcupti, subscribes, and asks for the callbacks that the recorder needs.
 *
 * One libcupti serves a process: the one that the program has loaded (PyTorch's brings its own), else the
 * first that `vram run` found, else whatever the loader finds under the usual names.
 */
#define _GNU_SOURCE
#include "cupti.h"
#include "tracer.h"

#include <dlfcn.h>
#include <link.h>
#include <stdio.h>
#include <string.h>

struct cupti cupti;
void *subscription;
static char library[PATH_MAX];
static uint32_t version;

const char *cupti_path(void) {
    return library;
}

uint32_t cupti_version(void) {
    return version;
}

void *driver_function(const char *name) {
    static _Atomic(void *) libcuda;
    void *handle = atomic_load(&libcuda);
    if (!handle) {
        handle = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_NOLOAD);
        if (!handle) return NULL;
        atomic_store(&libcuda, handle);
    }
    return dlsym(handle, name);
}

static bool take_functions(void *handle) {
    struct {
        const char *name;
        void *place;
    } wanted[] = {
        {"cuptiSubscribe", &cupti.subscribe},
        {"cuptiUnsubscribe", &cupti.unsubscribe},
        {"cuptiEnableCallback", &cupti.enable_callback},
        {"cuptiEnableDomain", &cupti.enable_domain},
        {"cuptiEnableAllDomains", &cupti.enable_all},
        {"cuptiGetCallbackState", &cupti.state},
        {"cuptiFinalize", &cupti.finalize},
        {"cuptiGetVersion", &cupti.version},
    };
    for (size_t i = 0; i < sizeof wanted / sizeof *wanted; i++) {
        void *function = dlsym(handle, wanted[i].name);
        if (!function) return false;
        memcpy(wanted[i].place, &function, sizeof function);
    }
    struct link_map *map = NULL;
    if (!dlinfo(handle, RTLD_DI_LINKMAP, &map) && map && map->l_name)
        snprintf(library, sizeof library, "%s", map->l_name);
    cupti.version(&version);
    return true;
}

static int loaded_library(struct dl_phdr_info *info, size_t size, void *found) {
    (void)size;
    const char *name = info->dlpi_name ? strrchr(info->dlpi_name, '/') : NULL;
    if (!name || strncmp(name, "/libcupti.so", 12)) return 0;
    snprintf(found, PATH_MAX, "%s", info->dlpi_name);
    return 1;
}

/* vram's virtual GPU works with the libcupti beside its libcuda only; NVIDIA's crashes over it. */
static bool find_virtual(void *callbacks) {
    Dl_info driver;
    char path[PATH_MAX];
    if (!dladdr(callbacks, &driver)) return false;
    const char *name = strrchr(driver.dli_fname, '/');
    int length = name ? (int)(name - driver.dli_fname) : 0;
    if (snprintf(path, sizeof path, "%.*s/libcupti.so.13", length, driver.dli_fname) >= (int)sizeof path) return false;
    void *handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    return handle && take_functions(handle);
}

static bool find(void) {
    char path[PATH_MAX] = "";
    void *virtual_callbacks = driver_function("vramCallbacks");
    if (virtual_callbacks) return find_virtual(virtual_callbacks);
    dl_iterate_phdr(loaded_library, path);
    void *handle = path[0] ? dlopen(path, RTLD_NOW | RTLD_NOLOAD) : NULL;
    if (handle && take_functions(handle)) return true;

    for (const char *at = settings.cupti; *at;) {
        size_t length = strcspn(at, ":");
        if (length && length < sizeof path) {
            memcpy(path, at, length);
            path[length] = 0;
            handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
            if (handle && take_functions(handle)) return true;
        }
        at += length + (at[length] == ':');
    }
    int driver = 0;
    int (*driver_version)(int *) = driver_function("cuDriverGetVersion");
    if (driver_version) driver_version(&driver);
    const char *const names[] = {"libcupti.so.13", "libcupti.so.12", "libcupti.so"};
    for (size_t i = driver >= 13000 ? 0 : 1; i < sizeof names / sizeof *names; i++) {
        handle = dlopen(names[i], RTLD_NOW | RTLD_LOCAL);
        if (handle && take_functions(handle)) return true;
    }
    return false;
}

static void enable(int domain, uint32_t id) {
    /* Older versions do not know the newest calls: those cannot be made there either. */
    cupti.enable_callback(1, subscription, domain, id);
}

enum start_error cupti_start(char *text, size_t size) {
    if (subscription) { /* kept since an earlier recording */
        for_each_hook(enable);
        share_subscription();
        return START_OK;
    }
    if (!cupti.subscribe && !find()) {
        snprintf(text, size, "no libcupti was found");
        return START_NO_CUPTI;
    }
    void *handle = NULL;
    int result = cupti.subscribe(&handle, dispatch, NULL);
    if (result == CUPTI_SUBSCRIBERS || result == CUPTI_MAX_LIMIT) {
        snprintf(text, size, "another tool in this process already subscribes to CUPTI (%s)", library);
        return START_SUBSCRIBER;
    }
    if (result != CUPTI_OK) {
        snprintf(text, size, "CUPTI could not be started: cuptiSubscribe returned %d (%s)", result, library);
        return START_CUPTI_ERROR;
    }
    subscription = handle;
    for_each_hook(enable);
    share_subscription();
    return START_OK;
}

static void disable(int domain, uint32_t id) {
    if (!subscriber_wants(domain, id)) cupti.enable_callback(0, subscription, domain, id);
}

void cupti_stop(void) {
    if (!subscription) return;
    for_each_hook(disable);
    if (subscription_is_shared()) return; /* the profiler's callbacks stay on, and come to it through us */
    cupti.unsubscribe(subscription);
    subscription = NULL;
}
