/* Client files (one per process and GPU), their device bytes, shared allocations, and export files. */
#define _GNU_SOURCE
#include "client.h"
#include "files.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

/* ---- client files: the open file that owns device memory ---- */

/* Offsets are only numbers until touched; 8 TiB stays below every file system's limit. */
#define FILE_END (8ull << 40)

static struct store_client *map_header(int fd) {
    void *header = mmap(NULL, STORE_CLIENT_NBYTES, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    return header == MAP_FAILED ? NULL : header;
}

/* There is no MPS server to ask: the environment says whether a process is a client. */
static bool is_mps_client(void) {
    const char *part = getenv("VRAM_VIRTUAL_MPS");
    return part && strcmp(part, "client") == 0;
}

static void fill_header(struct store_client *header, uint32_t gpu, uint32_t serial, const struct store_mig *mig) {
    header->gpu = gpu;
    header->serial = serial;
    header->gpu_instance = mig ? mig->gpu_instance : STORE_NO_INSTANCE;
    header->compute_instance = mig ? mig->compute_instance : STORE_NO_INSTANCE;
    header->mps = is_mps_client();
    snprintf(header->cgroup, sizeof header->cgroup, "%s", store_own_cgroup());
    header->pid = (uint32_t)getpid();
    header->uid = (uint32_t)geteuid();
    header->started_at = process_started_at();
    header->pid_namespace = process_pid_namespace();
    atomic_thread_fence(memory_order_release); /* last: until then nobody counts it */
    memcpy(header->magic, CLIENT_MAGIC, sizeof header->magic);
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
    if (ftruncate(holding->lock_fd, STORE_CLIENT_NBYTES) != 0) return -errno;
    holding->data_fd =
        store_step_fails("step.client_data") ? -EIO : memory_open(holding->name, O_RDWR | O_CREAT | O_EXCL);
    if (holding->data_fd < 0) return holding->data_fd;
    holding->header = store_step_fails("step.client_header") ? NULL : map_named(holding->name);
    return holding->header ? 0 : -ENOMEM;
}

void store_client_close(struct store_holding *holding) {
    if (holding->header) munmap(holding->header, STORE_CLIENT_NBYTES);
    if (holding->data_fd >= 0) memory_remove(holding->name);
    if (holding->data_fd >= 0) close(holding->data_fd);
    if (holding->lock_fd >= 0) dev_remove(holding->name);
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
        store_client_close(holding);
    else
        fill_header(holding->header, gpu, (uint32_t)serial, mig);
    return error;
}

static int rename_file(int (*path_of)(char *, size_t, const char *), const char *from, const char *to) {
    char before[PATH_MAX], after[PATH_MAX];
    int error = path_of(before, sizeof before, from);
    if (!error) error = path_of(after, sizeof after, to);
    return error || rename(before, after) == 0 ? error : -errno;
}

int store_client_move(struct store_holding *holding, uint32_t gpu) {
    char name[32];
    snprintf(name, sizeof name, "nvidia%u.%u", gpu, holding->header->serial);
    int error = rename_file(memory_path, holding->name, name);
    if (error) return error;
    error = rename_file(dev_path, holding->name, name);
    if (error) {
        rename_file(memory_path, name, holding->name);
        return error;
    }
    strcpy(holding->name, name);
    holding->header->gpu = gpu;
    return 0;
}

struct store_client *store_client_map(uint32_t gpu, uint32_t serial) {
    char name[32];
    snprintf(name, sizeof name, "nvidia%u.%u", gpu, serial);
    return map_named(name);
}

void store_client_unmap(struct store_client *client) {
    if (client) munmap(client, STORE_CLIENT_NBYTES);
}

/* ---- device bytes: sparse ranges of a data file, which cost the host nothing until touched ---- */

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

/* ---- slots of a client's header: allocations that more than one file may keep alive ---- */

static struct store_shared *find_slot(const struct store_client *client, uint64_t object, bool imported) {
    for (uint32_t i = 0; i < client->shared_slots; i++)
        if (client->shared[i].object == object && !client->shared[i].imported == !imported)
            return (struct store_shared *)&client->shared[i];
    return NULL;
}

int store_shared_add(struct store_client *client, struct store_shared slot) {
    uint32_t at = 0;
    while (at < client->shared_slots && client->shared[at].object) at++;
    if (at == STORE_MAX_SHARED || store_step_fails("step.slot")) return -ENOSPC;
    client->shared[at] = slot;
    if (at == client->shared_slots) client->shared_slots = at + 1;
    return 0;
}

void store_shared_remove(struct store_client *client, uint64_t object, bool imported) {
    struct store_shared *slot = find_slot(client, object, imported);
    if (!slot) return;
    *slot = (struct store_shared){0};
    while (client->shared_slots > 0 && !client->shared[client->shared_slots - 1].object) client->shared_slots--;
}

bool store_shared_has(const struct store_client *client, uint64_t object) {
    return find_slot(client, object, false) != NULL;
}

/* ---- export files: the descriptor that keeps an allocation alive, whichever process has it ---- */

static int write_header(int fd, const struct store_export *header, uint64_t file_nbytes) {
    struct store_export written = *header;
    if (store_step_fails("step.export_header")) return -EIO;
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
    dev_remove(name);
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
