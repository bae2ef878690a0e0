/* Pools: chunks of 32 MiB that stream-ordered allocations are cut from.
 *
 * Old bytes are handed on as they are. Free chunks stay until the pool is trimmed, or
 * until a synchronisation finds more reserved than the release threshold allows.
 */
#define _GNU_SOURCE
#include "driver.h"

#include <stdlib.h>
#include <sys/mman.h>

#define CHUNK (32ull << 20)
#define UNIT 512

static struct pool *defaults[STORE_MAX_GPUS], *currents[STORE_MAX_GPUS];

result pool_create(const struct pool_props *props, struct pool **created) {
    struct pool *pool = handle_take(HANDLE_POOL, sizeof *pool, NULL);
    if (!pool) return OUT_OF_MEMORY;
    pool->props = *props;
    bool on_device = props->location.type == LOCATION_DEVICE && props->type == ALLOCATION_PINNED;
    pool->device = on_device ? props->location.id : -1;
    for (int i = 0; i < REUSE_FLAGS; i++) pool->reuse[i] = 1;
    if (on_device) pool->readable = pool->writable = 1ull << props->location.id;
    *created = pool;
    return OK;
}

result pool_default(int device, struct pool **pool) {
    struct pool_props props = {.type = ALLOCATION_PINNED, .location = {LOCATION_DEVICE, device}};
    if (device_gpu(device) < 0) return INVALID_DEVICE;
    result failed = defaults[device] ? OK : pool_create(&props, &defaults[device]);
    if (failed) return failed;
    defaults[device]->is_default = true;
    *pool = defaults[device];
    return OK;
}

result pool_current(int device, struct pool **pool) {
    if (device_gpu(device) < 0) return INVALID_DEVICE;
    if (!currents[device]) return pool_default(device, pool);
    *pool = currents[device];
    return OK;
}

void pool_set_current(int device, struct pool *pool) {
    currents[device] = pool;
}

/* ---- chunks ---- */

static result back_with_memory(struct chunk *chunk) {
    int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
    if (chunk->pool->device < 0) {
        void *host = mmap(NULL, chunk->nbytes, PROT_READ | PROT_WRITE, flags, -1, 0);
        if (host == MAP_FAILED) return OUT_OF_MEMORY;
        chunk->address = (deviceptr)host;
        return OK;
    }
    result failed = block_create(chunk->pool->device, chunk->nbytes, &chunk->block);
    if (!failed) failed = block_map(chunk->block);
    if (!failed) chunk->address = chunk->block->address;
    return failed;
}

static void count_reserved(struct pool *pool, int64_t nbytes) {
    pool->reserved += (uint64_t)nbytes;
    if (pool->reserved > pool->reserved_high) pool->reserved_high = pool->reserved;
}

static void count_used(struct pool *pool, int64_t nbytes) {
    pool->used += (uint64_t)nbytes;
    if (pool->used > pool->used_high) pool->used_high = pool->used;
}

static void chunk_release(struct chunk *chunk) {
    if (chunk->block)
        block_destroy(chunk->block);
    else if (chunk->address)
        munmap((void *)chunk->address, chunk->nbytes);
    extents_clear(&chunk->free);
    free(chunk);
}

static result chunk_create(struct pool *pool, uint64_t nbytes, struct chunk **created) {
    uint64_t whole;
    if (!size_round_up(nbytes, CHUNK, &whole)) return OUT_OF_MEMORY;
    struct chunk *chunk = new_record(sizeof *chunk);
    if (!chunk) return OUT_OF_MEMORY;
    *chunk = (struct chunk){.pool = pool, .nbytes = whole};
    result failed = back_with_memory(chunk);
    if (!failed && !extents_give(&chunk->free, 0, chunk->nbytes)) failed = OUT_OF_MEMORY;
    if (failed) {
        chunk_release(chunk);
        return failed;
    }
    chunk->next = pool->chunks;
    pool->chunks = chunk;
    count_reserved(pool, (int64_t)chunk->nbytes);
    *created = chunk;
    return OK;
}

void chunk_destroy(struct chunk *chunk) {
    struct chunk **link = &chunk->pool->chunks;
    while (*link != chunk) link = &(*link)->next;
    *link = chunk->next;
    count_reserved(chunk->pool, -(int64_t)chunk->nbytes);
    chunk_release(chunk);
}

result chunk_adopt(struct pool *pool, struct block *block, struct chunk **adopted) {
    struct chunk *chunk = new_record(sizeof *chunk);
    if (!chunk) return OUT_OF_MEMORY;
    *chunk = (struct chunk){pool->chunks, pool, block, block->address, block->nbytes, 0, {0}};
    pool->chunks = chunk;
    count_reserved(pool, (int64_t)chunk->nbytes);
    *adopted = chunk;
    return OK;
}

void pool_trim(struct pool *pool, uint64_t keep_nbytes) {
    for (struct chunk *chunk = pool->chunks, *next; chunk && pool->reserved > keep_nbytes; chunk = next) {
        next = chunk->next;
        if (chunk->used == 0) chunk_destroy(chunk);
    }
}

void pools_synchronized(int device) {
    for (struct pool *pool = handle_first(HANDLE_POOL); pool; pool = handle_next(pool))
        if (pool->device == device && !pool->imported) pool_trim(pool, pool->threshold);
}

void pools_synchronized_by(const struct gate *gate, int device) {
    if (gate->answering) return;
    LOCKED();
    pools_synchronized(device);
}

/* ---- allocations ---- */

static bool take(struct pool *pool, uint64_t nbytes, struct chunk **chunk, uint64_t *offset) {
    for (*chunk = pool->chunks; *chunk; *chunk = (*chunk)->next)
        if (extents_take(&(*chunk)->free, nbytes, offset)) return true;
    return false;
}

static bool exceeds_limit(const struct pool *pool, uint64_t nbytes) {
    if (pool->props.max_nbytes && size_sum(pool->used, nbytes) > pool->props.max_nbytes) return true;
    return pool->device >= 0 && nbytes > device_config(pool->device)->total_bytes;
}

/* Sets *made* where the chunk was created for this. */
static result find_place(struct pool *pool, uint64_t nbytes, struct chunk **chunk, uint64_t *offset, bool *made) {
    *made = false;
    if (exceeds_limit(pool, nbytes)) return OUT_OF_MEMORY;
    if (take(pool, nbytes, chunk, offset)) return OK;
    result failed = chunk_create(pool, nbytes, chunk);
    if (failed == OUT_OF_MEMORY) {
        /* Free chunks that are too small may use the memory that is missing. */
        uint64_t reserved = pool->reserved;
        pool_trim(pool, 0);
        if (pool->reserved < reserved) failed = chunk_create(pool, nbytes, chunk);
    }
    if (failed) return failed;
    *made = true;
    if (extents_take(&(*chunk)->free, nbytes, offset)) return OK;
    chunk_destroy(*chunk);
    return OUT_OF_MEMORY;
}

result chunk_cut(struct chunk *chunk, uint64_t begin, uint64_t nbytes, deviceptr *address) {
    if (!nbytes || !size_within(begin, nbytes, chunk->nbytes)) return INVALID_VALUE;
    uint64_t whole = round_up(nbytes, UNIT);
    struct range range = {.begin = chunk->address + begin,
                          .nbytes = nbytes,
                          .kind = RANGE_POOL,
                          .device = chunk->pool->device,
                          .accessible = true,
                          .owner = chunk};
    if (range_overlaps(range.begin, nbytes)) return ALREADY_MAPPED;
    if (!range_add(range)) return OUT_OF_MEMORY;
    chunk->used += whole;
    count_used(chunk->pool, (int64_t)whole);
    *address = range.begin;
    return OK;
}

result pool_allocate(struct pool *pool, uint64_t nbytes, deviceptr *address) {
    struct chunk *chunk;
    uint64_t begin, whole;
    bool made;
    if (!address || !nbytes || pool->imported) return INVALID_VALUE;
    if (!size_round_up(nbytes, UNIT, &whole)) return OUT_OF_MEMORY;
    result failed = find_place(pool, whole, &chunk, &begin, &made);
    if (failed) return failed;
    failed = chunk_cut(chunk, begin, nbytes, address);
    if (!failed) return OK;
    extents_give(&chunk->free, begin, whole);
    if (made) chunk_destroy(chunk);
    return failed;
}

static void finish_destroying(struct pool *pool) {
    if (!pool->chunks) handle_drop(pool);
}

result pool_free(struct range *range) {
    struct chunk *chunk = range->owner;
    struct pool *pool = chunk->pool;
    uint64_t whole = round_up(range->nbytes, UNIT);
    extents_give(&chunk->free, range->begin - chunk->address, whole);
    chunk->used -= whole;
    count_used(pool, -(int64_t)whole);
    range_remove(range);
    /* An imported pointer maps its chunk for itself alone. */
    if ((pool->dying || pool->imported) && chunk->used == 0) chunk_destroy(chunk);
    if (pool->dying) finish_destroying(pool);
    return OK;
}

void pool_destroy(struct pool *pool) {
    pool->dying = true; /* live allocations keep it until they are freed */
    for (int device = 0; device < STORE_MAX_GPUS; device++)
        if (currents[device] == pool) currents[device] = NULL;
    pool_trim(pool, 0);
    finish_destroying(pool);
}
