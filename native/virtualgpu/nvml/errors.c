/* The words for every number that a call may return. */
#include "nvml.h"

static const char *const words[] = {
    [0] = "Success",
    [1] = "Uninitialized",
    [2] = "Invalid Argument",
    [3] = "Not Supported",
    [4] = "Insufficient Permissions",
    [5] = "Already Initialized",
    [6] = "Not Found",
    [7] = "Insufficient Size",
    [8] = "Insufficient External Power",
    [9] = "Driver Not Loaded",
    [10] = "Timeout",
    [11] = "Interrupt Request Issue",
    [12] = "NVML Shared Library Not Found",
    [13] = "Function Not Found",
    [14] = "Corrupted infoROM",
    [15] = "GPU is lost",
    [16] = "GPU requires reset",
    [17] = "GPU access blocked by the operating system",
    [18] = "Driver/library version mismatch",
    [19] = "In use by another client",
    [20] = "Insufficient Memory",
    [21] = "No data",
    [22] = "vGPU ECC Not Supported",
    [23] = "Insufficient Resources",
    [24] = "Frequency Not Supported",
    [25] = "Argument Version Mismatch",
    [26] = "Deprecated",
    [27] = "Not Ready",
    [28] = "GPU Not Found",
    [29] = "Invalid State",
    [30] = "Reset Type Not Supported",
};

/* Answers before init and under every fault: it is how the others' failures are told. */
EXPORT const char *nvmlErrorString(int result) {
    int known = (int)(sizeof words / sizeof *words);
    return result >= 0 && result < known ? words[result] : "Unknown Error";
}
