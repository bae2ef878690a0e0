/* dma-buf export: a descriptor other drivers could map, which keeps the memory alive. */
#include "driver.h"

/* One block must hold the whole range; imported memory cannot be exported on. */
static struct block *block_under(deviceptr address, uint64_t nbytes) {
    struct range *range = range_at(address);
    if (!range || address + nbytes > round_up(range->begin + range->nbytes, 4096)) return NULL;
    struct block *block = range_block(range);
    return block && block->client ? block : NULL;
}

API result cuMemGetHandleForAddressRange(void *handle, deviceptr address, size_t nbytes, int type,
                                         unsigned long long flags) {
    GATE();
    LOCKED();
    (void)flags;
    if (!handle || !nbytes || address % 4096 || nbytes % 4096) return INVALID_VALUE;
    if (type != RANGE_HANDLE_DMABUF) return NOT_SUPPORTED;
    struct block *block = block_under(address, nbytes);
    if (!block) return INVALID_VALUE;
    result failed = block_share(block);
    if (failed) return failed;
    int fd = export_block(block, true, nbytes);
    if (fd < 0) return result_from_errno(fd);
    *(int *)handle = fd;
    return OK;
}
