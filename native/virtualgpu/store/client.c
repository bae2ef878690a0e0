/* Client files: one per process and GPU, the open file that owns device memory. */
#define _GNU_SOURCE
#include "holding.h"
#include "inside.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

/* Offsets are only numbers until touched; 8 TiB stays below every file system's limit. */
#define FILE_END (8ull << 40)

static struct store_client *map_header(int fd) {
    void *header = mmap(NULL, sizeof(struct store_client), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    return header == MAP_FAILED ? NULL : header;
}

static void introduce(struct store_client *header, uint32_t gpu, uint32_t serial) {
    memcpy(header->magic, CLIENT_MAGIC, sizeof header->magic);
    header->gpu = gpu;
    header->serial = serial;
    header->pid = (uint32_t)getpid();
    header->uid = (uint32_t)geteuid();
    header->started_at = process_started_at();
    header->pid_namespace = process_pid_namespace();
}

static int open_and_map(struct store_holding *holding) {
    holding->lock_fd = dev_create_locked(holding->name);
    if (holding->lock_fd < 0) return holding->lock_fd;
    if (ftruncate(holding->lock_fd, STORE_DATA_OFFSET) != 0) return -errno;
    holding->map_fd = dev_open(holding->name, O_RDWR);
    if (holding->map_fd < 0) return holding->map_fd;
    holding->header = map_header(holding->map_fd);
    return holding->header ? 0 : -errno;
}

static void forget(struct store_holding *holding) {
    if (holding->header) munmap(holding->header, sizeof *holding->header);
    if (holding->map_fd >= 0) close(holding->map_fd);
    if (holding->lock_fd >= 0) close(holding->lock_fd);
    extents_clear(&holding->offsets);
    *holding = (struct store_holding){.lock_fd = -1, .map_fd = -1};
}

int store_client_open(struct store_holding *holding, uint32_t gpu) {
    uint64_t serial = store_next_number();
    if (!serial) return -EROFS;
    *holding = (struct store_holding){.lock_fd = -1, .map_fd = -1};
    snprintf(holding->name, sizeof holding->name, "nvidia%u.%u", gpu, (uint32_t)serial);
    int error = open_and_map(holding);
    if (!error && !extents_give(&holding->offsets, STORE_DATA_OFFSET, FILE_END - STORE_DATA_OFFSET)) error = -ENOMEM;
    if (error)
        forget(holding);
    else
        introduce(holding->header, gpu, (uint32_t)serial);
    return error;
}

void store_client_close(struct store_holding *holding) {
    struct store_client *header = holding->header;
    header->contexts = header->managed = header->shared_slots = 0;
    header->context_bytes = header->overhead_bytes = header->private_bytes = header->bar1_bytes = 0;
    memset(header->shared, 0, sizeof header->shared);
    forget(holding);
}

struct store_client *store_client_map(uint32_t gpu, uint32_t serial) {
    char name[32];
    snprintf(name, sizeof name, "nvidia%u.%u", gpu, serial);
    int fd = dev_open(name, O_RDWR);
    if (fd < 0) return NULL;
    struct store_client *client = map_header(fd);
    close(fd);
    return client;
}

void store_client_unmap(struct store_client *client) {
    if (client) munmap(client, sizeof *client);
}
