/* Devices: which of the folder's GPUs this process sees, their properties, and peer access. */
#include "driver.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A GPU, or one MIG device of it. */
struct visible {
    int gpu;
    const struct store_mig *mig;
};

static struct visible visible[STORE_MAX_GPUS];
static int visible_count;
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

/* "MIG-<uuid>", or as drivers before 470 wrote it: "MIG-GPU-<uuid>/<gpu instance>/<compute instance>". */
static bool is_called(const char *name, const struct store_gpu *gpu, const struct store_mig *mig) {
    char older[96];
    snprintf(older, sizeof older, "MIG-%s/%u/%u", gpu->uuid, mig->gpu_instance, mig->compute_instance);
    return strncmp(mig->uuid, name, strlen(name)) == 0 || strcmp(older, name) == 0;
}

static const struct store_mig *mig_named(const char *name, int *gpu) {
    const struct store_config *config = store_config();
    if (strncmp(name, "MIG-", 4) != 0) return NULL;
    for (*gpu = 0; *gpu < config->gpus; ++*gpu)
        for (int at = 0; config->gpu[*gpu].mig_enabled && at < config->gpu[*gpu].mig_devices; at++)
            if (is_called(name, &config->gpu[*gpu], &config->gpu[*gpu].mig[at])) return &config->gpu[*gpu].mig[at];
    return NULL;
}

/* Of a divided GPU its first MIG device is visible; without one, nothing is. */
static bool add_gpu(int gpu) {
    const struct store_gpu *config = &store_config()->gpu[gpu];
    if (config->mig_enabled && !config->mig_devices) return false;
    if (visible_count == STORE_MAX_GPUS) return false;
    visible[visible_count++] = (struct visible){gpu, config->mig_enabled ? &config->mig[0] : NULL};
    return true;
}

static bool add_named(const char *name) {
    int gpu = -1;
    const struct store_mig *mig = mig_named(name, &gpu);
    if (!mig) {
        gpu = gpu_named(name);
        return gpu >= 0 && add_gpu(gpu);
    }
    visible[visible_count++] = (struct visible){gpu, mig};
    return visible_count < STORE_MAX_GPUS;
}

/* The list ends at the first name that is unknown, as the driver documents. */
static void choose_listed(const char *list) {
    char names[4096], *rest;
    snprintf(names, sizeof names, "%s", list);
    for (char *name = strtok_r(names, ", ", &rest); name; name = strtok_r(NULL, ", ", &rest))
        if (!add_named(name)) return;
}

/* A process sees one MIG device at most, and no whole GPU beside it, as the MIG guide documents. */
static void keep_first_mig_device(void) {
    for (int at = 0; at < visible_count; at++)
        if (visible[at].mig) {
            visible[0] = visible[at];
            visible_count = 1;
        }
}

static void choose(void) {
    const char *list = getenv("CUDA_VISIBLE_DEVICES");
    if (!store_config()) return;
    if (list) choose_listed(list);
    for (int gpu = 0; !list && gpu < store_config()->gpus; gpu++) add_gpu(gpu);
    keep_first_mig_device();
}

int device_count(void) {
    pthread_once(&chosen, choose);
    return visible_count;
}

int device_gpu(int device) {
    return device >= 0 && device < device_count() ? visible[device].gpu : -1;
}

void device_move(int device, int gpu) {
    visible[device].gpu = gpu;
}

const struct store_mig *device_mig(int device) {
    return device_gpu(device) >= 0 ? visible[device].mig : NULL;
}

uint32_t device_instance(int device) {
    const struct store_mig *mig = device_mig(device);
    return mig ? mig->gpu_instance : STORE_NO_INSTANCE;
}

int device_of(uint32_t gpu, uint32_t gpu_instance) {
    for (int device = 0; device < device_count(); device++)
        if (device_gpu(device) == (int)gpu && device_instance(device) == gpu_instance) return device;
    return -1;
}

uint64_t device_usable_bytes(int device) {
    const struct store_gpu *gpu = device_config(device);
    return device_mig(device) ? device_mig(device)->total_bytes : size_left(gpu->total_bytes, gpu->reserved_bytes);
}

const struct store_gpu *device_config(int device) {
    return &store_config()->gpu[visible[device].gpu];
}

result cuDeviceGetCount(int *count) {
    GATE_AS(-1, GATE_ANSWERS);
    if (!count) return INVALID_VALUE;
    *count = device_count();
    return OK;
}

result cuDeviceGet(int *device, int ordinal) {
    GATE_ON(ordinal);
    if (!device) return INVALID_VALUE;
    if (device_gpu(ordinal) < 0) return INVALID_DEVICE;
    *device = ordinal;
    return OK;
}

result cuDeviceGetName(char *name, int size, int device) {
    GATE_ON(device);
    if (!name || size <= 0) return INVALID_VALUE;
    if (device_gpu(device) < 0) return INVALID_DEVICE;
    const struct store_mig *mig = device_mig(device);
    snprintf(name, (size_t)size, "%s%s%s", device_config(device)->name, mig ? " MIG " : "", mig ? mig->profile : "");
    return OK;
}

void device_parse_uuid(const char *text, struct uuid *uuid) {
    size_t at = 0;
    memset(uuid, 0, sizeof *uuid);
    if (strncmp(text, "GPU-", 4) == 0 || strncmp(text, "MIG-", 4) == 0) text += 4;
    for (; *text && at < sizeof uuid->bytes; text++) {
        unsigned byte;
        if (*text == '-' || sscanf(text, "%2x", &byte) != 1) continue;
        uuid->bytes[at++] = (unsigned char)byte;
        text++;
    }
}

result cuDeviceGetUuid(struct uuid *uuid, int device) {
    GATE_ON(device);
    if (!uuid) return INVALID_VALUE;
    if (device_gpu(device) < 0) return INVALID_DEVICE;
    device_parse_uuid(device_config(device)->uuid, uuid);
    return OK;
}

/* Version 1 names the GPU, version 2 the MIG device where there is one. */
result cuDeviceGetUuid_v2(struct uuid *uuid, int device) {
    GATE_ON(device);
    if (!uuid) return INVALID_VALUE;
    if (device_gpu(device) < 0) return INVALID_DEVICE;
    device_parse_uuid(device_mig(device) ? device_mig(device)->uuid : device_config(device)->uuid, uuid);
    return OK;
}

result cuDeviceTotalMem_v2(size_t *nbytes, int device) {
    GATE_ON(device);
    if (!nbytes) return INVALID_VALUE;
    if (device_gpu(device) < 0) return INVALID_DEVICE;
    *nbytes = device_usable_bytes(device);
    return OK;
}

result cuDeviceComputeCapability(int *major, int *minor, int device) {
    GATE_ON(device);
    if (!major || !minor) return INVALID_VALUE;
    if (device_gpu(device) < 0) return INVALID_DEVICE;
    *major = 9;
    *minor = 0;
    return OK;
}

result cuDeviceGetPCIBusId(char *text, int size, int device) {
    GATE_ON(device);
    if (!text || size < 13) return INVALID_VALUE;
    if (device_gpu(device) < 0) return INVALID_DEVICE;
    snprintf(text, (size_t)size, "0000:%02X:00.0", device_gpu(device) + 1);
    return OK;
}

result cuDeviceGetByPCIBusId(int *device, const char *text) {
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

result cuDeviceGetLuid(char *luid, unsigned *mask, int device) {
    GATE_ON(device);
    (void)luid;
    (void)mask;
    return NOT_SUPPORTED; /* a Windows notion */
}

result cuDeviceGetExecAffinitySupport(int *supported, int type, int device) {
    GATE_ON(device);
    (void)type;
    if (!supported) return INVALID_VALUE;
    *supported = 0;
    return device_gpu(device) < 0 ? INVALID_DEVICE : OK;
}

/* ---- attributes, as an H200 answers; 0 for what needs kernels, arrays or fabrics ---- */

/* clang-format off */
static const int fixed[148] = {
    /* threads and grids */
    [1] = 1024, [2] = 1024, [3] = 1024, [4] = 64, [5] = 2147483647, [6] = 65535, [7] = 65535,
    [8] = 49152, [9] = 65536, [10] = 32, [11] = 2147483647, [12] = 65536, [13] = 1980000,
    [14] = 512, [15] = 1, [16] = 132, [19] = 1,
    /* the largest textures and surfaces */
    [21] = 131072, [22] = 131072, [23] = 65536, [24] = 16384, [25] = 16384, [26] = 16384, [27] = 32768,
    [28] = 32768, [29] = 2048, [30] = 512, [31] = 1, [34] = 0,
    [36] = 3201000, [37] = 6016, [38] = 62914560, [39] = 2048, [40] = 3, [41] = 1, [42] = 32768,
    [43] = 2048, [44] = 1, [45] = 32768, [46] = 32768, [47] = 8192, [48] = 8192, [49] = 32768, [51] = 32,
    [52] = 32768, [53] = 32768, [54] = 2046, [55] = 32768, [56] = 131072, [57] = 65536, [58] = 16384,
    [59] = 16384, [60] = 16384, [61] = 32768, [62] = 2048, [63] = 32768, [64] = 32768, [65] = 2048,
    [66] = 32768, [67] = 32768, [68] = 2046, [69] = 268435456, [70] = 131072, [71] = 65000, [72] = 2097120,
    [73] = 32768, [74] = 32768,
    /* compute capability 9.0 */
    [75] = 9, [76] = 0, [77] = 32768, [78] = 1, [79] = 1, [80] = 1, [81] = 233472, [82] = 65536,
    /* memory: managed with concurrent access, host pointers usable, no pageable access */
    [83] = 1, [87] = 2, [89] = 1, [90] = 1, [91] = 1, [97] = 232448, [99] = 1,
    [102] = 1, [103] = 1, [106] = 32, [108] = 39321600, [109] = 134217728, [110] = 1, [111] = 1024,
    [113] = 1, [115] = 1, [116] = 1, [117] = 1, [118] = 100, [119] = HANDLE_POSIX_FD, [124] = 1, [125] = 1,
    [126] = 4, [131] = -1, [134] = 0, [142] = 1, [144] = 1,
};
/* clang-format on */

/* Multiprocessors of one to seven slices of an H200, by the MIG guide's table of its profiles. */
static const int multiprocessors[8] = {0, 16, 32, 60, 64, 64, 64, 132};

enum { MULTIPROCESSORS = 16, INTEGRATED = 18, COMPUTE_MODE = 20, ECC_ENABLED = 32, PCI_BUS = 33 };

int device_multiprocessors(int device) {
    return device_mig(device) ? multiprocessors[device_mig(device)->compute_slices & 7] : fixed[MULTIPROCESSORS];
}

result cuDeviceGetAttribute(int *value, int attribute, int device) {
    GATE_ON(device);
    if (!value || attribute < 1 || attribute >= (int)(sizeof fixed / sizeof *fixed)) return INVALID_VALUE;
    if (device_gpu(device) < 0) return INVALID_DEVICE;
    const struct store_gpu *gpu = device_config(device);
    switch (attribute) {
    case INTEGRATED: *value = gpu->unified; break;
    case COMPUTE_MODE: *value = (int)gpu->compute_mode; break;
    case ECC_ENABLED: *value = gpu->ecc_enabled; break;
    case MULTIPROCESSORS: *value = device_multiprocessors(device); break;
    case PCI_BUS: *value = device_gpu(device) + 1; break;
    default: *value = fixed[attribute];
    }
    return OK;
}

/* ---- peer access: the virtual GPUs of one folder all reach each other ---- */

static bool are_peers(int device, int other) {
    return device != other && device_gpu(device) >= 0 && device_gpu(other) >= 0;
}

result cuDeviceCanAccessPeer(int *can, int device, int other) {
    GATE_ON(device);
    if (!can) return INVALID_VALUE;
    if (device_gpu(device) < 0 || device_gpu(other) < 0) return INVALID_DEVICE;
    *can = are_peers(device, other);
    return OK;
}

result cuDeviceGetP2PAttribute(int *value, int attribute, int device, int other) {
    GATE_ON(device);
    if (!value || attribute < 1 || attribute > 5 || !are_peers(device, other)) return INVALID_VALUE;
    *value = attribute == 2 || attribute == 3; /* access and native atomics; no arrays, rank 0 */
    return OK;
}

static result both(struct context **current, struct context *other) {
    result failed = context_need(current);
    if (!failed) failed = context_check(other);
    if (failed) return failed;
    return are_peers((*current)->device, other->device) ? OK : PEER_ACCESS_UNSUPPORTED;
}

result cuCtxEnablePeerAccess(struct context *other, unsigned flags) {
    GATE();
    LOCKED();
    struct context *current;
    result failed = flags ? INVALID_VALUE : both(&current, other);
    if (failed) return failed;
    uint64_t bit = 1ull << other->device;
    if (current->peers & bit) return PEER_ACCESS_ALREADY_ENABLED;
    current->peers |= bit;
    return OK;
}

result cuCtxDisablePeerAccess(struct context *other) {
    GATE();
    LOCKED();
    struct context *current;
    result failed = both(&current, other);
    if (failed) return failed;
    uint64_t bit = 1ull << other->device;
    if (!(current->peers & bit)) return PEER_ACCESS_NOT_ENABLED;
    current->peers &= ~bit;
    return OK;
}
