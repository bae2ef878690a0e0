/* Managed memory: on the host until a device touches it, then its pages count on the device. */
#define _GNU_SOURCE
#include "driver.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

/* Of one allocation; more than the memory of any machine, and addresses end at 128 TiB. */
#define LARGEST (8ull << 40)

/* Where each 2 MiB page lies: 0 with the host, else 1 + device. */
struct pages {
    uint64_t count;
    int last_location; /* of the last prefetch: a device, -1 host, -2 never */
    signed char preferred_set, read_mostly;
    struct location preferred;
    uint64_t accessed_by; /* a bit for each device */
    unsigned char where[];
};

static void count_managed(struct context *context, int change) {
    client_of(context->device)->holding.header->managed += (uint32_t)change;
}

static result create(uint64_t nbytes, unsigned flags, struct context *context, deviceptr *address) {
    uint64_t whole;
    if (!size_round_up(nbytes, PAGE, &whole) || whole > LARGEST) return OUT_OF_MEMORY;
    struct pages *pages = new_record(sizeof *pages + whole / PAGE);
    void *begin = pages ? address_reserve(whole, PAGE, 0) : NULL;
    if (!begin) {
        free(pages);
        return OUT_OF_MEMORY;
    }
    pages->count = whole / PAGE;
    pages->last_location = -2;
    struct range range = {.begin = (deviceptr)begin,
                          .nbytes = nbytes,
                          .kind = RANGE_MANAGED,
                          .flags = flags,
                          .device = context->device,
                          .context = context,
                          .accessible = true,
                          .owner = pages};
    if (store_map_managed(begin, whole) != 0 || !range_add(range)) {
        address_release((deviceptr)begin, whole);
        free(pages);
        return OUT_OF_MEMORY;
    }
    count_managed(context, +1);
    *address = (deviceptr)begin;
    return OK;
}

result cuMemAllocManaged(deviceptr *address, size_t nbytes, unsigned flags) {
    GATE();
    LOCKED();
    struct context *context;
    result failed = context_need(&context);
    if (failed) return failed;
    if (!address || !nbytes || (flags != ATTACH_GLOBAL && flags != ATTACH_HOST)) return INVALID_VALUE;
    return create(nbytes, flags, context, address);
}

/* The pages of a range that an address and a size touch. */
struct stretch {
    unsigned char *begin, *end;
};

static struct stretch stretch_of(const struct range *range, deviceptr address, uint64_t nbytes) {
    struct pages *pages = range->owner;
    uint64_t end = round_up(address - range->begin + nbytes, PAGE) / PAGE;
    return (struct stretch){&pages->where[(address - range->begin) / PAGE],
                            &pages->where[end < pages->count ? end : pages->count]};
}

static uint64_t nbytes_at(struct stretch stretch, int device) {
    uint64_t count = 0;
    for (unsigned char *page = stretch.begin; page < stretch.end; page++) count += *page == device + 1;
    return count * PAGE;
}

static uint64_t nbytes_of(struct stretch stretch) {
    return (uint64_t)(stretch.end - stretch.begin) * PAGE;
}

/* All or nothing. Each GPU's count changes once, because each change reads the whole folder. */
static result move(struct stretch stretch, int device) {
    uint64_t arriving = nbytes_of(stretch) - nbytes_at(stretch, device);
    result failed = device >= 0 && arriving ? client_use_managed(device, (int64_t)arriving) : OK;
    if (failed) return failed;
    for (int from = 0; from < device_count(); from++) {
        uint64_t leaving = from == device ? 0 : nbytes_at(stretch, from);
        if (leaving) client_use_managed(from, -(int64_t)leaving);
    }
    if (arriving) memset(stretch.begin, device + 1, (size_t)(stretch.end - stretch.begin));
    return OK;
}

result managed_free(struct range *range) {
    struct pages *pages = range->owner;
    uint64_t nbytes = pages->count * PAGE;
    move(stretch_of(range, range->begin, range->nbytes), -1);
    count_managed(range->context, -1);
    address_release(range->begin, nbytes);
    free(pages);
    range_remove(range);
    return OK;
}

void managed_free_context(struct context *context) {
    for (struct range *range = range_after(0); range;) {
        deviceptr end = range->begin + range->nbytes;
        if (range->kind == RANGE_MANAGED && range->context == context) managed_free(range);
        range = range_after(end);
    }
}

static struct range *managed_at(deviceptr address, uint64_t nbytes) {
    struct range *range = range_at(address);
    bool inside = range && range->kind == RANGE_MANAGED && range_contains(range, address, nbytes);
    return inside && nbytes ? range : NULL;
}

static result prefetch(deviceptr address, uint64_t nbytes, int device) {
    LOCKED();
    struct range *range = managed_at(address, nbytes);
    if (!range) return INVALID_VALUE;
    if (device >= 0 && device_gpu(device) < 0) return INVALID_DEVICE;
    /* To the host: the data move, and the device's pages stay until the free. Measured. */
    result failed = device >= 0 ? move(stretch_of(range, address, nbytes), device) : OK;
    if (!failed) ((struct pages *)range->owner)->last_location = device;
    return failed;
}

void managed_touch(deviceptr address, uint64_t nbytes, int device) {
    struct range *range = managed_at(address, nbytes);
    /* Without room the pages stay with the host, which a real device would reach over its bus. */
    if (range) (void)move(stretch_of(range, address, nbytes), device);
}

/* The device number -1 means the host in the first form, a location in the second. */
result cuMemPrefetchAsync(deviceptr address, size_t nbytes, int device, void *stream) {
    GATE();
    (void)stream;
    return prefetch(address, nbytes, device);
}

result cuMemPrefetchAsync_v2(deviceptr address, size_t nbytes, struct location location, unsigned flags, void *stream) {
    GATE();
    (void)stream;
    if (flags || location.type < LOCATION_DEVICE || location.type > LOCATION_HOST_NUMA_CURRENT) return INVALID_VALUE;
    return prefetch(address, nbytes, location.type == LOCATION_DEVICE ? location.id : -1);
}

enum {
    ADVISE_READ_MOSTLY = 1,
    UNADVISE_READ_MOSTLY,
    ADVISE_PREFERRED,
    UNADVISE_PREFERRED,
    ADVISE_ACCESSED_BY,
    UNADVISE_ACCESSED_BY
};

static result advise(deviceptr address, uint64_t nbytes, int advice, struct location location) {
    LOCKED();
    struct range *range = managed_at(address, nbytes);
    if (!range || advice < ADVISE_READ_MOSTLY || advice > UNADVISE_ACCESSED_BY) return INVALID_VALUE;
    struct pages *pages = range->owner;
    if (advice == ADVISE_READ_MOSTLY || advice == UNADVISE_READ_MOSTLY) pages->read_mostly = advice == 1;
    if (advice == ADVISE_PREFERRED) pages->preferred = location;
    if (advice == ADVISE_PREFERRED || advice == UNADVISE_PREFERRED) pages->preferred_set = advice == 3;
    uint64_t bit = location.type == LOCATION_DEVICE && device_gpu(location.id) >= 0 ? 1ull << location.id : 0;
    if (advice == ADVISE_ACCESSED_BY) pages->accessed_by |= bit;
    if (advice == UNADVISE_ACCESSED_BY) pages->accessed_by &= ~bit;
    return OK;
}

result cuMemAdvise(deviceptr address, size_t nbytes, int advice, int device) {
    GATE();
    struct location location = {device >= 0 ? LOCATION_DEVICE : LOCATION_HOST, device};
    return advise(address, nbytes, advice, location);
}

result cuMemAdvise_v2(deviceptr address, size_t nbytes, int advice, struct location location) {
    GATE();
    return advise(address, nbytes, advice, location);
}

static result answer(const struct pages *pages, int attribute, int *value) {
    int preferred_type = pages->preferred_set ? pages->preferred.type : 0;
    int preferred = preferred_type == LOCATION_DEVICE ? pages->preferred.id : preferred_type ? -1 : -2;
    int last_type = pages->last_location == -2 ? 0 : pages->last_location >= 0 ? LOCATION_DEVICE : LOCATION_HOST;
    switch (attribute) {
    case 1: *value = pages->read_mostly; return OK;
    case 2:
    case 6: *value = preferred; return OK;
    case 4:
    case 8: *value = pages->last_location; return OK;
    case 5: *value = preferred_type; return OK;
    case 7: *value = last_type; return OK;
    default: return INVALID_VALUE;
    }
}

/* As many devices as there is room for; the rest of the room says that there are no more. */
static void list_accessed_by(const struct pages *pages, int *devices, size_t room) {
    enum { NO_DEVICE_ID = -2 };
    size_t count = 0;
    for (int device = 0; device < device_count() && count < room; device++)
        if (pages->accessed_by & (1ull << device)) devices[count++] = device;
    while (count < room) devices[count++] = NO_DEVICE_ID;
}

enum { ACCESSED_BY = 3 };

result cuMemRangeGetAttribute(void *data, size_t size, int attribute, deviceptr address, size_t nbytes) {
    GATE();
    LOCKED();
    struct range *range = managed_at(address, nbytes);
    int value = 0;
    if (!range || !data || size < sizeof value) return INVALID_VALUE;
    if (attribute == ACCESSED_BY) {
        list_accessed_by(range->owner, data, size / sizeof(int));
        return OK;
    }
    result failed = answer(range->owner, attribute, &value);
    if (!failed) memcpy(data, &value, sizeof value);
    return failed;
}

result cuMemRangeGetAttributes(void **data, size_t *sizes, int *attributes, size_t count, deviceptr address,
                               size_t nbytes) {
    if (!data || !sizes || !attributes || !count) return INVALID_VALUE;
    result failed = OK;
    for (size_t i = 0; i < count && !failed; i++)
        failed = cuMemRangeGetAttribute(data[i], sizes[i], attributes[i], address, nbytes);
    return failed;
}

result cuStreamAttachMemAsync(void *handle, deviceptr address, size_t nbytes, unsigned flags) {
    GATE();
    LOCKED();
    struct stream *stream;
    result failed = stream_resolve(handle, &stream);
    if (failed) return failed;
    struct range *range = range_at(address);
    (void)nbytes;
    return range && range->kind == RANGE_MANAGED && flags <= ATTACH_SINGLE ? OK : INVALID_VALUE;
}
