/* The calls on pools and stream-ordered allocation. */
#include "driver.h"

#include <string.h>

static result check_pool(struct pool *pool) {
    return handle_is(pool, HANDLE_POOL) && !pool->dying ? OK : INVALID_VALUE;
}

/* ---- which pool ---- */

result cuDeviceGetDefaultMemPool(struct pool **pool, int device) {
    GATE_ON(device);
    LOCKED();
    return pool ? pool_default(device, pool) : INVALID_VALUE;
}

result cuDeviceGetMemPool(struct pool **pool, int device) {
    GATE_ON(device);
    LOCKED();
    return pool ? pool_current(device, pool) : INVALID_VALUE;
}

result cuDeviceSetMemPool(int device, struct pool *pool) {
    GATE_ON(device);
    LOCKED();
    if (device_gpu(device) < 0) return INVALID_DEVICE;
    if (check_pool(pool) || pool->device != device) return INVALID_VALUE;
    pool_set_current(device, pool);
    return OK;
}

static result host_pool(const struct location *location, int type, struct pool **pool) {
    static struct pool *shared[ALLOCATION_MANAGED + 1];
    struct pool_props props = {.type = type, .location = *location};
    if (type != ALLOCATION_PINNED && type != ALLOCATION_MANAGED) return INVALID_VALUE;
    result failed = shared[type] ? OK : pool_create(&props, &shared[type]);
    if (failed) return failed;
    shared[type]->is_default = true;
    *pool = shared[type];
    return OK;
}

result cuMemGetDefaultMemPool(struct pool **pool, const struct location *location, int type) {
    GATE();
    LOCKED();
    if (!pool || !location) return INVALID_VALUE;
    if (location->type == LOCATION_DEVICE && type == ALLOCATION_PINNED) return pool_default(location->id, pool);
    return host_pool(location, type, pool);
}

result cuMemGetMemPool(struct pool **pool, const struct location *location, int type) {
    GATE();
    LOCKED();
    if (!pool || !location) return INVALID_VALUE;
    if (location->type == LOCATION_DEVICE && type == ALLOCATION_PINNED) return pool_current(location->id, pool);
    return host_pool(location, type, pool);
}

result cuMemSetMemPool(const struct location *location, int type, struct pool *pool) {
    GATE();
    LOCKED();
    if (!location || type != ALLOCATION_PINNED || location->type != LOCATION_DEVICE) return NOT_SUPPORTED;
    if (device_gpu(location->id) < 0 || check_pool(pool)) return INVALID_VALUE;
    pool_set_current(location->id, pool);
    return OK;
}

static bool acceptable(const struct pool_props *props) {
    if (props->type != ALLOCATION_PINNED && props->type != ALLOCATION_MANAGED) return false;
    if (props->handle_types & ~HANDLE_POSIX_FD) return false;
    int nowhere = props->type == ALLOCATION_MANAGED ? -1 : 0; /* managed memory may be without a location */
    if (props->location.type <= nowhere || props->location.type > LOCATION_HOST_NUMA_CURRENT) return false;
    return props->location.type != LOCATION_DEVICE || device_gpu(props->location.id) >= 0;
}

result cuMemPoolCreate(struct pool **pool, const struct pool_props *props) {
    GATE();
    LOCKED();
    if (!pool || !props || !acceptable(props)) return INVALID_VALUE;
    return pool_create(props, pool);
}

result cuMemPoolDestroy(struct pool *pool) {
    GATE();
    LOCKED();
    if (check_pool(pool) || pool->is_default) return INVALID_VALUE;
    pool_destroy(pool);
    return OK;
}

/* ---- allocating ---- */

static result stream_and_pool(void *handle, struct stream **stream, struct pool **pool) {
    result failed = stream_resolve(handle, stream);
    return failed ? failed : pool_current((*stream)->handle.owner->device, pool);
}

result cuMemAllocAsync(deviceptr *address, size_t nbytes, void *handle) {
    GATE();
    LOCKED();
    struct stream *stream;
    struct pool *pool;
    result failed = stream_and_pool(handle, &stream, &pool);
    return failed ? failed : pool_allocate(pool, nbytes, address);
}

result cuMemAllocFromPoolAsync(deviceptr *address, size_t nbytes, struct pool *pool, void *handle) {
    GATE();
    LOCKED();
    struct stream *stream;
    result failed = stream_resolve(handle, &stream);
    if (!failed) failed = check_pool(pool);
    return failed ? failed : pool_allocate(pool, nbytes, address);
}

static void run_free(void *argument) {
    deviceptr address = *(deviceptr *)argument;
    LOCKED();
    struct range *range = range_exact(address);
    if (!range) return;
    if (range->kind == RANGE_POOL)
        pool_free(range);
    else
        plain_free(range);
}

result cuMemFreeAsync(deviceptr address, void *handle) {
    GATE();
    if (!address) return OK;
    state_lock();
    struct range *range = range_exact(address);
    bool ours = range && (range->kind == RANGE_POOL || range->kind == RANGE_PLAIN);
    state_unlock();
    return ours ? stream_submit_on(handle, run_free, &address, sizeof address) : INVALID_VALUE;
}

result cuMemPoolTrimTo(struct pool *pool, size_t keep_nbytes) {
    GATE();
    LOCKED();
    if (check_pool(pool)) return INVALID_VALUE;
    pool_trim(pool, keep_nbytes);
    return OK;
}

/* ---- attributes: 1 to 3 are ints, 4 to 8 are 64 bit ---- */

enum { THRESHOLD = 4, RESERVED, RESERVED_HIGH, USED, USED_HIGH };

static uint64_t *number_of(struct pool *pool, int attribute) {
    switch (attribute) {
    case THRESHOLD: return &pool->threshold;
    case RESERVED: return &pool->reserved;
    case RESERVED_HIGH: return &pool->reserved_high;
    case USED: return &pool->used;
    case USED_HIGH: return &pool->used_high;
    default: return NULL;
    }
}

result cuMemPoolGetAttribute(struct pool *pool, int attribute, void *value) {
    GATE();
    LOCKED();
    if (check_pool(pool) || !value || attribute < 1) return INVALID_VALUE;
    if (attribute <= REUSE_FLAGS) {
        memcpy(value, &pool->reuse[attribute - 1], sizeof(int));
        return OK;
    }
    uint64_t *number = number_of(pool, attribute);
    if (!number) return INVALID_VALUE;
    memcpy(value, number, sizeof *number);
    return OK;
}

static result set_number(struct pool *pool, int attribute, uint64_t value) {
    if (attribute == THRESHOLD) pool->threshold = value;
    /* A high-water mark can only be reset, to the present value. */
    else if (attribute == RESERVED_HIGH && value == 0)
        pool->reserved_high = pool->reserved;
    else if (attribute == USED_HIGH && value == 0)
        pool->used_high = pool->used;
    else
        return INVALID_VALUE;
    return OK;
}

result cuMemPoolSetAttribute(struct pool *pool, int attribute, void *value) {
    GATE();
    LOCKED();
    uint64_t number;
    if (check_pool(pool) || !value || attribute < 1) return INVALID_VALUE;
    if (attribute <= REUSE_FLAGS) {
        memcpy(&pool->reuse[attribute - 1], value, sizeof(int));
        return OK;
    }
    memcpy(&number, value, sizeof number);
    return set_number(pool, attribute, number);
}

static void set_bit(uint64_t *mask, int bit, bool on) {
    *mask = on ? *mask | 1ull << bit : *mask & ~(1ull << bit);
}

result cuMemPoolSetAccess(struct pool *pool, const struct access_desc *descriptions, size_t count) {
    GATE();
    LOCKED();
    if (check_pool(pool) || (count && !descriptions)) return INVALID_VALUE;
    for (size_t i = 0; i < count; i++) {
        const struct access_desc *access = &descriptions[i];
        if (access->location.type != LOCATION_DEVICE) continue;
        if (device_gpu(access->location.id) < 0) return INVALID_DEVICE;
        if (access->location.id == pool->device && access->flags != ACCESS_READWRITE) return INVALID_VALUE;
    }
    for (size_t i = 0; i < count; i++) {
        const struct access_desc *access = &descriptions[i];
        if (access->location.type != LOCATION_DEVICE) continue;
        set_bit(&pool->readable, access->location.id, access->flags & ACCESS_READ);
        set_bit(&pool->writable, access->location.id, access->flags == ACCESS_READWRITE);
    }
    return OK;
}

result cuMemPoolGetAccess(int *flags, struct pool *pool, const struct location *location) {
    GATE();
    LOCKED();
    if (check_pool(pool) || !flags || !location) return INVALID_VALUE;
    bool here = location->type == LOCATION_DEVICE && location->id >= 0 && location->id < 64;
    bool reads = here ? pool->readable >> location->id & 1 : pool->device < 0;
    bool writes = here ? pool->writable >> location->id & 1 : pool->device < 0;
    *flags = writes ? ACCESS_READWRITE : reads ? ACCESS_READ : ACCESS_NONE;
    return OK;
}

/* ---- graphs never run here, so their memory is always zero ---- */

result cuDeviceGetGraphMemAttribute(int device, int attribute, void *value) {
    GATE_ON(device);
    if (device_gpu(device) < 0) return INVALID_DEVICE;
    if (!value || attribute < 0 || attribute > 3) return INVALID_VALUE;
    memset(value, 0, sizeof(uint64_t));
    return OK;
}

result cuDeviceSetGraphMemAttribute(int device, int attribute, void *value) {
    GATE_ON(device);
    if (device_gpu(device) < 0) return INVALID_DEVICE;
    return value && (attribute == 1 || attribute == 3) ? OK : INVALID_VALUE;
}

result cuDeviceGraphMemTrim(int device) {
    GATE_ON(device);
    return device_gpu(device) < 0 ? INVALID_DEVICE : OK;
}
