/* Which GPU this is: name, UUID, numbers, place on the bus, kind of chip. */
#include "identity.h"

#include <stdio.h>

enum { BRAND_NVIDIA = 14, ARCHITECTURE_HOPPER = 9, BUS_PCIE = 2, CLASS_3D_CONTROLLER = 0x0302 };

#define PCI_DEVICE_ID 0x233510deu /* device 2335, vendor 10de: an H200 */
#define PCI_SUBSYSTEM_ID 0x18be10deu

void identity_serial(int index, char text[SERIAL_SIZE]) {
    snprintf(text, SERIAL_SIZE, "16000000%05d", index);
}

EXPORT int nvmlDeviceGetName(struct nvml_device *device, char *name, unsigned length) {
    ENTER_ANY(device, name);
    char text[sizeof call.gpu->name + sizeof call.mig->profile + 8];
    if (!call.mig)
        return nvml_copy(name, length, call.gpu->name);
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

#define CONSTANT(function, type, constant)                                                     \
    EXPORT int function(struct nvml_device *device, type *value) {                             \
        ENTER(device, value);                                                                  \
        *value = (constant);                                                                   \
        return NVML_SUCCESS;                                                                   \
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
    *pci = (struct pci_info_v1){
        .domain = PCI_DOMAIN, .bus = identity_bus(call.index), .device_id = PCI_DEVICE_ID};
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
    if (pci->version != version)
        return NVML_VERSION_MISMATCH;
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
