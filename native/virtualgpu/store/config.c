/* The folder's config: which GPUs this machine pretends to have.
 *
 * Lines of "key = value", applied in order; "#" begins a comment line. `gpus`,
 * `driver_version`, `cuda_version` and `wddm` speak of the machine. Every other key speaks of
 * all GPUs, or of one when it is written "gpu1.key":
 *
 *   name uuid total_bytes reserved_bytes init_bytes context_bytes context_overhead_bytes
 *   bar1_bytes bar1_base_bytes ecc_enabled persistence mig_enabled remap_pending remap_failure
 *   compute_mode remapped_correctable remapped_uncorrectable retires_pages retired_pending
 *   retired_pages ecc_uncorrected utilization recovery_action windows_bytes mig_pending
 *   mig_restricted host_pids unified numa_node cpu_bytes cache_bytes virtualization
 *   mig_device, once for each: GPU-INSTANCE COMPUTE-INSTANCE SLICES COMPUTE-SLICES BYTES PROFILE
 *
 * Numbers are plain bytes, booleans 0 or 1. Unknown keys are ignored, so that an older library reads a
 * newer folder. A value that is no number, or not in its range, makes the folder unusable: then there is
 * no GPU at all, rather than one of another size. Settings that are missing are as measured on an H200,
 * driver 580.
 */
#include "files.h"

#include <ctype.h>
#include <errno.h>
#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MIB (1024ull * 1024)
#define KIB 1024ull
/* 1 EiB: a thousand such sizes can be added up without an overflow. */
#define MAX_SIZE (1ull << 60)

static struct store_config config;
static char folder[PATH_MAX - 64];
static bool broken; /* a value is out of its range */
static _Atomic bool loaded;
static pthread_mutex_t loading = PTHREAD_MUTEX_INITIALIZER;

static void set_defaults(void) {
    config = (struct store_config){.gpus = 1, .cuda_version = 13000, .driver_version = "580.159.04"};
    for (int index = 0; index < STORE_MAX_GPUS; index++) {
        config.gpu[index] = (struct store_gpu){
            .name = "NVIDIA H200 (virtual)",
            .total_bytes = 143771 * MIB,
            .reserved_bytes = 615 * MIB + 64 * KIB,
            .init_bytes = 3 * MIB + 256 * KIB,
            .context_bytes = 518 * MIB,
            .context_overhead_bytes = 5 * MIB + 576 * KIB,
            .bar1_bytes = 262144 * MIB,
            .bar1_base_bytes = 1 * MIB + 640 * KIB,
            .ecc_enabled = true,
            .persistence = true,
            .mig_pending = -1,
            .recovery_action = -1,
            .numa_node = -1,
        };
        snprintf(config.gpu[index].uuid, sizeof config.gpu[index].uuid, "GPU-76697274-7561-6c00-8000-%012x",
                 (unsigned)index);
    }
}

static void copy_text(char *field, size_t size, const char *value) {
    size_t length = strnlen(value, size - 1);
    memcpy(field, value, length);
    field[length] = '\0';
}

/* Reads one whole number, and moves *text* behind it and the blanks that follow. */
static uint64_t next_number(const char **text, uint64_t most) {
    char *end;
    errno = 0;
    uint64_t number = isdigit((unsigned char)**text) ? strtoull(*text, &end, 0) : 0;
    if (!isdigit((unsigned char)**text) || errno || number > most) {
        broken = true;
        return 0;
    }
    *text = end + strspn(end, " \t\r");
    return number;
}

static uint64_t only_number(const char *text, uint64_t most) {
    uint64_t number = next_number(&text, most);
    if (*text) broken = true;
    return number;
}

/* Devices are appended in the order of their lines; "none" removes them all. */
static void add_mig(struct store_gpu *gpu, const char *value) {
    struct store_mig *mig = &gpu->mig[gpu->mig_devices];
    if (strcmp(value, "none") == 0) {
        gpu->mig_devices = 0;
        return;
    }
    if (gpu->mig_devices == STORE_MAX_MIG_DEVICES) {
        broken = true;
        return;
    }
    *mig = (struct store_mig){0};
    mig->gpu_instance = (uint32_t)next_number(&value, STORE_INSTANCE_IDS - 1);
    mig->compute_instance = (uint32_t)next_number(&value, UINT8_MAX);
    mig->slices = (uint32_t)next_number(&value, STORE_MAX_MIG_DEVICES);
    mig->compute_slices = (uint32_t)next_number(&value, STORE_MAX_MIG_DEVICES);
    mig->total_bytes = next_number(&value, MAX_SIZE);
    copy_text(mig->profile, sizeof mig->profile, value);
    gpu->mig_devices++;
}

#define TEXT(field) \
    if (strcmp(key, #field) == 0) copy_text(gpu->field, sizeof gpu->field, value)
#define NUMBER(field, type, most) \
    if (strcmp(key, #field) == 0) gpu->field = (type)only_number(value, most)
#define SIZE(field) NUMBER(field, uint64_t, MAX_SIZE)
#define COUNT(field) NUMBER(field, unsigned, UINT32_MAX)
#define SWITCH(field) NUMBER(field, int, 1)

static void set_gpu(struct store_gpu *gpu, const char *key, const char *value) {
    TEXT(name);
    TEXT(uuid);
    SIZE(total_bytes);
    SIZE(reserved_bytes);
    SIZE(init_bytes);
    SIZE(context_bytes);
    SIZE(context_overhead_bytes);
    SIZE(bar1_bytes);
    SIZE(bar1_base_bytes);
    SIZE(windows_bytes);
    SIZE(cpu_bytes);
    SIZE(cache_bytes);
    SIZE(ecc_uncorrected);
    SWITCH(ecc_enabled);
    SWITCH(persistence);
    SWITCH(mig_enabled);
    SWITCH(mig_pending);
    SWITCH(mig_restricted);
    SWITCH(remap_pending);
    SWITCH(remap_failure);
    SWITCH(retires_pages);
    SWITCH(retired_pending);
    SWITCH(host_pids);
    SWITCH(unified);
    COUNT(compute_mode);
    COUNT(remapped_correctable);
    COUNT(remapped_uncorrectable);
    COUNT(retired_pages);
    COUNT(utilization);
    COUNT(virtualization);
    NUMBER(recovery_action, int, UINT8_MAX);
    NUMBER(numa_node, int, UINT8_MAX);
    if (strcmp(key, "mig_device") == 0) add_mig(gpu, value);
}

/* The number in "gpu1.name", and the rest of the key; -1 where the key speaks of all GPUs. */
static int gpu_in(const char **key) {
    char *end;
    if (strncmp(*key, "gpu", 3) != 0 || !isdigit((unsigned char)(*key)[3])) return -1;
    unsigned long index = strtoul(*key + 3, &end, 10);
    if (*end != '.') return -1;
    *key = end + 1;
    return index < STORE_MAX_GPUS ? (int)index : STORE_MAX_GPUS;
}

static void set(const char *key, const char *value) {
    int index = gpu_in(&key);
    if (index >= 0) {
        if (index < STORE_MAX_GPUS) set_gpu(&config.gpu[index], key, value);
    } else if (strcmp(key, "gpus") == 0) {
        config.gpus = (int)only_number(value, STORE_MAX_GPUS);
    } else if (strcmp(key, "driver_version") == 0) {
        copy_text(config.driver_version, sizeof config.driver_version, value);
    } else if (strcmp(key, "cuda_version") == 0) {
        config.cuda_version = (int)only_number(value, INT_MAX);
    } else if (strcmp(key, "wddm") == 0) {
        config.wddm = only_number(value, 1) != 0;
    } else {
        for (index = 0; index < STORE_MAX_GPUS; index++) set_gpu(&config.gpu[index], key, value);
    }
}

static void read_line(char *line) {
    char key[64], value[128];
    if (line[0] != '#' && sscanf(line, " %63[^= \t] = %127[^\n]", key, value) == 2) set(key, value);
}

/* From the numbers of GPU and instance: the same in every process, and unique. */
static void name_mig_devices(void) {
    for (int index = 0; index < config.gpus; index++)
        for (int at = 0; at < config.gpu[index].mig_devices; at++) {
            struct store_mig *mig = &config.gpu[index].mig[at];
            snprintf(mig->uuid, sizeof mig->uuid, "MIG-76697274-7561-6c00-9%x%02x-%012x", mig->gpu_instance & 0xf,
                     mig->compute_instance & 0xff, (unsigned)index);
        }
}

static bool load(void) {
    const char *named = getenv(STORE_FOLDER_VARIABLE);
    char path[PATH_MAX], line[512];
    if (!named || !*named || strlen(named) >= sizeof folder) return false;
    snprintf(path, sizeof path, "%s/config", named);
    FILE *file = fopen(path, "re");
    if (!file) return false;
    set_defaults();
    broken = false;
    while (fgets(line, sizeof line, file)) read_line(line);
    fclose(file);
    if (broken) return false;
    name_mig_devices();
    strcpy(folder, named);
    return true;
}

const struct store_config *store_config(void) {
    if (loaded) return &config;
    pthread_mutex_lock(&loading);
    if (!loaded) loaded = load();
    pthread_mutex_unlock(&loading);
    return loaded ? &config : NULL;
}

const char *store_folder(void) {
    return store_config() ? folder : NULL;
}

const struct store_mig *store_instance(const struct store_gpu *gpu, uint32_t gpu_instance) {
    for (int at = 0; at < gpu->mig_devices; at++)
        if (gpu->mig[at].gpu_instance == gpu_instance) return &gpu->mig[at];
    return NULL;
}
