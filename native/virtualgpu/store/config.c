/* The folder's config: which GPUs this machine pretends to have.
 *
 * Lines of "key = value", applied in order; "#" begins a comment line. `gpus`,
 * `driver_version`, `cuda_version` and `wddm` speak of the machine. Every other key speaks of
 * all GPUs, or of one when it is written "gpu1.key":
 *
 *   name uuid total_bytes reserved_bytes init_bytes context_bytes context_overhead_bytes
 *   bar1_bytes bar1_base_bytes ecc_enabled persistence mig_enabled remap_pending remap_failure
 *   compute_mode remapped_correctable remapped_uncorrectable retires_pages retired_pending
 *   retired_pages ecc_uncorrected utilization windows_bytes mig_pending mig_restricted host_pids
 *   mig_device, once for each: GPU-INSTANCE COMPUTE-INSTANCE SLICES COMPUTE-SLICES BYTES PROFILE
 *
 * Numbers are plain bytes, booleans 0 or 1. Unknown keys are left alone, so that an older
 * library reads a newer folder. What is not said is as measured on an H200, driver 580.
 */
#include "files.h"

#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MIB (1024ull * 1024)
#define KIB 1024ull

static struct store_config config;
static char folder[PATH_MAX - 64];
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

/* Devices are appended in the order in which they are said; "none" takes them all back. */
static void add_mig(struct store_gpu *gpu, const char *value) {
    struct store_mig *mig = &gpu->mig[gpu->mig_devices];
    unsigned long long nbytes;
    if (strcmp(value, "none") == 0) gpu->mig_devices = 0;
    if (gpu->mig_devices == STORE_MAX_MIG_DEVICES) return;
    *mig = (struct store_mig){0};
    int found = sscanf(value, "%u %u %u %u %llu %31s", &mig->gpu_instance, &mig->compute_instance, &mig->slices,
                       &mig->compute_slices, &nbytes, mig->profile);
    if (found != 6 || mig->gpu_instance >= STORE_INSTANCE_IDS) return;
    mig->total_bytes = nbytes;
    gpu->mig_devices++;
}

#define TEXT(field) \
    if (strcmp(key, #field) == 0) copy_text(gpu->field, sizeof gpu->field, value)
#define NUMBER(field) \
    if (strcmp(key, #field) == 0) gpu->field = strtoull(value, NULL, 0)

static void set_gpu(struct store_gpu *gpu, const char *key, const char *value) {
    TEXT(name);
    TEXT(uuid);
    NUMBER(total_bytes);
    NUMBER(reserved_bytes);
    NUMBER(init_bytes);
    NUMBER(context_bytes);
    NUMBER(context_overhead_bytes);
    NUMBER(bar1_bytes);
    NUMBER(bar1_base_bytes);
    NUMBER(ecc_enabled);
    NUMBER(persistence);
    NUMBER(mig_enabled);
    NUMBER(remap_pending);
    NUMBER(remap_failure);
    NUMBER(compute_mode);
    NUMBER(remapped_correctable);
    NUMBER(remapped_uncorrectable);
    NUMBER(retires_pages);
    NUMBER(retired_pending);
    NUMBER(retired_pages);
    NUMBER(ecc_uncorrected);
    NUMBER(utilization);
    NUMBER(windows_bytes);
    NUMBER(mig_pending);
    NUMBER(mig_restricted);
    NUMBER(host_pids);
    if (strcmp(key, "mig_device") == 0) add_mig(gpu, value);
}

static void set_gpus(int count) {
    config.gpus = count < 0 ? 0 : count > STORE_MAX_GPUS ? STORE_MAX_GPUS : count;
}

static void set(const char *key, const char *value) {
    int index, used = 0;
    if (strcmp(key, "gpus") == 0) {
        set_gpus(atoi(value));
    } else if (strcmp(key, "driver_version") == 0) {
        copy_text(config.driver_version, sizeof config.driver_version, value);
    } else if (strcmp(key, "cuda_version") == 0) {
        config.cuda_version = atoi(value);
    } else if (strcmp(key, "wddm") == 0) {
        config.wddm = atoi(value) != 0;
    } else if (sscanf(key, "gpu%d.%n", &index, &used) == 1 && used > 0) {
        if (index >= 0 && index < STORE_MAX_GPUS) set_gpu(&config.gpu[index], key + used, value);
    } else {
        for (index = 0; index < STORE_MAX_GPUS; index++) set_gpu(&config.gpu[index], key, value);
    }
}

static void read_line(char *line) {
    char key[64], value[128];
    if (line[0] != '#' && sscanf(line, " %63[^= \t] = %127[^\n]", key, value) == 2) set(key, value);
}

/* Made of the numbers of GPU and instance: the same in every process, and no two alike. */
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
    while (fgets(line, sizeof line, file)) read_line(line);
    fclose(file);
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
