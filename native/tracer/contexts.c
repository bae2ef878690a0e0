/* Which GPU a context is on, and what that GPU is called. */
#include "section.h"
#include "tracer.h"

#include <string.h>

/* Few programs have more contexts than GPUs; what does not fit here is asked again each time. */
enum { REMEMBERED = 64 };
static struct {
    _Atomic(void *) context;
    _Atomic int device;
} known[REMEMBERED];
_Atomic uint32_t context_epoch = 1;
static _Atomic uint64_t devices_named;

static int ask_device(void *context) {
    int device = -1;
    int (*current_device)(int *) = driver_function("cuCtxGetDevice");
    int (*current)(void **) = driver_function("cuCtxGetCurrent");
    void *now = NULL;
    if (current && current_device && current(&now) == 0 && now == context && current_device(&device) == 0)
        return device;
    return -1;
}

int context_device(void *context) {
    if (!context) return -1;
    for (int i = 0; i < REMEMBERED; i++) {
        void *here = atomic_load_explicit(&known[i].context, memory_order_acquire);
        if (here == context) return atomic_load_explicit(&known[i].device, memory_order_relaxed);
        if (!here) break;
    }
    int device = ask_device(context);
    if (device < 0) return -1;
    for (int i = 0; i < REMEMBERED; i++) {
        void *nothing = NULL;
        if (atomic_load(&known[i].context)) continue;
        atomic_store(&known[i].device, device);
        if (atomic_compare_exchange_strong(&known[i].context, &nothing, context)) break;
    }
    device_seen(device);
    return device;
}

void context_changed(void *context) {
    (void)context; /* entries are few and quickly asked for again */
    for (int i = 0; i < REMEMBERED; i++) atomic_store(&known[i].context, NULL);
    atomic_fetch_add(&context_epoch, 1);
}

void device_seen(int device) {
    if (device < 0 || device >= 64) return;
    uint64_t bit = (uint64_t)1 << device;
    if (atomic_fetch_or(&devices_named, bit) & bit) return;
    char pci[64] = "", name[256] = "";
    size_t nbytes = 0;
    int (*get_pci)(char *, int, int) = driver_function("cuDeviceGetPCIBusId");
    int (*get_name)(char *, int, int) = driver_function("cuDeviceGetName");
    int (*get_total)(size_t *, int) = driver_function("cuDeviceTotalMem_v2");
    if (get_pci) get_pci(pci, sizeof pci, device);
    if (get_name) get_name(name, sizeof name, device);
    if (get_total) get_total(&nbytes, device);
    pci[sizeof pci - 1] = name[sizeof name - 1] = 0;
    if (record_device(device, pci, name, nbytes)) atomic_fetch_and(&devices_named, ~bit);
}

void devices_forget(void) {
    atomic_store(&devices_named, 0);
    context_changed(NULL);
}
