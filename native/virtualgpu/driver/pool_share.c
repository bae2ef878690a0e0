/* Pools across processes: the pool's descriptor first, then pointers inside it. */
#include "driver.h"

#include <string.h>

#define POINTER_MAGIC "VRAMPTR1"

/* What lies in the 64 opaque bytes of an exported pointer. */
struct exported_pointer {
    char magic[8];
    uint64_t object, data_offset, begin, nbytes;
    uint32_t pages, gpu;
    char data_file[16];
};

_Static_assert(sizeof(struct exported_pointer) == sizeof(struct opaque64), "an exported pointer has 64 bytes");

API result cuMemPoolExportToShareableHandle(void *shareable, struct pool *pool, int type, unsigned long long flags) {
    GATE();
    LOCKED();
    if (!shareable || !handle_is(pool, HANDLE_POOL) || flags || pool->device < 0) return INVALID_VALUE;
    if (type != HANDLE_POSIX_FD || !(pool->props.handle_types & type)) return INVALID_VALUE;
    /* The descriptor names the pool and keeps no memory: object 0, no bytes. */
    struct block nothing = {.device = pool->device};
    int fd = export_block(&nothing, false, 0);
    if (fd < 0) return result_from_errno(fd);
    *(int *)shareable = fd;
    return OK;
}

API result cuMemPoolImportFromShareableHandle(struct pool **pool, void *shareable, int type, unsigned long long flags) {
    GATE();
    LOCKED();
    struct store_export header;
    if (!pool || type != HANDLE_POSIX_FD || flags) return INVALID_VALUE;
    if (store_export_read((int)(intptr_t)shareable, &header) != 0 || header.object) return INVALID_VALUE;
    struct pool_props props = {.type = ALLOCATION_PINNED, .handle_types = HANDLE_POSIX_FD,
                               .location = {LOCATION_DEVICE, device_of(header.gpu, header.gpu_instance)}};
    if (props.location.id < 0) return INVALID_DEVICE;
    result failed = pool_create(&props, pool);
    if (!failed) (*pool)->imported = true;
    return failed;
}

API result cuMemPoolExportPointer(struct opaque64 *data, deviceptr address) {
    GATE();
    LOCKED();
    struct range *range = range_exact(address);
    if (!data || !range || range->kind != RANGE_POOL || range->device < 0) return INVALID_VALUE;
    struct chunk *chunk = range->owner;
    if (!(chunk->pool->props.handle_types & HANDLE_POSIX_FD) || chunk->pool->imported) return INVALID_VALUE;
    result failed = block_share(chunk->block);
    if (failed) return failed;
    struct exported_pointer pointer = {.object = chunk->block->object, .data_offset = chunk->block->offset,
                                       .begin = address - chunk->address, .nbytes = range->nbytes,
                                       .pages = (uint32_t)(chunk->nbytes / PAGE),
                                       .gpu = (uint32_t)device_gpu(range->device)};
    memcpy(pointer.magic, POINTER_MAGIC, sizeof pointer.magic);
    memcpy(pointer.data_file, chunk->block->data_file, sizeof pointer.data_file);
    memcpy(data, &pointer, sizeof pointer);
    return OK;
}

static struct chunk *chunk_of_object(struct pool *pool, uint64_t object) {
    struct chunk *chunk = pool->chunks;
    while (chunk && chunk->block->object != object) chunk = chunk->next;
    return chunk;
}

static result open_chunk(struct pool *pool, const struct exported_pointer *pointer, struct chunk **opened) {
    struct store_export from = {.gpu = pointer->gpu, .object = pointer->object, .nbytes = pointer->pages * PAGE,
                                .data_offset = pointer->data_offset};
    struct block *block;
    memcpy(from.data_file, pointer->data_file, sizeof pointer->data_file - 1);
    result failed = block_import(&from, pool->device, &block);
    if (!failed) failed = block_map(block);
    return failed ? failed : chunk_adopt(pool, block, opened);
}

API result cuMemPoolImportPointer(deviceptr *address, struct pool *pool, const struct opaque64 *data) {
    GATE();
    LOCKED();
    struct exported_pointer pointer;
    if (!address || !data || !handle_is(pool, HANDLE_POOL) || !pool->imported) return INVALID_VALUE;
    memcpy(&pointer, data, sizeof pointer);
    if (memcmp(pointer.magic, POINTER_MAGIC, sizeof pointer.magic) != 0) return INVALID_VALUE;
    if (device_gpu(pool->device) != (int)pointer.gpu) return INVALID_VALUE;
    struct chunk *chunk = chunk_of_object(pool, pointer.object);
    result failed = chunk ? OK : open_chunk(pool, &pointer, &chunk);
    return failed ? failed : chunk_cut(chunk, pointer.begin, pointer.nbytes, address);
}
