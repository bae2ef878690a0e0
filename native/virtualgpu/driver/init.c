/* cuInit: the control files a process with the driver has open, and nothing charged yet. */
#define _GNU_SOURCE
#include "driver.h"

#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <sys/stat.h>

/* The driver keeps several descriptors of its control files; forks inherit them. */
static bool open_control_file(const char *name) {
    char path[PATH_MAX];
    snprintf(path, sizeof path, "%s/dev/%s", store_folder(), name);
    int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    if (fd >= 0) (void)!fchmod(fd, 0666);
    return fd >= 0;
}

static bool open_control_files(void) {
    return open_control_file("nvidiactl") && open_control_file("nvidia-uvm") && open_control_file("nvidiactl") &&
           open_control_file("nvidia-uvm") && open_control_file("nvidiactl");
}

API result cuInit(unsigned flags) {
    static bool files_open;
    if (flags) return INVALID_VALUE;
    if (!store_config() || device_count() == 0) return NO_DEVICE;
    struct store_fault fault = store_fault("cuInit", -1);
    if (fault.kind == FAULT_ERROR) return (result)fault.code;
    result failed = gate_open();
    if (failed) return failed;
    LOCKED();
    if (!files_open) files_open = open_control_files();
    return files_open ? OK : OPERATING_SYSTEM;
}

API result cuDriverGetVersion(int *version) {
    if (!version) return INVALID_VALUE;
    *version = store_config() ? store_config()->cuda_version : 0;
    return OK;
}
