/* What an address means: every allocation this process knows, sorted by address. */
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
    return at < count && ranges[at]->begin < address + nbytes;
}

/* Mapped allocations may lie side by side, and one copy may cross from one to the next. */
bool range_covers(deviceptr address, uint64_t nbytes) {
    deviceptr end = address + nbytes;
    if (end < address) return false;
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
