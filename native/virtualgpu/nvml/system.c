/* Questions about the machine: versions, process names, and units that are not there. */
#include "nvml.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

EXPORT int nvmlSystemGetDriverVersion(char *version, unsigned length) {
    ENTER_SYSTEM(version);
    return nvml_copy(version, length, store_config()->driver_version);
}

EXPORT int nvmlSystemGetNVMLVersion(char *version, unsigned length) {
    ENTER_SYSTEM(version);
    char text[64]; /* the CUDA major version, then the driver's: "13.580.159.04" */
    snprintf(text, sizeof text, "%d.%s", store_config()->cuda_version / 1000,
             store_config()->driver_version);
    return nvml_copy(version, length, text);
}

EXPORT int nvmlSystemGetCudaDriverVersion(int *version) {
    ENTER_SYSTEM(version);
    *version = store_config()->cuda_version;
    return NVML_SUCCESS;
}

EXPORT int nvmlSystemGetCudaDriverVersion_v2(int *version) {
    ENTER_SYSTEM(version);
    *version = store_config()->cuda_version;
    return NVML_SUCCESS;
}

struct driver_branch {
    unsigned version;
    char branch[80];
};

EXPORT int nvmlSystemGetDriverBranch(struct driver_branch *info, unsigned length) {
    ENTER_SYSTEM(info);
    if (info->version != VERSIONED(struct driver_branch, 1))
        return NVML_VERSION_MISMATCH;
    char text[32];
    snprintf(text, sizeof text, "r%d_00", atoi(store_config()->driver_version));
    return nvml_copy(info->branch, length < sizeof info->branch ? length : sizeof info->branch, text);
}

EXPORT int nvmlSystemGetProcessName(unsigned pid, char *name, unsigned length) {
    ENTER_SYSTEM(name);
    if (length == 0)
        return NVML_INVALID_ARGUMENT;
    char path[32], text[1024] = "";
    snprintf(path, sizeof path, "/proc/%u/cmdline", pid);
    FILE *file = fopen(path, "re");
    if (!file)
        return NVML_NOT_FOUND;
    size_t got = fread(text, 1, sizeof text - 1, file); /* arguments end in zeros: only the first */
    fclose(file);
    text[got] = '\0';
    snprintf(name, length, "%s", text);
    return NVML_SUCCESS;
}

EXPORT int nvmlSystemGetHicVersion(unsigned *count, void *entries) {
    (void)entries;
    ENTER_SYSTEM(count);
    *count = 0;
    return NVML_SUCCESS;
}

EXPORT int nvmlUnitGetCount(unsigned *count) {
    ENTER_SYSTEM(count);
    *count = 0;
    return NVML_SUCCESS;
}

EXPORT int nvmlGetExcludedDeviceCount(unsigned *count) {
    ENTER_SYSTEM(count);
    *count = 0;
    return NVML_SUCCESS;
}
