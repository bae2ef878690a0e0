/* Descriptors and mappings of device files that have no use but to appear in /proc, as the driver's do. */
#define _GNU_SOURCE
#include "files.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define MAPPED_NBYTES 4096
/* A private mapping reads the file's zeroes until it is written; past the end there are none. */
#define UVM_NBYTES (8ull << 40)

static int open_once(struct store_footprint *footprint, const char *name) {
    if (footprint->fd_count == STORE_FOOTPRINT_MOST) return -ENOSPC;
    int fd = store_step_fails("step.device_open") ? -EMFILE : dev_open(name, O_RDWR | O_CREAT);
    if (fd < 0) return fd;
    footprint->fds[footprint->fd_count++] = fd;
    return 0;
}

/* Not accessible. All at offset 0, so that the kernel does not merge two into one. */
static int map_once(struct store_footprint *footprint, const char *name, int fd) {
    if (footprint->mapping_count == STORE_FOOTPRINT_MOST) return -ENOSPC;
    if (store_step_fails("step.device_map")) return -ENOMEM;
    void *mapping = mmap(NULL, MAPPED_NBYTES, PROT_NONE, MAP_SHARED, fd, 0);
    if (mapping == MAP_FAILED) return -errno;
    footprint->mappings[footprint->mapping_count++] = mapping;
    /* The one mapping that a forked child of a real process does not have. */
    if (strcmp(name, "nvidia-uvm") == 0) madvise(mapping, MAPPED_NBYTES, MADV_DONTFORK);
    return 0;
}

static int map_times(struct store_footprint *footprint, const char *name, int times) {
    int fd = dev_open(name, O_RDWR | O_CREAT), error = 0;
    if (fd < 0) return fd;
    for (int i = 0; i < times && !error; i++) error = map_once(footprint, name, fd);
    close(fd);
    return error;
}

/* In WSL2 there is one device for everything, and it is opened, never mapped. */
static int add_under_windows(struct store_footprint *footprint, int fds) {
    return fds && !footprint->fd_count ? open_once(footprint, "dxg") : 0;
}

int store_footprint_add(struct store_footprint *footprint, const char *name, int fds, int mappings) {
    int error = 0;
    if (store_config() && store_config()->wddm) return add_under_windows(footprint, fds);
    for (int i = 0; i < fds && !error; i++) error = open_once(footprint, name);
    return error || !mappings ? error : map_times(footprint, name, mappings);
}

int store_footprint_add_gpu(struct store_footprint *footprint, uint32_t gpu, int fds, int mappings) {
    char name[32];
    snprintf(name, sizeof name, "nvidia%u", gpu);
    return store_footprint_add(footprint, name, fds, mappings);
}

void store_footprint_drop(struct store_footprint *footprint) {
    for (int i = 0; i < footprint->fd_count; i++) close(footprint->fds[i]);
    for (int i = 0; i < footprint->mapping_count; i++) munmap(footprint->mappings[i], MAPPED_NBYTES);
    *footprint = (struct store_footprint){0};
}

static int gpu_of_file(const char *path) {
    char prefix[PATH_MAX];
    int gpu = -1, length = 0;
    int size = snprintf(prefix, sizeof prefix, "%s/dev/nvidia", store_folder());
    if (size <= 0 || strncmp(path, prefix, (size_t)size) != 0) return -1;
    return sscanf(path + size, "%d%n", &gpu, &length) == 1 && path[size + length] == '\0' ? gpu : -1;
}

void store_footprint_move(const uint8_t to[STORE_MAX_GPUS]) {
    enum { MOST_FDS = 4096 };
    for (int fd = 0; fd < MOST_FDS; fd++) {
        char link[64], path[PATH_MAX], name[32];
        snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
        ssize_t length = readlink(link, path, sizeof path - 1);
        if (length < 0) continue;
        path[length] = '\0';
        int gpu = gpu_of_file(path);
        if (gpu < 0 || gpu >= STORE_MAX_GPUS || !to[gpu]) continue;
        snprintf(name, sizeof name, "nvidia%u", to[gpu] - 1);
        int fresh = dev_open(name, O_RDWR);
        if (fresh < 0) continue;
        dup3(fresh, fd, O_CLOEXEC);
        close(fresh);
    }
}

int store_map_managed(void *address, uint64_t nbytes) {
    if (nbytes > UVM_NBYTES || store_step_fails("step.managed_map")) return -ENOMEM;
    int fd = dev_open("nvidia-uvm", O_RDWR | O_CREAT), error = 0;
    if (fd < 0) return fd;
    const int flags = MAP_PRIVATE | MAP_FIXED | MAP_NORESERVE;
    if (ftruncate(fd, (off_t)UVM_NBYTES) != 0 ||
        mmap(address, nbytes, PROT_READ | PROT_WRITE, flags, fd, 0) == MAP_FAILED ||
        madvise(address, nbytes, MADV_DONTFORK) != 0)
        error = -errno;
    close(fd);
    return error;
}
