/* Where a virtual GPU says it sits, and its serial number: both follow from its number. */
#ifndef VRAM_VIRTUALGPU_NVML_IDENTITY_H
#define VRAM_VIRTUALGPU_NVML_IDENTITY_H

#include "nvml.h"

#define PCI_DOMAIN 0u
#define SERIAL_SIZE 30

/* The driver's cuDeviceGetPCIBusId gives the same number: clients match GPUs by it. */
static inline unsigned identity_bus(int index) {
    return (unsigned)index + 1;
}

void identity_serial(int index, char text[SERIAL_SIZE]);

#endif
