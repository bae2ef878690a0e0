/* Plain device memory. Small allocations share slabs of 2 MiB, and find there what was freed before; those with
 * pages of their own begin as zeros. */
#include "driver.h"

#include <stdlib.h>

#define UNIT 512                  /* alignment of device allocations */
#define MAX_SMALL_SIZE (PAGE / 2) /* above this an allocation has pages of its own */

/* MAX_SMALL_SIZE is a multiple of the unit: rounding up does not change the answer. */
static bool is_small(uint64_t nbytes) {
    return nbytes <= MAX_SMALL_SIZE;
}

static result slab_create(struct context *context, uint64_t nbytes, struct slab **created) {
    struct slab *slab = new_record(sizeof *slab);
    if (!slab) return OUT_OF_MEMORY;
    result failed = block_create(context->device, nbytes, &slab->block);
    if (failed) {
        free(slab);
        return failed;
    }
    failed = block_map(slab->block);
    if (!failed && !extents_give(&slab->free, 0, nbytes)) failed = OUT_OF_MEMORY;
    if (failed) {
        block_destroy(slab->block);
        free(slab);
        return failed;
    }
    slab->next = context->slabs;
    context->slabs = slab;
    *created = slab;
    return OK;
}

static void slab_destroy(struct context *context, struct slab *slab) {
    struct slab **link = &context->slabs;
    while (*link != slab) link = &(*link)->next;
    *link = slab->next;
    block_destroy(slab->block);
    extents_clear(&slab->free);
    free(slab);
}

static bool take_from_slabs(struct context *context, uint64_t nbytes, struct slab **slab, uint64_t *offset) {
    for (*slab = context->slabs; *slab; *slab = (*slab)->next)
        if ((*slab)->block->nbytes == PAGE && extents_take(&(*slab)->free, nbytes, offset)) return true;
    return false;
}

static result find_place(struct context *context, uint64_t nbytes, struct slab **slab, uint64_t *offset) {
    if (is_small(nbytes) && take_from_slabs(context, nbytes, slab, offset)) return OK;
    uint64_t pages;
    if (!size_round_up(nbytes, PAGE, &pages)) return OUT_OF_MEMORY;
    result failed = slab_create(context, pages, slab);
    if (failed) return failed;
    if (extents_take(&(*slab)->free, is_small(nbytes) ? nbytes : pages, offset)) return OK;
    slab_destroy(context, *slab);
    return OUT_OF_MEMORY;
}

/* Returns a part of a slab, and the slab when nothing of it is in use. */
static void return_place(struct context *context, struct slab *slab, uint64_t offset, uint64_t nbytes) {
    uint64_t whole = slab->block->nbytes;
    extents_give(&slab->free, offset, is_small(nbytes) ? round_up(nbytes, UNIT) : whole);
    if (extents_all_free(&slab->free, whole)) slab_destroy(context, slab);
}

/* Touches the host's pages of a small allocation and leaves its bytes as they are. Without it a loop of allocations
 * takes no time at all; the real pair of calls takes 73 us on an H200. */
static void have_pages(deviceptr begin, uint64_t nbytes) {
    for (uint64_t at = 0; at < nbytes; at += 4096) {
        volatile char *byte = (volatile char *)(begin + at);
        *byte = *byte;
    }
}

static result allocate(uint64_t nbytes, deviceptr *address) {
    struct context *context;
    struct slab *slab;
    uint64_t offset, whole;
    LOCKED();
    result failed = context_need(&context);
    if (!failed && (!address || !nbytes)) failed = INVALID_VALUE;
    if (!failed && nbytes > device_config(context->device)->total_bytes) failed = OUT_OF_MEMORY;
    if (!failed && !size_round_up(nbytes, UNIT, &whole)) failed = OUT_OF_MEMORY;
    if (!failed) failed = find_place(context, whole, &slab, &offset);
    if (failed) return failed;
    deviceptr begin = slab->block->address + offset;
    if (is_small(nbytes)) have_pages(begin, whole);
    struct range range = {.begin = begin,
                          .nbytes = nbytes,
                          .kind = RANGE_PLAIN,
                          .device = context->device,
                          .context = context,
                          .accessible = true,
                          .owner = slab};
    if (!range_add(range)) {
        return_place(context, slab, offset, nbytes);
        return OUT_OF_MEMORY;
    }
    *address = begin;
    return OK;
}

result plain_free(struct range *range) {
    struct slab *slab = range->owner;
    return_place(range->context, slab, range->begin - slab->block->address, range->nbytes);
    range_remove(range);
    return OK;
}

void plain_free_context(struct context *context) {
    for (struct range *range = range_after(0); range;) {
        deviceptr end = range->begin + range->nbytes;
        if (range->kind == RANGE_PLAIN && range->context == context) plain_free(range);
        range = range_after(end);
    }
}

result cuMemAlloc_v2(deviceptr *address, size_t nbytes) {
    GATE();
    return allocate(nbytes, address);
}

/* CU_DEVICE_ATTRIBUTE_MAX_PITCH, as device.c reports it. */
enum { MAX_PITCH = 2147483647 };

result cuMemAllocPitch_v2(deviceptr *address, size_t *pitch, size_t width, size_t height, unsigned element) {
    GATE();
    if (!pitch || !width || !height || (element != 4 && element != 8 && element != 16)) return INVALID_VALUE;
    if (width > MAX_PITCH) return INVALID_VALUE; /* measured on 580.159: rows of 2^32 and of 2^64-1 bytes */
    uint64_t row, nbytes;
    /* Here we are stricter than 580.159, which answers OK to 512 x (2^55+1): its product wraps around. */
    if (!size_round_up(width, UNIT, &row) || !size_multiply(row, height, &nbytes)) return OUT_OF_MEMORY;
    result failed = allocate(nbytes, address);
    if (!failed) *pitch = row;
    return failed;
}

static result free_by_kind(struct range *range) {
    switch (range->kind) {
    case RANGE_PLAIN: return plain_free(range);
    case RANGE_MANAGED: return managed_free(range);
    case RANGE_POOL: return pool_free(range);
    default: return INVALID_VALUE;
    }
}

result cuMemFree_v2(deviceptr address) {
    GATE();
    if (!address) return OK;
    state_lock();
    struct range *range = range_exact(address);
    struct context *context = range ? range->context : NULL;
    state_unlock();
    /* A plain free waits for all work of the context: measured, 1.01 s behind a 1 s kernel. */
    if (context) contexts_wait_idle(context);
    LOCKED();
    range = range_exact(address);
    return range ? free_by_kind(range) : INVALID_VALUE;
}

static result free_nbytes_of(int device, bool answering, uint64_t *nbytes) {
    return answering ? client_glance_free_nbytes(device, nbytes) : client_free_nbytes(device, nbytes);
}

/* In a control group with a limit of its own that is the total, as documented. */
static uint64_t reported_total(int device) {
    struct store_limit limit;
    uint64_t total = device_usable_bytes(device);
    bool limited = store_cgroup_limit((uint32_t)device_gpu(device), store_own_cgroup(), &limit);
    return limited && limit.hard < total ? limit.hard : total;
}

result cuMemGetInfo_v2(size_t *free_nbytes, size_t *total) {
    GATE_AS(-1, GATE_ANSWERS_OR_FAILS);
    LOCKED();
    struct context *context;
    uint64_t nbytes = 0;
    result failed = context_need(&context);
    if (!failed) failed = free_nbytes_of(context->device, gate.answering, &nbytes);
    if (failed) return failed;
    /* Cached files give way to an allocation; that they would, this call does not say. */
    if (free_nbytes) *free_nbytes = size_left(nbytes, device_config(context->device)->cache_bytes);
    if (total) *total = reported_total(context->device);
    return OK;
}

result cuMemGetAddressRange_v2(deviceptr *base, size_t *nbytes, deviceptr address) {
    GATE_AS(-1, GATE_ANSWERS);
    LOCKED();
    struct range *range = range_at(address);
    if (!range) return NOT_FOUND;
    if (base) *base = range->begin;
    if (nbytes) *nbytes = range->nbytes;
    return OK;
}
