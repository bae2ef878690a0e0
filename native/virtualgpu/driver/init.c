/* cuInit: from now on the process is seen on every GPU, and nothing is charged to it yet. */
#include "driver.h"

static struct store_footprint control_files;

static result appear(void) {
    int error = store_footprint_add(&control_files, "nvidiactl", 1, 1);
    if (!error) error = store_footprint_add(&control_files, "nvidia-uvm", 2, 0);
    result failed = result_from_errno(error);
    if (!failed) failed = clients_open();
    if (failed) store_footprint_drop(&control_files);
    return failed;
}

API result cuInit(unsigned flags) {
    static bool appeared;
    if (flags) return INVALID_VALUE;
    if (!store_config() || device_count() == 0) return NO_DEVICE;
    struct store_fault fault = store_fault("cuInit", -1);
    if (fault.kind == FAULT_ERROR) return (result)fault.code;
    result failed = gate_open();
    if (failed) return failed;
    LOCKED();
    if (!appeared) failed = appear();
    appeared = !failed;
    return failed;
}

API result cuDriverGetVersion(int *version) {
    if (!version) return INVALID_VALUE;
    *version = store_config() ? store_config()->cuda_version : 0;
    return OK;
}
