/* Memory shared with other processes: IPC handles, exported allocations, pools, dma-bufs. */
#include "driver.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* ---- IPC handles: another process opens the same bytes, and is charged when nobody else has them ---- */

#define IPC_MAGIC "VRAMIPC1"

/* The 64 opaque bytes of an IPC handle. */
struct ipc_handle {
    char magic[8];
    uint32_t place, pid; /* which GPU and which GPU instance of it */
    uint64_t object, data_offset;
    uint32_t pages; /* of the block, in 2 MiB */
    uint32_t begin; /* of the allocation inside the block, in 512 bytes */
    char data_file[24];
};

_Static_assert(sizeof(struct ipc_handle) == sizeof(struct opaque64), "an IPC handle has 64 bytes");

/* Memory is shared inside a GPU instance only: handles of another one name another place. */
static uint32_t place_of(int device) {
    uint32_t instance = device_instance(device) == STORE_NO_INSTANCE ? 0 : device_instance(device) + 1;
    return (uint32_t)device_gpu(device) | instance << 16;
}

static result write_handle(const struct range *range, struct block *block, struct opaque64 *handle) {
    struct ipc_handle written = {.place = place_of(block->device),
                                 .pid = (uint32_t)getpid(),
                                 .object = block->object,
                                 .data_offset = block->offset,
                                 .pages = (uint32_t)(block->nbytes / PAGE),
                                 .begin = (uint32_t)((range->begin - block->address) / 512)};
    memcpy(written.magic, IPC_MAGIC, sizeof written.magic);
    memcpy(written.data_file, block_data_file(block), sizeof written.data_file);
    memcpy(handle, &written, sizeof written);
    return OK;
}

result cuIpcGetMemHandle(struct opaque64 *handle, deviceptr address) {
    GATE();
    LOCKED();
    struct range *range = range_at(address);
    /* Only plain allocations: the real driver refuses pools, mapped and managed memory. */
    if (!handle || !range || range->kind != RANGE_PLAIN) return INVALID_VALUE;
    struct block *block = range_block(range);
    result failed = block_share(block);
    return failed ? failed : write_handle(range, block, handle);
}

static struct range *already_open(uint64_t object) {
    for (struct range *range = range_after(0); range; range = range_after(range->begin + range->nbytes))
        if (range->kind == RANGE_IPC && ((struct block *)range->owner)->object == object) return range;
    return NULL;
}

static result open_block(const struct ipc_handle *handle, struct context *context, struct range **opened) {
    struct store_export from = {.gpu = handle->place & 0xffff,
                                .object = handle->object,
                                .nbytes = handle->pages * PAGE,
                                .data_offset = handle->data_offset};
    struct block *block;
    memcpy(from.data_file, handle->data_file, sizeof handle->data_file);
    result failed = block_import(&from, context->device, &block);
    if (failed) return failed;
    failed = block_map(block);
    struct range range = {.begin = block->address,
                          .nbytes = block->nbytes,
                          .kind = RANGE_IPC,
                          .device = context->device,
                          .context = context,
                          .accessible = true,
                          .owner = block};
    if (!failed && !(*opened = range_add(range))) failed = OUT_OF_MEMORY;
    if (failed) block_destroy(block);
    return failed;
}

result cuIpcOpenMemHandle_v2(deviceptr *address, struct opaque64 opaque, unsigned flags) {
    GATE();
    LOCKED();
    struct ipc_handle handle;
    struct context *context;
    enum { LAZY_PEER_ACCESS = 1 }; /* the only flag there is, and it must be given */
    memcpy(&handle, &opaque, sizeof handle);
    result failed = context_need(&context);
    if (failed) return failed;
    if (!address || flags != LAZY_PEER_ACCESS || memcmp(handle.magic, IPC_MAGIC, sizeof handle.magic) != 0)
        return INVALID_VALUE;
    if (handle.pid == (uint32_t)getpid()) return INVALID_CONTEXT; /* not in the process that made it */
    if (place_of(context->device) != handle.place) return INVALID_DEVICE;
    handle.data_file[sizeof handle.data_file - 1] = '\0';
    struct range *range = already_open(handle.object);
    if (handle.begin * 512ull >= handle.pages * PAGE) return INVALID_VALUE;
    if (!range) failed = open_block(&handle, context, &range);
    if (failed) return failed;
    range->flags++; /* how often it is open */
    *address = range->begin + handle.begin * 512ull;
    return OK;
}

result ipc_close(struct range *range) {
    if (--range->flags > 0) return OK;
    block_destroy(range->owner);
    range_remove(range);
    return OK;
}

result cuIpcCloseMemHandle(deviceptr address) {
    GATE();
    LOCKED();
    struct range *range = range_at(address);
    return range && range->kind == RANGE_IPC ? ipc_close(range) : INVALID_VALUE;
}

void ipc_free_context(struct context *context) {
    for (struct range *range = range_after(0); range;) {
        deviceptr end = range->begin + range->nbytes;
        if (range->kind == RANGE_IPC && range->context == context) {
            range->flags = 1;
            ipc_close(range);
        }
        range = range_after(end);
    }
}

/* ---- exported allocations: a descriptor that keeps memory alive, whichever process has it ---- */

result cuMemExportToShareableHandle(void *shareable, uint64_t handle, int type, unsigned long long flags) {
    GATE();
    LOCKED();
    struct allocation *allocation = allocation_from(handle);
    if (!shareable || !allocation || flags) return INVALID_VALUE;
    if (!(type & HANDLE_POSIX_FD)) return NOT_SUPPORTED;
    if (!(allocation->prop.handle_types & type)) return INVALID_VALUE;
    return block_export(allocation->block, false, 0, shareable);
}

/* The importer keeps the memory by itself: closing the passed descriptor does no harm. */
static result import(const struct store_export *header, uint64_t *handle) {
    struct allocation_prop prop = {.type = ALLOCATION_PINNED,
                                   .handle_types = HANDLE_POSIX_FD,
                                   .location = {LOCATION_DEVICE, device_of(header->gpu, header->gpu_instance)}};
    struct block *block;
    if (prop.location.id < 0) return INVALID_DEVICE;
    result failed = block_import(header, prop.location.id, &block);
    if (failed) return failed;
    struct allocation *allocation = allocation_adopt(block, &prop);
    if (!allocation) {
        block_destroy(block);
        return OUT_OF_MEMORY;
    }
    *handle = (uint64_t)allocation;
    return OK;
}

result cuMemImportFromShareableHandle(uint64_t *handle, void *shareable, int type) {
    GATE();
    LOCKED();
    struct store_export header;
    int fd = (int)(intptr_t)shareable;
    if (!handle) return INVALID_VALUE;
    if (type != HANDLE_POSIX_FD) return NOT_SUPPORTED;
    /* So answers an H200 to /dev/null, to a closed number and to an ordinary nvidiactl. */
    if (store_export_read(fd, &header) != 0 || header.dmabuf || !header.object) return UNKNOWN;
    return import(&header, handle);
}

/* ---- pools: the descriptor of the pool first, then pointers inside it ---- */

#define POINTER_MAGIC "VRAMPTR1"

/* The 64 opaque bytes of an exported pointer. */
struct exported_pointer {
    char magic[8];
    uint64_t object, data_offset, begin, nbytes;
    uint32_t pages, gpu, maker; /* the serial of the client in whose data file it lies */
    uint32_t unused[3];
};

_Static_assert(sizeof(struct exported_pointer) == sizeof(struct opaque64), "an exported pointer has 64 bytes");

result cuMemPoolExportToShareableHandle(void *shareable, struct pool *pool, int type, unsigned long long flags) {
    GATE();
    LOCKED();
    if (!shareable || !handle_is(pool, HANDLE_POOL) || flags || pool->device < 0) return INVALID_VALUE;
    if (type != HANDLE_POSIX_FD || !(pool->props.handle_types & type)) return INVALID_VALUE;
    /* The descriptor names the pool and keeps no memory: object 0, no bytes. */
    struct block nothing = {.device = pool->device};
    int fd = export_file(&nothing, false, 0);
    if (fd < 0) return result_from_errno(fd);
    *(int *)shareable = fd;
    return OK;
}

result cuMemPoolImportFromShareableHandle(struct pool **pool, void *shareable, int type, unsigned long long flags) {
    GATE();
    LOCKED();
    struct store_export header;
    if (!pool || type != HANDLE_POSIX_FD || flags) return INVALID_VALUE;
    if (store_export_read((int)(intptr_t)shareable, &header) != 0 || header.object) return INVALID_VALUE;
    struct pool_props props = {.type = ALLOCATION_PINNED,
                               .handle_types = HANDLE_POSIX_FD,
                               .location = {LOCATION_DEVICE, device_of(header.gpu, header.gpu_instance)}};
    if (props.location.id < 0) return INVALID_DEVICE;
    result failed = pool_create(&props, pool);
    if (!failed) (*pool)->imported = true;
    return failed;
}

result cuMemPoolExportPointer(struct opaque64 *data, deviceptr address) {
    GATE();
    LOCKED();
    struct range *range = range_exact(address);
    if (!data || !range || range->kind != RANGE_POOL || range->device < 0) return INVALID_VALUE;
    struct chunk *chunk = range->owner;
    if (!(chunk->pool->props.handle_types & HANDLE_POSIX_FD) || chunk->pool->imported) return INVALID_VALUE;
    result failed = block_share(chunk->block);
    if (failed) return failed;
    struct exported_pointer pointer = {.object = chunk->block->object,
                                       .data_offset = chunk->block->offset,
                                       .begin = address - chunk->address,
                                       .nbytes = range->nbytes,
                                       .pages = (uint32_t)(chunk->nbytes / PAGE),
                                       .gpu = (uint32_t)device_gpu(range->device),
                                       .maker = chunk->block->client->holding.header->serial};
    memcpy(pointer.magic, POINTER_MAGIC, sizeof pointer.magic);
    memcpy(data, &pointer, sizeof pointer);
    return OK;
}

static struct chunk *chunk_of_object(struct pool *pool, uint64_t object) {
    struct chunk *chunk = pool->chunks;
    while (chunk && chunk->block->object != object) chunk = chunk->next;
    return chunk;
}

static result open_chunk(struct pool *pool, const struct exported_pointer *pointer, struct chunk **opened) {
    struct store_export from = {.gpu = pointer->gpu,
                                .object = pointer->object,
                                .nbytes = pointer->pages * PAGE,
                                .data_offset = pointer->data_offset};
    struct block *block;
    snprintf(from.data_file, sizeof from.data_file, "nvidia%u.%u", pointer->gpu, pointer->maker);
    result failed = block_import(&from, pool->device, &block);
    if (failed) return failed;
    failed = block_map(block);
    if (!failed) failed = chunk_adopt(pool, block, opened);
    if (failed) block_destroy(block);
    return failed;
}

result cuMemPoolImportPointer(deviceptr *address, struct pool *pool, const struct opaque64 *data) {
    GATE();
    LOCKED();
    struct exported_pointer pointer;
    if (!address || !data || !handle_is(pool, HANDLE_POOL) || !pool->imported) return INVALID_VALUE;
    memcpy(&pointer, data, sizeof pointer);
    if (memcmp(pointer.magic, POINTER_MAGIC, sizeof pointer.magic) != 0) return INVALID_VALUE;
    if (device_gpu(pool->device) != (int)pointer.gpu) return INVALID_VALUE;
    struct chunk *chunk = chunk_of_object(pool, pointer.object);
    result failed = chunk ? OK : open_chunk(pool, &pointer, &chunk);
    if (failed) return failed;
    failed = chunk_cut(chunk, pointer.begin, pointer.nbytes, address);
    if (failed && chunk->used == 0) chunk_destroy(chunk);
    return failed;
}

/* ---- dma-buf: a descriptor that other drivers could map, which keeps the memory alive ---- */

/* The whole range must be in one block; imported memory cannot be exported again. */
static struct block *block_under(deviceptr address, uint64_t nbytes) {
    struct range *range = range_at(address);
    if (!range || !size_within(address - range->begin, nbytes, round_up(range->nbytes, 4096))) return NULL;
    struct block *block = range_block(range);
    return block && block->client ? block : NULL;
}

result cuMemGetHandleForAddressRange(void *handle, deviceptr address, size_t nbytes, int type,
                                     unsigned long long flags) {
    GATE();
    LOCKED();
    (void)flags;
    if (!handle || !nbytes || address % 4096 || nbytes % 4096) return INVALID_VALUE;
    if (type != RANGE_HANDLE_DMABUF) return NOT_SUPPORTED;
    struct block *block = block_under(address, nbytes);
    if (!block) return INVALID_VALUE;
    return block_export(block, true, nbytes, handle);
}
