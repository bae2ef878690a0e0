/* Device attributes, as an H200 answers; what needs kernels, arrays or fabrics says no. */
#include "driver.h"

static const int fixed[148] = {
    /* threads and grids */
    [1] = 1024, [2] = 1024, [3] = 1024, [4] = 64, [5] = 2147483647, [6] = 65535, [7] = 65535,
    [8] = 49152, [9] = 65536, [10] = 32, [11] = 2147483647, [12] = 65536, [13] = 1980000,
    [14] = 512, [15] = 1, [16] = 132, [19] = 1,
    /* the largest textures and surfaces */
    [21] = 131072, [22] = 131072, [23] = 65536, [24] = 16384, [25] = 16384, [26] = 16384, [27] = 32768,
    [28] = 32768, [29] = 2048, [30] = 512, [31] = 1, [34] = 0,
    [36] = 3201000, [37] = 6144, [38] = 62914560, [39] = 2048, [40] = 3, [41] = 1, [42] = 32768,
    [43] = 2048, [44] = 1, [45] = 32768, [46] = 32768, [47] = 8192, [48] = 8192, [49] = 32768, [51] = 32,
    [52] = 32768, [53] = 32768, [54] = 2046, [55] = 32768, [56] = 131072, [57] = 65536, [58] = 16384,
    [59] = 16384, [60] = 16384, [61] = 32768, [62] = 2048, [63] = 32768, [64] = 32768, [65] = 2048,
    [66] = 32768, [67] = 32768, [68] = 2046, [69] = 268435456, [70] = 131072, [71] = 65000, [72] = 2097120,
    [73] = 32768, [74] = 32768,
    /* compute capability 9.0 */
    [75] = 9, [76] = 0, [77] = 32768, [78] = 1, [79] = 1, [80] = 1, [81] = 233472, [82] = 65536,
    /* memory: managed with concurrent access, host pointers usable, no pageable access */
    [83] = 1, [87] = 2, [89] = 1, [90] = 1, [91] = 1, [97] = 232448, [98] = 1, [99] = 1,
    [102] = 1, [103] = 1, [106] = 32, [108] = 39321600, [109] = 134213632, [110] = 1, [111] = 1024,
    [113] = 1, [115] = 1, [116] = 1, [117] = 1, [118] = 100, [119] = HANDLE_POSIX_FD, [124] = 1, [125] = 1,
    [126] = 4, [131] = -1, [134] = 0, [142] = 1, [144] = 1,
};

/* Multiprocessors of one to seven slices of an H200, by the MIG guide's table of its profiles. */
static const int multiprocessors[8] = {0, 16, 32, 60, 64, 64, 64, 132};

enum { MULTIPROCESSORS = 16, COMPUTE_MODE = 20, ECC_ENABLED = 32, PCI_BUS = 33 };

int device_multiprocessors(int device) {
    return device_mig(device) ? multiprocessors[device_mig(device)->compute_slices & 7] : fixed[MULTIPROCESSORS];
}

API result cuDeviceGetAttribute(int *value, int attribute, int device) {
    GATE_ON(device);
    if (!value || attribute < 1 || attribute >= (int)(sizeof fixed / sizeof *fixed)) return INVALID_VALUE;
    if (device_gpu(device) < 0) return INVALID_DEVICE;
    const struct store_gpu *gpu = device_config(device);
    switch (attribute) {
    case COMPUTE_MODE: *value = (int)gpu->compute_mode; break;
    case ECC_ENABLED: *value = gpu->ecc_enabled; break;
    case MULTIPROCESSORS: *value = device_multiprocessors(device); break;
    case PCI_BUS: *value = device_gpu(device) + 1; break;
    default: *value = fixed[attribute];
    }
    return OK;
}
