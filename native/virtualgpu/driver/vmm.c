/* Virtual memory management: reserved addresses, physical memory, and mappings of one to the other. */
#define _GNU_SOURCE
#include "driver.h"

#include <stdlib.h>
#include <sys/mman.h>

struct reservation {
    struct reservation *next;
    deviceptr begin;
    uint64_t nbytes;
};

static struct reservation *reservations;

static bool whole_pages(uint64_t value) {
    return value && value % PAGE == 0;
}

result cuMemGetAllocationGranularity(size_t *granularity, const struct allocation_prop *prop, int option) {
    GATE();
    if (!granularity || !prop || (option != 0 && option != 1)) return INVALID_VALUE;
    if (prop->location.type != LOCATION_DEVICE) return NOT_SUPPORTED;
    if (device_gpu(prop->location.id) < 0) return INVALID_DEVICE;
    *granularity = PAGE;
    return OK;
}

/* ---- addresses ---- */

result cuMemAddressReserve(deviceptr *address, size_t nbytes, size_t alignment, deviceptr wanted,
                           unsigned long long flags) {
    GATE();
    LOCKED();
    (void)flags;
    if (!address || !whole_pages(nbytes) || (alignment & (alignment - 1))) return INVALID_VALUE;
    struct reservation *reservation = new_record(sizeof *reservation);
    void *begin = reservation ? address_reserve(nbytes, alignment > PAGE ? alignment : PAGE, wanted) : NULL;
    if (!begin) {
        free(reservation);
        return OUT_OF_MEMORY;
    }
    *reservation = (struct reservation){reservations, (deviceptr)begin, nbytes};
    reservations = reservation;
    *address = (deviceptr)begin;
    return OK;
}

static struct reservation *reservation_around(deviceptr address, uint64_t nbytes) {
    struct reservation *found = reservations;
    while (found && !(found->begin <= address && size_within(address - found->begin, nbytes, found->nbytes)))
        found = found->next;
    return found;
}

result cuMemAddressFree(deviceptr address, size_t nbytes) {
    GATE();
    LOCKED();
    struct reservation **link = &reservations;
    while (*link && (*link)->begin != address) link = &(*link)->next;
    struct reservation *found = *link;
    if (!found || found->nbytes != nbytes || range_overlaps(address, nbytes)) return INVALID_VALUE;
    *link = found->next;
    address_release(address, nbytes);
    free(found);
    return OK;
}

/* ---- memory ---- */

struct allocation *allocation_from(uint64_t handle) {
    return handle_is((void *)handle, HANDLE_ALLOCATION) ? (struct allocation *)handle : NULL;
}

struct allocation *allocation_adopt(struct block *block, const struct allocation_prop *prop) {
    struct allocation *allocation = handle_take(HANDLE_ALLOCATION, sizeof *allocation, NULL);
    if (!allocation) return NULL;
    allocation->prop = *prop;
    allocation->block = block;
    allocation->references = 1;
    return allocation;
}

static result check_prop(const struct allocation_prop *prop) {
    if (!prop || prop->type != ALLOCATION_PINNED) return INVALID_VALUE;
    if (prop->location.type != LOCATION_DEVICE) return NOT_SUPPORTED;
    if (device_gpu(prop->location.id) < 0) return INVALID_DEVICE;
    return prop->handle_types & ~HANDLE_POSIX_FD ? NOT_SUPPORTED : OK;
}

result cuMemCreate(uint64_t *handle, size_t nbytes, const struct allocation_prop *prop, unsigned long long flags) {
    GATE();
    LOCKED();
    struct block *block;
    if (!handle || !whole_pages(nbytes) || flags) return INVALID_VALUE;
    result failed = check_prop(prop);
    if (!failed) failed = block_create(prop->location.id, nbytes, &block);
    if (failed) return failed;
    struct allocation *allocation = allocation_adopt(block, prop);
    if (!allocation) {
        block_destroy(block);
        return OUT_OF_MEMORY;
    }
    *handle = (uint64_t)allocation;
    return OK;
}

/* Handles and mappings both keep the memory. */
static void drop_reference(struct allocation *allocation) {
    if (--allocation->references > 0) return;
    block_destroy(allocation->block);
    handle_drop(allocation);
}

result cuMemRelease(uint64_t handle) {
    GATE();
    LOCKED();
    struct allocation *allocation = allocation_from(handle);
    if (!allocation) return INVALID_VALUE;
    drop_reference(allocation);
    return OK;
}

result cuMemRetainAllocationHandle(uint64_t *handle, void *address) {
    GATE();
    LOCKED();
    struct range *range = range_at((deviceptr)address);
    if (!handle || !range || range->kind != RANGE_VMM) return INVALID_VALUE;
    struct allocation *allocation = range->owner;
    allocation->references++;
    *handle = (uint64_t)allocation;
    return OK;
}

result cuMemGetAllocationPropertiesFromHandle(struct allocation_prop *prop, uint64_t handle) {
    GATE();
    LOCKED();
    struct allocation *allocation = allocation_from(handle);
    if (!prop || !allocation) return INVALID_VALUE;
    *prop = allocation->prop;
    return OK;
}

/* ---- together ---- */

static bool protect(deviceptr address, uint64_t nbytes, int flags) {
    int protection = flags == ACCESS_READWRITE ? PROT_READ | PROT_WRITE : flags == ACCESS_READ ? PROT_READ : PROT_NONE;
    return !store_step_fails("step.protect") && mprotect((void *)address, nbytes, protection) == 0;
}

static result check_place(deviceptr address, uint64_t nbytes, uint64_t offset, const struct allocation *allocation) {
    if (!allocation || address % PAGE || offset) return INVALID_VALUE;
    /* Nor does the real driver map a part, whole pages or not. */
    if (nbytes != allocation->block->nbytes) return NOT_SUPPORTED;
    if (!reservation_around(address, nbytes)) return INVALID_VALUE;
    return range_overlaps(address, nbytes) ? INVALID_VALUE : OK;
}

result cuMemMap(deviceptr address, size_t nbytes, size_t offset, uint64_t handle, unsigned long long flags) {
    GATE();
    LOCKED();
    struct allocation *allocation = allocation_from(handle);
    result failed = flags ? INVALID_VALUE : check_place(address, nbytes, offset, allocation);
    if (!failed) failed = block_map_at(allocation->block, address, nbytes);
    if (failed) return failed;
    /* Nobody has access until it is set. */
    if (!protect(address, nbytes, ACCESS_NONE)) failed = OUT_OF_MEMORY;
    struct range range = {.begin = address,
                          .nbytes = nbytes,
                          .kind = RANGE_VMM,
                          .device = allocation->block->device,
                          .owner = allocation};
    if (!failed && !range_add(range)) failed = OUT_OF_MEMORY;
    if (failed) {
        address_blank(address, nbytes);
        return failed;
    }
    allocation->references++;
    return OK;
}

static bool mappings_fill(deviceptr address, uint64_t nbytes) {
    deviceptr end;
    if (!size_add(address, nbytes, &end)) return false;
    while (address < end) {
        struct range *range = range_exact(address);
        if (!range || range->kind != RANGE_VMM) return false;
        address += range->nbytes;
    }
    return nbytes && address == end;
}

result cuMemUnmap(deviceptr address, size_t nbytes) {
    GATE();
    LOCKED();
    if (!mappings_fill(address, nbytes)) return INVALID_VALUE;
    for (deviceptr at = address; at < address + nbytes;) {
        struct range *range = range_exact(at);
        struct allocation *allocation = range->owner;
        at += range->nbytes;
        range_remove(range);
        drop_reference(allocation);
    }
    address_blank(address, nbytes);
    return OK;
}

static void set_access(struct range *range, int flags) {
    range->accessible = flags != ACCESS_NONE;
    range->flags = (unsigned)flags;
}

/* All of the mappings, or, where the kernel refuses one of them, none. */
static result protect_all(deviceptr begin, uint64_t nbytes, int flags) {
    deviceptr at = begin;
    while (at < begin + nbytes && protect(at, range_exact(at)->nbytes, flags)) at += range_exact(at)->nbytes;
    if (at == begin + nbytes) return OK;
    for (deviceptr done = begin; done < at; done += range_exact(done)->nbytes)
        protect(done, range_exact(done)->nbytes, (int)range_exact(done)->flags);
    return OUT_OF_MEMORY;
}

result cuMemSetAccess(deviceptr address, size_t nbytes, const struct access_desc *descriptions, size_t count) {
    GATE();
    LOCKED();
    if (!descriptions || !count || !mappings_fill(address, nbytes)) return INVALID_VALUE;
    for (size_t i = 0; i < count; i++) {
        if (descriptions[i].location.type != LOCATION_DEVICE) return NOT_SUPPORTED;
        if (device_gpu(descriptions[i].location.id) < 0) return INVALID_DEVICE;
    }
    result failed = protect_all(address, nbytes, descriptions[0].flags);
    if (failed) return failed;
    for (deviceptr at = address; at < address + nbytes;) {
        struct range *range = range_exact(at);
        set_access(range, descriptions[0].flags);
        at += range->nbytes;
    }
    return OK;
}

result cuMemGetAccess(unsigned long long *flags, const struct location *location, deviceptr address) {
    GATE();
    LOCKED();
    struct range *range = range_at(address);
    if (!flags || !location || !range || range->kind != RANGE_VMM) return INVALID_VALUE;
    *flags = location->type == LOCATION_DEVICE && location->id == range->device ? range->flags : ACCESS_NONE;
    return OK;
}
