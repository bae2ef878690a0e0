/* Devices: which of the folder's GPUs this process sees, and what they say of themselves. */
#include "driver.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int visible[STORE_MAX_GPUS], visible_count;
static pthread_once_t chosen = PTHREAD_ONCE_INIT;

static int gpu_named(const char *name) {
    const struct store_config *config = store_config();
    char *end;
    long index = strtol(name, &end, 10);
    if (end != name && *end == '\0') return index >= 0 && index < config->gpus ? (int)index : -1;
    for (int gpu = 0; gpu < config->gpus; gpu++)
        if (strncmp(name, "GPU-", 4) == 0 && strncmp(config->gpu[gpu].uuid, name, strlen(name)) == 0) return gpu;
    return -1;
}

/* The list ends at the first name that is unknown, as the driver documents. */
static void choose_listed(const char *list) {
    char names[4096], *rest;
    snprintf(names, sizeof names, "%s", list);
    for (char *name = strtok_r(names, ", ", &rest); name; name = strtok_r(NULL, ", ", &rest)) {
        int gpu = gpu_named(name);
        if (gpu < 0 || visible_count == STORE_MAX_GPUS) return;
        visible[visible_count++] = gpu;
    }
}

static void choose(void) {
    const char *list = getenv("CUDA_VISIBLE_DEVICES");
    if (!store_config()) return;
    if (list) {
        choose_listed(list);
        return;
    }
    for (int gpu = 0; gpu < store_config()->gpus; gpu++) visible[visible_count++] = gpu;
}

int device_count(void) {
    pthread_once(&chosen, choose);
    return visible_count;
}

int device_gpu(int device) {
    return device >= 0 && device < device_count() ? visible[device] : -1;
}

const struct store_gpu *device_config(int device) {
    return &store_config()->gpu[visible[device]];
}

API result cuDeviceGetCount(int *count) {
    GATE();
    if (!count) return INVALID_VALUE;
    *count = device_count();
    return OK;
}

API result cuDeviceGet(int *device, int ordinal) {
    GATE_ON(ordinal);
    if (!device) return INVALID_VALUE;
    if (device_gpu(ordinal) < 0) return INVALID_DEVICE;
    *device = ordinal;
    return OK;
}

API result cuDeviceGetName(char *name, int size, int device) {
    GATE_ON(device);
    if (!name || size <= 0) return INVALID_VALUE;
    if (device_gpu(device) < 0) return INVALID_DEVICE;
    snprintf(name, (size_t)size, "%s", device_config(device)->name);
    return OK;
}

static void parse_uuid(const char *text, struct uuid *uuid) {
    size_t at = 0;
    memset(uuid, 0, sizeof *uuid);
    if (strncmp(text, "GPU-", 4) == 0) text += 4;
    for (; *text && at < sizeof uuid->bytes; text++) {
        unsigned byte;
        if (*text == '-' || sscanf(text, "%2x", &byte) != 1) continue;
        uuid->bytes[at++] = (unsigned char)byte;
        text++;
    }
}

API result cuDeviceGetUuid(struct uuid *uuid, int device) {
    GATE_ON(device);
    if (!uuid) return INVALID_VALUE;
    if (device_gpu(device) < 0) return INVALID_DEVICE;
    parse_uuid(device_config(device)->uuid, uuid);
    return OK;
}

API result cuDeviceGetUuid_v2(struct uuid *uuid, int device) {
    return cuDeviceGetUuid(uuid, device);
}

API result cuDeviceTotalMem_v2(size_t *nbytes, int device) {
    GATE_ON(device);
    if (!nbytes) return INVALID_VALUE;
    if (device_gpu(device) < 0) return INVALID_DEVICE;
    *nbytes = device_config(device)->total_bytes - device_config(device)->reserved_bytes;
    return OK;
}

API result cuDeviceComputeCapability(int *major, int *minor, int device) {
    GATE_ON(device);
    if (!major || !minor) return INVALID_VALUE;
    if (device_gpu(device) < 0) return INVALID_DEVICE;
    *major = 9;
    *minor = 0;
    return OK;
}

API result cuDeviceGetPCIBusId(char *text, int size, int device) {
    GATE_ON(device);
    if (!text || size < 13) return INVALID_VALUE;
    if (device_gpu(device) < 0) return INVALID_DEVICE;
    snprintf(text, (size_t)size, "0000:%02X:00.0", device_gpu(device) + 1);
    return OK;
}

API result cuDeviceGetByPCIBusId(int *device, const char *text) {
    GATE();
    unsigned domain = 0, bus, slot;
    if (!device || !text) return INVALID_VALUE;
    if (sscanf(text, "%x:%x:%x", &domain, &bus, &slot) != 3 && sscanf(text, "%x:%x", &bus, &slot) != 2)
        return INVALID_VALUE;
    for (int known = 0; known < device_count(); known++)
        if (domain == 0 && (int)bus == device_gpu(known) + 1 && slot == 0) {
            *device = known;
            return OK;
        }
    return INVALID_DEVICE;
}

API result cuDeviceGetLuid(char *luid, unsigned *mask, int device) {
    GATE_ON(device);
    (void)luid;
    (void)mask;
    return NOT_SUPPORTED; /* a Windows notion */
}

API result cuDeviceGetExecAffinitySupport(int *supported, int type, int device) {
    GATE_ON(device);
    (void)type;
    if (!supported) return INVALID_VALUE;
    *supported = 0;
    return device_gpu(device) < 0 ? INVALID_DEVICE : OK;
}
