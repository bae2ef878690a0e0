/* Blocks: ranges of a data file, charged in steps of 2 MiB, mapped where programs see them. */
#define _GNU_SOURCE
#include "driver.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

void *address_reserve(uint64_t nbytes, uint64_t alignment, uint64_t wanted) {
    uint64_t slack = alignment > 4096 ? alignment : 0, whole;
    int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
    if (!size_add(nbytes, slack, &whole) || store_step_fails("step.reserve")) return NULL;
    char *begin = mmap((void *)wanted, whole, PROT_NONE, flags, -1, 0);
    if (begin == MAP_FAILED) return NULL;
    char *aligned = slack ? (char *)round_up((uint64_t)begin, alignment) : begin;
    char *end = begin + whole;
    if (aligned > begin) munmap(begin, (size_t)(aligned - begin));
    if (end > aligned + nbytes) munmap(aligned + nbytes, (size_t)(end - aligned - nbytes));
    return aligned;
}

void address_release(deviceptr address, uint64_t nbytes) {
    munmap((void *)address, nbytes);
}

void address_blank(deviceptr address, uint64_t nbytes) {
    int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED;
    mmap((void *)address, nbytes, PROT_NONE, flags, -1, 0);
}

static result create_admitted(struct block *block) {
    if (store_enter() != 0) return OPERATING_SYSTEM;
    result failed = client_begin_block(block->device, block->nbytes, &block->offset);
    store_leave();
    return failed;
}

result block_create(int device, uint64_t nbytes, struct block **created) {
    struct block *block = new_record(sizeof *block);
    if (!block) return OUT_OF_MEMORY;
    *block = (struct block){.device = device, .nbytes = nbytes, .data_fd = -1};
    result failed = create_admitted(block);
    if (failed) {
        free(block);
        return failed;
    }
    block->client = client_of(device);
    strcpy(block->data_file, block->client->holding.name);
    *created = block;
    return OK;
}

/* The last one that has the object drops its contents. */
static void end_import(struct block *block) {
    store_shared_remove(client_of(block->device)->holding.header, block->object, true);
    if (!store_object_kept(block->object, NULL)) store_bytes_punch(block->data_fd, block->offset, block->nbytes);
    close(block->data_fd);
}

void block_destroy(struct block *block) {
    if (block->address) address_release(block->address, block->nbytes);
    if (store_enter() == 0) {
        if (block->client)
            client_end_block(block->client, block);
        else
            end_import(block);
        store_leave();
    }
    free(block);
}

result block_map_at(struct block *block, deviceptr address, uint64_t nbytes) {
    int fd = block->client ? block->client->holding.data_fd : block->data_fd;
    int flags = MAP_SHARED | MAP_NORESERVE | MAP_FIXED;
    if (store_step_fails("step.map")) return OUT_OF_MEMORY;
    void *mapped = mmap((void *)address, nbytes, PROT_READ | PROT_WRITE, flags, fd, (off_t)block->offset);
    return mapped == MAP_FAILED ? OUT_OF_MEMORY : OK;
}

result block_map(struct block *block) {
    void *address = address_reserve(block->nbytes, PAGE, 0);
    if (!address) return OUT_OF_MEMORY;
    block->address = (deviceptr)address;
    return block_map_at(block, block->address, block->nbytes);
}

static result share_admitted(struct block *block) {
    struct store_client *header = block->client->holding.header;
    struct store_shared slot = {.object = store_next_number(), .nbytes = block->nbytes};
    if (!slot.object || store_shared_add(header, slot) != 0) return OUT_OF_MEMORY;
    header->private_bytes -= block->nbytes;
    block->object = slot.object;
    return OK;
}

result block_share(struct block *block) {
    if (block->object) return OK;
    if (store_enter() != 0) return OPERATING_SYSTEM;
    result failed = share_admitted(block);
    store_leave();
    return failed;
}

/* Back to bytes of this process alone, after an export that failed. */
static void block_unshare(struct block *block) {
    struct store_client *header = block->client->holding.header;
    if (store_enter() != 0) return;
    store_shared_remove(header, block->object, false);
    header->private_bytes += block->nbytes;
    block->object = 0;
    store_leave();
}

/* Handles and headers come from other processes: their sizes count only as far as the file has them. */
static bool has_bytes(int data_fd, const struct store_export *from) {
    struct stat file;
    if (fstat(data_fd, &file) != 0 || !from->nbytes || from->nbytes % PAGE || from->data_offset % PAGE) return false;
    return size_within(from->data_offset, from->nbytes, (uint64_t)file.st_size);
}

/* Inside admission, so that the object stays alive until this process's claim is written. */
static result claim_import(const struct store_export *from, int device) {
    struct store_shared slot = {from->object, from->nbytes, .imported = 1, .maker = store_maker(from)};
    uint64_t nbytes;
    if (store_enter() != 0) return OPERATING_SYSTEM;
    result failed = store_object_kept(from->object, &nbytes) && nbytes == from->nbytes ? OK : INVALID_VALUE;
    if (!failed) failed = result_from_errno(store_shared_add(client_of(device)->holding.header, slot));
    store_leave();
    return failed;
}

result block_import(const struct store_export *from, int device, struct block **imported) {
    struct block *block = new_record(sizeof *block);
    if (!block) return OUT_OF_MEMORY;
    *block =
        (struct block){.device = device, .offset = from->data_offset, .nbytes = from->nbytes, .object = from->object};
    memcpy(block->data_file, from->data_file, sizeof block->data_file);
    block->data_fd = store_data_open(from->data_file);
    result failed = block->data_fd >= 0 && has_bytes(block->data_fd, from) ? OK : INVALID_VALUE;
    if (!failed) failed = claim_import(from, device);
    if (!failed) {
        *imported = block;
        return OK;
    }
    if (block->data_fd >= 0) close(block->data_fd);
    free(block);
    return failed;
}

/* A restore onto another GPU gives the client's file another name. */
const char *block_data_file(const struct block *block) {
    return block->client ? block->client->holding.name : block->data_file;
}

int export_file(const struct block *block, bool dmabuf, uint64_t file_nbytes) {
    struct store_export header = {.gpu = (uint32_t)device_gpu(block->device),
                                  .dmabuf = dmabuf,
                                  .gpu_instance = device_instance(block->device),
                                  .object = block->object,
                                  .nbytes = block->nbytes,
                                  .data_offset = block->offset};
    memcpy(header.data_file, block_data_file(block), sizeof header.data_file);
    snprintf(header.cgroup, sizeof header.cgroup, "%s", store_own_cgroup());
    int error = store_enter();
    if (error) return error;
    int fd = store_export_create(&header, file_nbytes);
    store_leave();
    return fd;
}

result block_export(struct block *block, bool dmabuf, uint64_t file_nbytes, int *fd) {
    bool was_shared = block->object != 0;
    result failed = block_share(block);
    if (failed) return failed;
    int made = export_file(block, dmabuf, file_nbytes);
    if (made < 0 && !was_shared) block_unshare(block);
    if (made < 0) return result_from_errno(made);
    *fd = made;
    return OK;
}
