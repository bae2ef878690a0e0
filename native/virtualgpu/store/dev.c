/* Files in dev/ and memory/: their names, how they are opened, the lock that says they are alive. */
#define _GNU_SOURCE
#include "inside.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static bool scan_whole(const char *name, const char *format, uint32_t *a, uint32_t *b) {
    int used = 0;
    int wanted = b ? 2 : 1;
    int got = b ? sscanf(name, format, a, b, &used) : sscanf(name, format, a, &used);
    return got == wanted && used > 0 && name[used] == '\0';
}

enum dev_kind dev_kind(const char *name, uint32_t *gpu, uint32_t *serial) {
    if (scan_whole(name, "nvidia%u.%u%n", gpu, serial)) return *gpu < STORE_MAX_GPUS ? DEV_CLIENT : DEV_OTHER;
    if (scan_whole(name, "nvidiactl.%u%n", serial, NULL)) return DEV_EXPORT;
    if (scan_whole(name, "dmabuf.%u%n", serial, NULL)) return DEV_DMABUF;
    return DEV_OTHER;
}

static int path_in(char *path, size_t size, const char *place, const char *name) {
    const char *folder = store_folder();
    if (!folder) return -ENODEV;
    int written = snprintf(path, size, "%s/%s/%s", folder, place, name);
    return written > 0 && (size_t)written < size ? 0 : -ENAMETOOLONG;
}

static int open_at(const char *path, int flags) {
    int fd = open(path, flags | O_CLOEXEC, 0666);
    if (fd < 0) return -errno;
    /* The folder's own mode is the gate: a umask must not shut out who may enter it. */
    if (flags & O_CREAT) (void)!fchmod(fd, 0666);
    return fd;
}

int dev_path(char *path, size_t size, const char *name) {
    return path_in(path, size, "dev", name);
}

int dev_open(const char *name, int flags) {
    char path[PATH_MAX];
    int error = dev_path(path, sizeof path, name);
    return error ? error : open_at(path, flags);
}

int memory_path(char *path, size_t size, const char *name) {
    return path_in(path, size, "memory", name);
}

static void make_memory_folder(void) {
    char path[PATH_MAX];
    if (memory_path(path, sizeof path, "") == 0 && mkdir(path, 0777) == 0) (void)!chmod(path, 0777);
}

int memory_open(const char *name, int flags) {
    char path[PATH_MAX];
    int error = memory_path(path, sizeof path, name);
    if (error) return error;
    if (flags & O_CREAT) make_memory_folder();
    return open_at(path, flags);
}

int dev_create_locked(const char *name) {
    struct flock whole = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
    int fd = dev_open(name, O_RDWR | O_CREAT | O_EXCL);
    if (fd < 0) return fd;
    if (fcntl(fd, F_OFD_SETLK, &whole) == 0) return fd;
    int error = -errno;
    close(fd);
    return error;
}

bool dev_locked(int fd) {
    struct flock probe = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
    /* A lock that cannot be asked about counts as held: never declare live memory free. */
    return fcntl(fd, F_OFD_GETLK, &probe) != 0 || probe.l_type != F_UNLCK;
}
