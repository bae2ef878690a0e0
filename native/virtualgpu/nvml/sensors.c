/* Utilization, temperature, power, clocks, links: an idle card's readings, which never move.
 *
 * Only the utilization comes from the configuration. What a passively cooled card lacks (fans)
 * or a constant would misstate (energy, violations) is not supported.
 */
#include "nvml.h"

#define READING(function, expression) \
    EXPORT int function(struct nvml_device *device, unsigned *value) { \
        ENTER(device, value); \
        *value = call.sentinel ? NOT_AVAILABLE_32 : (unsigned)(expression); \
        return NVML_SUCCESS; \
    }

enum {
    TEMPERATURE_C = 31,
    POWER_MW = 77000,
    POWER_LEAST_MW = 200000,
    POWER_MOST_MW = 700000,
    CLOCK_SM_MHZ = 345,
    CLOCK_SM_MOST_MHZ = 1980,
    CLOCK_MEMORY_MHZ = 3201,
    CLOCK_KINDS = 4, /* graphics, SM, memory, video */
    CLOCK_MEMORY = 2,
    SAMPLING_US = 167000,
};

struct utilization {
    unsigned gpu, memory;
};

EXPORT int nvmlDeviceGetUtilizationRates(struct nvml_device *device, struct utilization *rates) {
    ENTER(device, rates);
    if (call.gpu->mig_enabled) /* nor on its MIG devices, as the interface documents */
        return NVML_NOT_SUPPORTED;
    *rates = (struct utilization){call.gpu->utilization, 0};
    if (call.sentinel) *rates = (struct utilization){NOT_AVAILABLE_32, NOT_AVAILABLE_32};
    return NVML_SUCCESS;
}

#define IDLE_ENGINE(function) \
    EXPORT int function(struct nvml_device *device, unsigned *utilization, unsigned *period) { \
        ENTER(device, utilization && period ? utilization : NULL); \
        *utilization = 0; \
        *period = SAMPLING_US; \
        return NVML_SUCCESS; \
    }

IDLE_ENGINE(nvmlDeviceGetEncoderUtilization)
IDLE_ENGINE(nvmlDeviceGetDecoderUtilization)
IDLE_ENGINE(nvmlDeviceGetJpgUtilization)
IDLE_ENGINE(nvmlDeviceGetOfaUtilization)

struct temperature {
    unsigned version, sensor;
    int celsius;
};

EXPORT int nvmlDeviceGetTemperature(struct nvml_device *device, unsigned sensor, unsigned *celsius) {
    ENTER(device, celsius);
    if (sensor != 0) return NVML_INVALID_ARGUMENT;
    *celsius = call.sentinel ? NOT_AVAILABLE_32 : TEMPERATURE_C;
    return NVML_SUCCESS;
}

EXPORT int nvmlDeviceGetTemperatureV(struct nvml_device *device, struct temperature *temperature) {
    ENTER(device, temperature);
    if (temperature->version != VERSIONED(struct temperature, 1)) return NVML_VERSION_MISMATCH;
    if (temperature->sensor != 0) return NVML_INVALID_ARGUMENT;
    temperature->celsius = TEMPERATURE_C;
    return NVML_SUCCESS;
}

READING(nvmlDeviceGetPowerUsage, POWER_MW)
READING(nvmlDeviceGetPowerManagementLimit, POWER_MOST_MW)
READING(nvmlDeviceGetPowerManagementDefaultLimit, POWER_MOST_MW)
READING(nvmlDeviceGetEnforcedPowerLimit, POWER_MOST_MW)
READING(nvmlDeviceGetPerformanceState, 0)
READING(nvmlDeviceGetPowerState, 0)
READING(nvmlDeviceGetNumFans, 0)

EXPORT int nvmlDeviceGetPowerManagementLimitConstraints(struct nvml_device *device, unsigned *least, unsigned *most) {
    ENTER(device, least && most ? least : NULL);
    *least = POWER_LEAST_MW;
    *most = POWER_MOST_MW;
    return NVML_SUCCESS;
}

static int clock_of(unsigned kind, unsigned processor_mhz, unsigned *mhz) {
    if (kind >= CLOCK_KINDS) return NVML_INVALID_ARGUMENT;
    *mhz = kind == CLOCK_MEMORY ? CLOCK_MEMORY_MHZ : processor_mhz;
    return NVML_SUCCESS;
}

EXPORT int nvmlDeviceGetClockInfo(struct nvml_device *device, unsigned kind, unsigned *mhz) {
    ENTER(device, mhz);
    return clock_of(kind, CLOCK_SM_MHZ, mhz);
}

EXPORT int nvmlDeviceGetMaxClockInfo(struct nvml_device *device, unsigned kind, unsigned *mhz) {
    ENTER(device, mhz);
    return clock_of(kind, CLOCK_SM_MOST_MHZ, mhz);
}

EXPORT int nvmlDeviceGetApplicationsClock(struct nvml_device *device, unsigned kind, unsigned *mhz) {
    ENTER(device, mhz);
    return clock_of(kind, CLOCK_SM_MOST_MHZ, mhz);
}

READING(nvmlDeviceGetCurrPcieLinkGeneration, 5)
READING(nvmlDeviceGetMaxPcieLinkGeneration, 5)
READING(nvmlDeviceGetGpuMaxPcieLinkGeneration, 5)
READING(nvmlDeviceGetCurrPcieLinkWidth, 16)
READING(nvmlDeviceGetMaxPcieLinkWidth, 16)
READING(nvmlDeviceGetPcieReplayCounter, 0)

EXPORT int nvmlDeviceGetPcieThroughput(struct nvml_device *device, unsigned counter, unsigned *kib_per_s) {
    ENTER(device, kib_per_s);
    if (counter > 1) return NVML_INVALID_ARGUMENT;
    *kib_per_s = 0;
    return NVML_SUCCESS;
}

/* Bit 0 says: slow because there is nothing to do. */
#define IDLE_REASON(function) \
    EXPORT int function(struct nvml_device *device, unsigned long long *reasons) { \
        ENTER(device, reasons); \
        *reasons = 1; \
        return NVML_SUCCESS; \
    }

IDLE_REASON(nvmlDeviceGetCurrentClocksEventReasons)
IDLE_REASON(nvmlDeviceGetCurrentClocksThrottleReasons)

/* ---- field values: all but one, where it is configured, are answered as not supported ---- */

enum {
    FIELD_RECOVERY_ACTION = 230,
    VALUE_UNSIGNED = 1,
};

struct field_value {
    unsigned field, scope;
    long long timestamp, latency_us;
    unsigned value_type;
    int status;
    unsigned long long value;
};

EXPORT int nvmlDeviceGetFieldValues(struct nvml_device *device, int count, struct field_value *values) {
    ENTER(device, count > 0 ? values : NULL);
    for (int i = 0; i < count; i++) {
        values[i].status = NVML_NOT_SUPPORTED;
        if (values[i].field != FIELD_RECOVERY_ACTION || call.gpu->recovery_action < 0) continue;
        values[i].status = NVML_SUCCESS;
        values[i].value_type = VALUE_UNSIGNED;
        values[i].value = (unsigned long long)call.gpu->recovery_action;
    }
    return NVML_SUCCESS;
}
