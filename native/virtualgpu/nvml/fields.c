/* Field values: a list of questions, each with its own answer. Here each says: not supported. */
#include "nvml.h"

struct field_value {
    unsigned field, scope;
    long long timestamp, latency_us;
    unsigned value_type;
    int status;
    unsigned long long value;
};

EXPORT int nvmlDeviceGetFieldValues(struct nvml_device *device, int count, struct field_value *values) {
    ENTER(device, count > 0 ? values : NULL);
    for (int i = 0; i < count; i++)
        values[i].status = NVML_NOT_SUPPORTED;
    return NVML_SUCCESS;
}
