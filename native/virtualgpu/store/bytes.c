/* Device bytes: sparse ranges of a data file, which cost the host nothing until touched. */
#define _GNU_SOURCE
#include "holding.h"
#include "inside.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

static int grow_to(int fd, uint64_t nbytes) {
    struct stat file;
    if (fstat(fd, &file) != 0) return -errno;
    if ((uint64_t)file.st_size >= nbytes) return 0;
    return ftruncate(fd, (off_t)nbytes) == 0 ? 0 : -errno;
}

int store_bytes_take(struct store_holding *holding, uint64_t nbytes, uint64_t *offset) {
    if (!extents_take(&holding->offsets, nbytes, offset)) return -ENOSPC;
    int error = grow_to(holding->data_fd, *offset + nbytes);
    if (error) extents_give(&holding->offsets, *offset, nbytes);
    return error;
}

void store_bytes_punch(int fd, uint64_t offset, uint64_t nbytes) {
    fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)offset, (off_t)nbytes);
}

void store_bytes_return(struct store_holding *holding, uint64_t offset, uint64_t nbytes) {
    /* Where holes cannot be punched the range is never used again: plain memory must read zero. */
    if (fallocate(holding->data_fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)offset, (off_t)nbytes) == 0)
        extents_give(&holding->offsets, offset, nbytes);
}

int store_data_open(const char *data_file) {
    uint32_t gpu, serial;
    if (dev_kind(data_file, &gpu, &serial) != DEV_CLIENT) return -EINVAL;
    return memory_open(data_file, O_RDWR);
}
