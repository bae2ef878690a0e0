/* Which GPU this is: name, UUID, numbers, place on the bus, kind of chip; and finding a GPU by them. */
#include "nvml.h"

#include <stdio.h>
#include <string.h>
#include <strings.h>

#define PCI_DOMAIN 0u
#define SERIAL_SIZE 30

/* The driver's cuDeviceGetPCIBusId gives the same number: clients match GPUs by it. */
static inline unsigned identity_bus(int index) {
    return (unsigned)index + 1;
}

enum { BRAND_NVIDIA = 14, ARCHITECTURE_HOPPER = 9, BUS_PCIE = 2, CLASS_3D_CONTROLLER = 0x0302 };

#define PCI_DEVICE_ID 0x233510deu /* device 2335, vendor 10de: an H200 */
#define PCI_SUBSYSTEM_ID 0x18be10deu

static void identity_serial(int index, char text[SERIAL_SIZE]) {
    snprintf(text, SERIAL_SIZE, "16000000%05d", index);
}

EXPORT int nvmlDeviceGetName(struct nvml_device *device, char *name, unsigned length) {
    ENTER_ANY(device, name);
    char text[sizeof call.gpu->name + sizeof call.mig->profile + 8];
    if (!call.mig) return nvml_copy(name, length, call.gpu->name);
    snprintf(text, sizeof text, "%s MIG %s", call.gpu->name, call.mig->profile);
    return nvml_copy(name, length, text);
}

EXPORT int nvmlDeviceGetUUID(struct nvml_device *device, char *uuid, unsigned length) {
    ENTER_ANY(device, uuid);
    return nvml_copy(uuid, length, call.mig ? call.mig->uuid : call.gpu->uuid);
}

EXPORT int nvmlDeviceGetSerial(struct nvml_device *device, char *serial, unsigned length) {
    ENTER(device, serial);
    char text[SERIAL_SIZE];
    identity_serial(call.index, text);
    return nvml_copy(serial, length, text);
}

EXPORT int nvmlDeviceGetIndex(struct nvml_device *device, unsigned *index) {
    ENTER(device, index);
    *index = (unsigned)call.index;
    return NVML_SUCCESS;
}

EXPORT int nvmlDeviceGetMinorNumber(struct nvml_device *device, unsigned *minor) {
    ENTER(device, minor);
    *minor = (unsigned)call.index;
    return NVML_SUCCESS;
}

EXPORT int nvmlDeviceGetBoardId(struct nvml_device *device, unsigned *board) {
    ENTER(device, board);
    *board = identity_bus(call.index) << 8;
    return NVML_SUCCESS;
}

#define CONSTANT(function, type, constant) \
    EXPORT int function(struct nvml_device *device, type *value) { \
        ENTER(device, value); \
        *value = (constant); \
        return NVML_SUCCESS; \
    }

CONSTANT(nvmlDeviceGetMultiGpuBoard, unsigned, 0)
CONSTANT(nvmlDeviceGetBrand, unsigned, BRAND_NVIDIA)
CONSTANT(nvmlDeviceGetArchitecture, unsigned, ARCHITECTURE_HOPPER)
CONSTANT(nvmlDeviceGetNumGpuCores, unsigned, 16896)
CONSTANT(nvmlDeviceGetBusType, unsigned, BUS_PCIE)

EXPORT int nvmlDeviceGetCudaComputeCapability(struct nvml_device *device, int *major, int *minor) {
    ENTER(device, major && minor ? major : NULL);
    *major = 9;
    *minor = 0;
    return NVML_SUCCESS;
}

struct pci_info_v1 {
    char bus_id[16];
    unsigned domain, bus, device, device_id;
};

struct pci_info_v2 {
    char bus_id[16];
    unsigned domain, bus, device, device_id, subsystem_id, unused[4];
};

struct pci_info_v3 {
    char legacy_bus_id[16];
    unsigned domain, bus, device, device_id, subsystem_id;
    char bus_id[32];
};

struct pci_info_extended {
    unsigned version, domain, bus, device, device_id, subsystem_id, base_class, sub_class;
    char bus_id[32];
};

static void short_bus_id(int index, char text[16]) {
    snprintf(text, 16, "%04X:%02X:00.0", PCI_DOMAIN, identity_bus(index) & 0xff);
}

static void long_bus_id(int index, char text[32]) {
    snprintf(text, 32, "%08X:%02X:00.0", PCI_DOMAIN, identity_bus(index) & 0xff);
}

EXPORT int nvmlDeviceGetPciInfo(struct nvml_device *device, struct pci_info_v1 *pci) {
    ENTER(device, pci);
    *pci = (struct pci_info_v1){.domain = PCI_DOMAIN, .bus = identity_bus(call.index), .device_id = PCI_DEVICE_ID};
    short_bus_id(call.index, pci->bus_id);
    return NVML_SUCCESS;
}

EXPORT int nvmlDeviceGetPciInfo_v2(struct nvml_device *device, struct pci_info_v2 *pci) {
    ENTER(device, pci);
    *pci = (struct pci_info_v2){.domain = PCI_DOMAIN,
                                .bus = identity_bus(call.index),
                                .device_id = PCI_DEVICE_ID,
                                .subsystem_id = PCI_SUBSYSTEM_ID};
    short_bus_id(call.index, pci->bus_id);
    return NVML_SUCCESS;
}

EXPORT int nvmlDeviceGetPciInfo_v3(struct nvml_device *device, struct pci_info_v3 *pci) {
    ENTER(device, pci);
    *pci = (struct pci_info_v3){.domain = PCI_DOMAIN,
                                .bus = identity_bus(call.index),
                                .device_id = PCI_DEVICE_ID,
                                .subsystem_id = PCI_SUBSYSTEM_ID};
    short_bus_id(call.index, pci->legacy_bus_id);
    long_bus_id(call.index, pci->bus_id);
    return NVML_SUCCESS;
}

EXPORT int nvmlDeviceGetPciInfoExt(struct nvml_device *device, struct pci_info_extended *pci) {
    ENTER(device, pci);
    const unsigned version = VERSIONED(struct pci_info_extended, 1);
    if (pci->version != version) return NVML_VERSION_MISMATCH;
    *pci = (struct pci_info_extended){.version = version,
                                      .domain = PCI_DOMAIN,
                                      .bus = identity_bus(call.index),
                                      .device_id = PCI_DEVICE_ID,
                                      .subsystem_id = PCI_SUBSYSTEM_ID,
                                      .base_class = CLASS_3D_CONTROLLER >> 8,
                                      .sub_class = CLASS_3D_CONTROLLER & 0xff};
    long_bus_id(call.index, pci->bus_id);
    return NVML_SUCCESS;
}

/* ---- from a number, a UUID, a bus id or a serial number to the GPU's handle ---- */

EXPORT int nvmlDeviceGetCount_v2(unsigned *count) {
    ENTER_SYSTEM(count);
    *count = (unsigned)store_config()->gpus;
    return NVML_SUCCESS;
}

EXPORT int nvmlDeviceGetCount(unsigned *count) {
    ENTER_SYSTEM(count);
    *count = (unsigned)store_config()->gpus;
    return NVML_SUCCESS;
}

/* For a lost GPU, getting the handle already fails: the fault is looked up by the GPU's number. */
static int handle_at(const char *function, int index, struct nvml_device **device, int missing) {
    *device = nvml_device_at(index);
    return *device ? nvml_enter_device(function, *device, device).status : missing;
}

static int ready(const void *key, const void *output) {
    if (!nvml_is_initialized()) return NVML_UNINITIALIZED;
    return key && output ? NVML_SUCCESS : NVML_INVALID_ARGUMENT;
}

static int by_index(const char *function, unsigned index, struct nvml_device **device) {
    int status = ready(device, device);
    int gpu = index < STORE_MAX_GPUS ? (int)index : -1;
    return status == NVML_SUCCESS ? handle_at(function, gpu, device, NVML_INVALID_ARGUMENT) : status;
}

EXPORT int nvmlDeviceGetHandleByIndex_v2(unsigned index, struct nvml_device **device) {
    return by_index(__func__, index, device);
}

EXPORT int nvmlDeviceGetHandleByIndex(unsigned index, struct nvml_device **device) {
    return by_index(__func__, index, device);
}

static int gpu_with_uuid(const char *uuid) {
    for (int i = 0; i < store_config()->gpus; i++)
        if (strcasecmp(uuid, store_config()->gpu[i].uuid) == 0) return i;
    return -1;
}

static struct nvml_device *mig_with_uuid(const char *uuid) {
    for (int i = 0; i < store_config()->gpus; i++)
        for (int mig = 0; mig < store_config()->gpu[i].mig_devices; mig++)
            if (strcasecmp(uuid, store_config()->gpu[i].mig[mig].uuid) == 0) return nvml_mig_device_at(i, mig);
    return NULL;
}

static int by_uuid(const char *function, const char *uuid, struct nvml_device **device) {
    int gpu = gpu_with_uuid(uuid);
    if (gpu >= 0) return handle_at(function, gpu, device, NVML_NOT_FOUND);
    *device = mig_with_uuid(uuid);
    return *device ? nvml_enter_any_device(function, *device, device).status : NVML_NOT_FOUND;
}

EXPORT int nvmlDeviceGetHandleByUUID(const char *uuid, struct nvml_device **device) {
    int status = ready(uuid, device);
    return status == NVML_SUCCESS ? by_uuid(__func__, uuid, device) : status;
}

enum { UUID_TEXT = 1, UUID_BYTES = 2 };

struct uuid {
    unsigned version, type;
    union {
        char text[41];
        unsigned char bytes[16];
    };
};

/* "GPU-" and the bytes in hexadecimal, with dashes after the 4th, 6th, 8th and 10th. */
static void write_uuid(const unsigned char bytes[16], char text[41]) {
    char *at = text + sprintf(text, "GPU");
    for (int i = 0; i < 16; i++)
        at += sprintf(at, i == 0 || (i >= 4 && i <= 10 && i % 2 == 0) ? "-%02x" : "%02x", bytes[i]);
}

EXPORT int nvmlDeviceGetHandleByUUIDV(const struct uuid *uuid, struct nvml_device **device) {
    int status = ready(uuid, device);
    if (status != NVML_SUCCESS) return status;
    if (uuid->version != VERSIONED(struct uuid, 1)) return NVML_VERSION_MISMATCH;
    char text[sizeof uuid->text];
    if (uuid->type == UUID_BYTES)
        write_uuid(uuid->bytes, text);
    else if (uuid->type == UUID_TEXT)
        snprintf(text, sizeof text, "%.*s", (int)sizeof text - 1, uuid->text);
    else
        return NVML_INVALID_ARGUMENT;
    return by_uuid(__func__, text, device);
}

EXPORT int nvmlDeviceGetHandleBySerial(const char *serial, struct nvml_device **device) {
    int status = ready(serial, device), found = -1;
    if (status != NVML_SUCCESS) return status;
    for (int i = 0; i < store_config()->gpus; i++) {
        char own[SERIAL_SIZE];
        identity_serial(i, own);
        if (strcmp(serial, own) == 0) found = i;
    }
    return handle_at(__func__, found, device, NVML_NOT_FOUND);
}

/* "0000:01:00.0", "00000000:01:00.0" and "1:0.0" all name the same place. */
static int gpu_at_bus(const char *bus_id) {
    unsigned domain = 0, bus, slot, function = 0;
    int length = 0;
    if (sscanf(bus_id, "%x:%x:%x.%x%n", &domain, &bus, &slot, &function, &length) < 4) {
        domain = 0;
        if (sscanf(bus_id, "%x:%x.%x%n", &bus, &slot, &function, &length) < 3) return -1;
    }
    if (bus_id[length] != '\0' || slot != 0 || function != 0) return -1;
    for (int i = 0; i < store_config()->gpus; i++)
        if (domain == PCI_DOMAIN && bus == identity_bus(i)) return i;
    return -1;
}

static int by_bus(const char *function, const char *bus_id, struct nvml_device **device) {
    int status = ready(bus_id, device);
    return status == NVML_SUCCESS ? handle_at(function, gpu_at_bus(bus_id), device, NVML_NOT_FOUND) : status;
}

EXPORT int nvmlDeviceGetHandleByPciBusId_v2(const char *bus_id, struct nvml_device **device) {
    return by_bus(__func__, bus_id, device);
}

EXPORT int nvmlDeviceGetHandleByPciBusId(const char *bus_id, struct nvml_device **device) {
    return by_bus(__func__, bus_id, device);
}
