/* Exported allocations: a descriptor that keeps memory alive wherever it travels. */
#include "driver.h"

API result cuMemExportToShareableHandle(void *shareable, uint64_t handle, int type, unsigned long long flags) {
    GATE();
    LOCKED();
    struct allocation *allocation = allocation_from(handle);
    if (!shareable || !allocation || flags) return INVALID_VALUE;
    if (!(type & HANDLE_POSIX_FD)) return NOT_SUPPORTED;
    if (!(allocation->prop.handle_types & type)) return INVALID_VALUE;
    result failed = block_share(allocation->block);
    if (failed) return failed;
    int fd = export_block(allocation->block, false, 0);
    if (fd < 0) return result_from_errno(fd);
    *(int *)shareable = fd;
    return OK;
}

/* The importer keeps the memory by itself: closing the passed descriptor does no harm. */
static result import(const struct store_export *header, uint64_t *handle) {
    struct allocation_prop prop = {.type = ALLOCATION_PINNED, .handle_types = HANDLE_POSIX_FD,
                                   .location = {LOCATION_DEVICE, device_of(header->gpu, header->gpu_instance)}};
    struct block *block;
    if (prop.location.id < 0) return INVALID_DEVICE;
    result failed = block_import(header, prop.location.id, &block);
    if (failed) return failed;
    *handle = (uint64_t)allocation_adopt(block, &prop);
    return *handle ? OK : OUT_OF_MEMORY;
}

API result cuMemImportFromShareableHandle(uint64_t *handle, void *shareable, int type) {
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
