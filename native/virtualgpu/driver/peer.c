/* Peers: the virtual GPUs of one folder all reach each other, for all are host memory. */
#include "driver.h"

static bool are_peers(int device, int other) {
    return device != other && device_gpu(device) >= 0 && device_gpu(other) >= 0;
}

API result cuDeviceCanAccessPeer(int *can, int device, int other) {
    GATE_ON(device);
    if (!can) return INVALID_VALUE;
    if (device_gpu(device) < 0 || device_gpu(other) < 0) return INVALID_DEVICE;
    *can = are_peers(device, other);
    return OK;
}

API result cuDeviceGetP2PAttribute(int *value, int attribute, int device, int other) {
    GATE_ON(device);
    if (!value || attribute < 1 || attribute > 5 || !are_peers(device, other)) return INVALID_VALUE;
    *value = attribute == 2 || attribute == 3; /* access and native atomics; no arrays, rank 0 */
    return OK;
}

static result both(struct context **current, struct context *other) {
    result failed = context_need(current);
    if (!failed) failed = context_check(other);
    if (failed) return failed;
    return are_peers((*current)->device, other->device) ? OK : PEER_ACCESS_UNSUPPORTED;
}

API result cuCtxEnablePeerAccess(struct context *other, unsigned flags) {
    GATE();
    LOCKED();
    struct context *current;
    result failed = flags ? INVALID_VALUE : both(&current, other);
    if (failed) return failed;
    uint64_t bit = 1ull << other->device;
    if (current->peers & bit) return PEER_ACCESS_ALREADY_ENABLED;
    current->peers |= bit;
    return OK;
}

API result cuCtxDisablePeerAccess(struct context *other) {
    GATE();
    LOCKED();
    struct context *current;
    result failed = both(&current, other);
    if (failed) return failed;
    uint64_t bit = 1ull << other->device;
    if (!(current->peers & bit)) return PEER_ACCESS_NOT_ENABLED;
    current->peers &= ~bit;
    return OK;
}
