/* Client files: one per process and GPU, the open file that owns device memory; and its data file. */
#define _GNU_SOURCE
#include "holding.h"
#include "inside.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

/* Offsets are only numbers until touched; 8 TiB stays below every file system's limit. */
#define FILE_END (8ull << 40)

static struct store_client *map_header(int fd) {
    void *header = mmap(NULL, sizeof(struct store_client), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    return header == MAP_FAILED ? NULL : header;
}

/* Nothing is asked of an MPS server here: a process says by its environment that it is a client. */
static bool is_mps_client(void) {
    const char *part = getenv("VRAM_VIRTUAL_MPS");
    return part && strcmp(part, "client") == 0;
}

static void introduce(struct store_client *header, uint32_t gpu, uint32_t serial, const struct store_mig *mig) {
    memcpy(header->magic, CLIENT_MAGIC, sizeof header->magic);
    header->gpu = gpu;
    header->serial = serial;
    header->gpu_instance = mig ? mig->gpu_instance : STORE_NO_INSTANCE;
    header->compute_instance = mig ? mig->compute_instance : STORE_NO_INSTANCE;
    header->mps = is_mps_client();
    header->pid = (uint32_t)getpid();
    header->uid = (uint32_t)geteuid();
    header->started_at = process_started_at();
    header->pid_namespace = process_pid_namespace();
}

/* By a description of its own, since mapping the locked one would keep the lock. */
static struct store_client *map_named(const char *name) {
    int fd = dev_open(name, O_RDWR);
    if (fd < 0) return NULL;
    struct store_client *header = map_header(fd);
    close(fd);
    return header;
}

static int open_and_map(struct store_holding *holding) {
    holding->lock_fd = dev_create_locked(holding->name);
    if (holding->lock_fd < 0) return holding->lock_fd;
    if (ftruncate(holding->lock_fd, sizeof(struct store_client)) != 0) return -errno;
    holding->data_fd = memory_open(holding->name, O_RDWR | O_CREAT | O_EXCL);
    if (holding->data_fd < 0) return holding->data_fd;
    holding->header = map_named(holding->name);
    return holding->header ? 0 : -ENOMEM;
}

static void forget(struct store_holding *holding) {
    if (holding->header) munmap(holding->header, sizeof *holding->header);
    if (holding->data_fd >= 0) close(holding->data_fd);
    if (holding->lock_fd >= 0) close(holding->lock_fd);
    extents_clear(&holding->offsets);
    *holding = (struct store_holding){.lock_fd = -1, .data_fd = -1};
}

int store_client_open(struct store_holding *holding, uint32_t gpu, const struct store_mig *mig) {
    uint64_t serial = store_next_number();
    if (!serial) return -EROFS;
    *holding = (struct store_holding){.lock_fd = -1, .data_fd = -1};
    snprintf(holding->name, sizeof holding->name, "nvidia%u.%u", gpu, (uint32_t)serial);
    int error = open_and_map(holding);
    if (!error && !extents_give(&holding->offsets, 0, FILE_END)) error = -ENOMEM;
    if (error)
        forget(holding);
    else
        introduce(holding->header, gpu, (uint32_t)serial, mig);
    return error;
}

struct store_client *store_client_map(uint32_t gpu, uint32_t serial) {
    char name[32];
    snprintf(name, sizeof name, "nvidia%u.%u", gpu, serial);
    return map_named(name);
}

void store_client_unmap(struct store_client *client) {
    if (client) munmap(client, sizeof *client);
}
