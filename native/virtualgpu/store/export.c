/* Export files: the descriptor that keeps an allocation alive wherever it is passed. */
#define _GNU_SOURCE
#include "holding.h"
#include "inside.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static int write_header(int fd, const struct store_export *header, uint64_t file_nbytes) {
    struct store_export written = *header;
    memcpy(written.magic, EXPORT_MAGIC, sizeof written.magic);
    if (pwrite(fd, &written, sizeof written, 0) != sizeof written) return -EIO;
    return file_nbytes > sizeof written && ftruncate(fd, (off_t)file_nbytes) != 0 ? -errno : 0;
}

int store_export_create(const struct store_export *header, uint64_t file_nbytes) {
    char name[32];
    uint64_t serial = store_next_number();
    if (!serial) return -EROFS;
    snprintf(name, sizeof name, header->dmabuf ? "dmabuf.%u" : "nvidiactl.%u", (uint32_t)serial);
    int fd = dev_create_locked(name);
    if (fd < 0) return fd;
    int error = write_header(fd, header, file_nbytes);
    if (!error) return fd;
    close(fd);
    return error;
}

int store_export_read(int fd, struct store_export *header) {
    struct stat file;
    if (fstat(fd, &file) != 0 || !S_ISREG(file.st_mode)) return -EINVAL;
    if (pread(fd, header, sizeof *header, 0) != sizeof *header) return -EINVAL;
    if (memcmp(header->magic, EXPORT_MAGIC, sizeof header->magic) != 0) return -EINVAL;
    header->data_file[sizeof header->data_file - 1] = '\0';
    return 0;
}

uint32_t store_maker(const struct store_export *header) {
    uint32_t gpu, serial;
    return dev_kind(header->data_file, &gpu, &serial) == DEV_CLIENT ? serial : 0;
}
