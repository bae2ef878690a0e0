/* What an address means: every allocation that this process knows, and the attributes of pointers. */
#include "driver.h"

#include <stdlib.h>
#include <string.h>

static struct range **ranges;
static size_t count, capacity;

/* The first range that ends after the address: the only one that can contain it. */
static size_t position(deviceptr address) {
    size_t low = 0, high = count;
    while (low < high) {
        size_t middle = (low + high) / 2;
        if (ranges[middle]->begin + ranges[middle]->nbytes <= address)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

static bool make_room(void) {
    if (count < capacity) return true;
    size_t grown = capacity ? capacity * 2 : 64;
    struct range **moved = realloc(ranges, grown * sizeof *moved);
    if (!moved) return false;
    ranges = moved;
    capacity = grown;
    return true;
}

struct range *range_add(struct range range) {
    deviceptr end;
    if (!size_add(range.begin, range.nbytes, &end) || store_step_fails("step.range")) return NULL;
    struct range *added = make_room() ? malloc(sizeof *added) : NULL;
    if (!added) return NULL;
    *added = range;
    added->id = next_id();
    size_t at = position(range.begin);
    memmove(&ranges[at + 1], &ranges[at], (count++ - at) * sizeof *ranges);
    ranges[at] = added;
    return added;
}

void range_remove(struct range *range) {
    size_t at = position(range->begin);
    memmove(&ranges[at], &ranges[at + 1], (--count - at) * sizeof *ranges);
    free(range);
}

struct range *range_at(deviceptr address) {
    size_t at = position(address);
    return at < count && ranges[at]->begin <= address ? ranges[at] : NULL;
}

struct range *range_exact(deviceptr address) {
    struct range *range = range_at(address);
    return range && range->begin == address ? range : NULL;
}

struct range *range_after(deviceptr address) {
    size_t at = position(address);
    if (at < count && ranges[at]->begin < address) at++;
    return at < count ? ranges[at] : NULL;
}

bool range_overlaps(deviceptr address, uint64_t nbytes) {
    size_t at = position(address);
    return at < count && ranges[at]->begin < size_sum(address, nbytes);
}

bool range_contains(const struct range *range, deviceptr address, uint64_t nbytes) {
    return address >= range->begin && size_within(address - range->begin, nbytes, range->nbytes);
}

/* Mapped allocations may lie side by side, and one copy may cross from one to the next. */
bool range_covers(deviceptr address, uint64_t nbytes) {
    deviceptr end;
    if (!size_add(address, nbytes, &end)) return false;
    while (address < end) {
        struct range *range = range_at(address);
        if (!range || !range->accessible) return false;
        address = range->begin + range->nbytes;
    }
    return true;
}

bool range_is_device(const struct range *range) {
    return range->kind == RANGE_PLAIN || range->kind == RANGE_IPC || range->kind == RANGE_VMM ||
           (range->kind == RANGE_POOL && range->device >= 0);
}

struct block *range_block(const struct range *range) {
    switch (range->kind) {
    case RANGE_PLAIN: return ((struct slab *)range->owner)->block;
    case RANGE_POOL: return ((struct chunk *)range->owner)->block;
    case RANGE_VMM: return ((struct allocation *)range->owner)->block;
    default: return NULL;
    }
}

/* ---- pointer attributes ---- */

enum attribute {
    CONTEXT = 1,
    MEMORY_TYPE,
    DEVICE_POINTER,
    HOST_POINTER,
    P2P_TOKENS,
    SYNC_MEMOPS,
    BUFFER_ID,
    IS_MANAGED,
    DEVICE_ORDINAL,
    LEGACY_IPC_CAPABLE,
    RANGE_START,
    RANGE_SIZE,
    MAPPED,
    HANDLE_TYPES,
    RDMA_CAPABLE,
    ACCESS_FLAGS,
    MEMPOOL,
    MAPPING_SIZE,
    MAPPING_BASE,
    BLOCK_ID,
    HW_DECOMPRESS,
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

/* Every attribute as a number; width_of has its size. */
static uint64_t value_of(const struct range *range, enum attribute attribute, deviceptr address) {
    switch (attribute) {
    case CONTEXT: return (uint64_t)range->context;
    case MEMORY_TYPE: return is_host(range) ? MEMORY_HOST : MEMORY_DEVICE;
    case DEVICE_POINTER: return address;
    case HOST_POINTER: return range_is_device(range) ? 0 : address;
    case SYNC_MEMOPS: return (uint64_t)range->sync_memops;
    case BUFFER_ID:
    case BLOCK_ID: return range->id;
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
    case MEMORY_TYPE:
    case DEVICE_ORDINAL: return 4;
    case SYNC_MEMOPS:
    case IS_MANAGED:
    case LEGACY_IPC_CAPABLE:
    case MAPPED:
    case RDMA_CAPABLE:
    case HW_DECOMPRESS: return 1;
    case P2P_TOKENS: return 0;
    default: return 8;
    }
}

static void write_attribute(void *data, const struct range *range, enum attribute attribute, deviceptr address) {
    /* An unknown address belongs to device -2, of which there is none. */
    uint64_t nothing = attribute == DEVICE_ORDINAL ? (uint32_t)-2 : 0;
    uint64_t value = range ? value_of(range, attribute, address) : nothing;
    memcpy(data, &value, width_of(attribute));
}

static bool known(int attribute) {
    return attribute >= CONTEXT && attribute <= HW_DECOMPRESS;
}

result cuPointerGetAttribute(void *data, int attribute, deviceptr address) {
    GATE_AS(-1, GATE_ANSWERS);
    LOCKED();
    struct range *range = range_at(address);
    if (!data || !known(attribute) || !range) return INVALID_VALUE;
    if (attribute == P2P_TOKENS) return NOT_SUPPORTED;
    if (attribute == HOST_POINTER && range_is_device(range)) return INVALID_VALUE;
    write_attribute(data, range, (enum attribute)attribute, address);
    return OK;
}

result cuPointerGetAttributes(unsigned count, int *attributes, void **data, deviceptr address) {
    GATE();
    LOCKED();
    if (!attributes || !data) return INVALID_VALUE;
    for (unsigned i = 0; i < count; i++) {
        if (!known(attributes[i])) return INVALID_VALUE;
        write_attribute(data[i], range_at(address), (enum attribute)attributes[i], address);
    }
    return OK;
}

result cuPointerSetAttribute(const void *value, int attribute, deviceptr address) {
    GATE();
    LOCKED();
    struct range *range = range_at(address);
    if (!value || attribute != SYNC_MEMOPS || !range) return INVALID_VALUE;
    memcpy(&range->sync_memops, value, sizeof range->sync_memops);
    return OK;
}
