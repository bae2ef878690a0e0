/* IPC memory handles: another process opens the same bytes, and inherits their charge. */
#include "driver.h"

#include <string.h>
#include <unistd.h>

#define IPC_MAGIC "VRAMIPC1"

/* What lies in the 64 opaque bytes. */
struct ipc_handle {
    char magic[8];
    uint32_t place, pid; /* which GPU and which GPU instance of it */
    uint64_t object, data_offset;
    uint32_t pages;        /* of the block, in 2 MiB */
    uint32_t begin;        /* of the allocation inside the block, in 512 bytes */
    char data_file[24];
};

_Static_assert(sizeof(struct ipc_handle) == sizeof(struct opaque64), "an IPC handle has 64 bytes");

/* Memory is shared inside a GPU instance only: handles of another one name another place. */
static uint32_t place_of(int device) {
    uint32_t instance = device_instance(device) == STORE_NO_INSTANCE ? 0 : device_instance(device) + 1;
    return (uint32_t)device_gpu(device) | instance << 16;
}

static result write_handle(const struct range *range, struct block *block, struct opaque64 *handle) {
    struct ipc_handle written = {.place = place_of(block->device), .pid = (uint32_t)getpid(),
                                 .object = block->object, .data_offset = block->offset,
                                 .pages = (uint32_t)(block->nbytes / PAGE),
                                 .begin = (uint32_t)((range->begin - block->address) / 512)};
    memcpy(written.magic, IPC_MAGIC, sizeof written.magic);
    memcpy(written.data_file, block->data_file, sizeof written.data_file);
    memcpy(handle, &written, sizeof written);
    return OK;
}

API result cuIpcGetMemHandle(struct opaque64 *handle, deviceptr address) {
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
    struct store_export from = {.gpu = handle->place & 0xffff, .object = handle->object, .nbytes = handle->pages * PAGE,
                                .data_offset = handle->data_offset};
    struct block *block;
    memcpy(from.data_file, handle->data_file, sizeof handle->data_file);
    result failed = block_import(&from, context->device, &block);
    if (failed) return failed;
    failed = block_map(block);
    struct range range = {.begin = block->address, .nbytes = block->nbytes, .kind = RANGE_IPC,
                          .device = context->device, .context = context, .accessible = true, .owner = block};
    if (!failed && !(*opened = range_add(range))) failed = OUT_OF_MEMORY;
    if (failed) block_destroy(block);
    return failed;
}

API result cuIpcOpenMemHandle_v2(deviceptr *address, struct opaque64 opaque, unsigned flags) {
    GATE();
    LOCKED();
    struct ipc_handle handle;
    struct context *context;
    (void)flags;
    memcpy(&handle, &opaque, sizeof handle);
    result failed = context_need(&context);
    if (failed) return failed;
    if (!address || memcmp(handle.magic, IPC_MAGIC, sizeof handle.magic) != 0) return INVALID_VALUE;
    if (handle.pid == (uint32_t)getpid()) return INVALID_CONTEXT; /* not in the process that made it */
    if (place_of(context->device) != handle.place) return INVALID_DEVICE;
    handle.data_file[sizeof handle.data_file - 1] = '\0';
    struct range *range = already_open(handle.object);
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

API result cuIpcCloseMemHandle(deviceptr address) {
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
