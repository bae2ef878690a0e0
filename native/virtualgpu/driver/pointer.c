/* Pointer attributes: what the driver knows of an address. */
#include "driver.h"

#include <string.h>

enum attribute {
    CONTEXT = 1, MEMORY_TYPE, DEVICE_POINTER, HOST_POINTER, P2P_TOKENS, SYNC_MEMOPS, BUFFER_ID, IS_MANAGED,
    DEVICE_ORDINAL, LEGACY_IPC_CAPABLE, RANGE_START, RANGE_SIZE, MAPPED, HANDLE_TYPES, RDMA_CAPABLE,
    ACCESS_FLAGS, MEMPOOL, MAPPING_SIZE, MAPPING_BASE, BLOCK_ID, HW_DECOMPRESS,
};

static bool is_host(const struct range *range) {
    return !range_is_device(range) && range->kind != RANGE_MANAGED;
}

static struct pool *pool_of(const struct range *range) {
    return range->kind == RANGE_POOL ? ((struct chunk *)range->owner)->pool : NULL;
}

static uint64_t handle_types(const struct range *range) {
    if (range->kind == RANGE_VMM) return (uint64_t)((struct allocation *)range->owner)->prop.handle_types;
    return pool_of(range) ? (uint64_t)pool_of(range)->props.handle_types : 0;
}

static uint64_t mapping_base(const struct range *range) {
    struct block *block = range_block(range);
    return block && block->address ? block->address : range->begin;
}

static uint64_t mapping_size(const struct range *range) {
    struct block *block = range_block(range);
    return block && block->address ? block->nbytes : range->nbytes;
}

/* Every answer as a number; its width is the attribute's. */
static uint64_t value_of(const struct range *range, enum attribute attribute, deviceptr address) {
    switch (attribute) {
    case CONTEXT: return (uint64_t)range->context;
    case MEMORY_TYPE: return is_host(range) ? MEMORY_HOST : MEMORY_DEVICE;
    case DEVICE_POINTER: return address;
    case HOST_POINTER: return range_is_device(range) ? 0 : address;
    case SYNC_MEMOPS: return (uint64_t)range->sync_memops;
    case BUFFER_ID: case BLOCK_ID: return range->id;
    case IS_MANAGED: return range->kind == RANGE_MANAGED;
    case DEVICE_ORDINAL: return (uint32_t)(range->device < 0 ? -1 : range->device);
    case LEGACY_IPC_CAPABLE: return range->kind == RANGE_PLAIN;
    case RANGE_START: return range->begin;
    case RANGE_SIZE: return range->nbytes;
    case MAPPED: return range->accessible;
    case HANDLE_TYPES: return handle_types(range);
    case RDMA_CAPABLE: return range_is_device(range);
    case ACCESS_FLAGS: return range->accessible ? ACCESS_READWRITE : ACCESS_NONE;
    case MEMPOOL: return (uint64_t)pool_of(range);
    case MAPPING_SIZE: return mapping_size(range);
    case MAPPING_BASE: return mapping_base(range);
    default: return 0;
    }
}

static size_t width_of(enum attribute attribute) {
    switch (attribute) {
    case MEMORY_TYPE: case DEVICE_ORDINAL: return 4;
    case SYNC_MEMOPS: case IS_MANAGED: case LEGACY_IPC_CAPABLE: case MAPPED: case RDMA_CAPABLE: case HW_DECOMPRESS:
        return 1;
    case P2P_TOKENS: return 0;
    default: return 8;
    }
}

static void answer(void *data, const struct range *range, enum attribute attribute, deviceptr address) {
    /* An unknown address belongs to device -2, of which there is none. */
    uint64_t nothing = attribute == DEVICE_ORDINAL ? (uint32_t)-2 : 0;
    uint64_t value = range ? value_of(range, attribute, address) : nothing;
    memcpy(data, &value, width_of(attribute));
}

static bool known(int attribute) {
    return attribute >= CONTEXT && attribute <= HW_DECOMPRESS;
}

API result cuPointerGetAttribute(void *data, int attribute, deviceptr address) {
    GATE();
    LOCKED();
    struct range *range = range_at(address);
    if (!data || !known(attribute) || !range) return INVALID_VALUE;
    if (attribute == P2P_TOKENS) return NOT_SUPPORTED;
    if (attribute == HOST_POINTER && range_is_device(range)) return INVALID_VALUE;
    answer(data, range, (enum attribute)attribute, address);
    return OK;
}

API result cuPointerGetAttributes(unsigned count, int *attributes, void **data, deviceptr address) {
    GATE();
    LOCKED();
    if (!attributes || !data) return INVALID_VALUE;
    for (unsigned i = 0; i < count; i++) {
        if (!known(attributes[i])) return INVALID_VALUE;
        answer(data[i], range_at(address), (enum attribute)attributes[i], address);
    }
    return OK;
}

API result cuPointerSetAttribute(const void *value, int attribute, deviceptr address) {
    GATE();
    LOCKED();
    struct range *range = range_at(address);
    if (!value || attribute != SYNC_MEMOPS || !range) return INVALID_VALUE;
    memcpy(&range->sync_memops, value, sizeof range->sync_memops);
    return OK;
}
