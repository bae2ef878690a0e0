/* This process on one GPU: its client file, made with the first context or allocation. */
#include "driver.h"

#include <errno.h>

static struct client clients[STORE_MAX_GPUS];

struct client *client_of(int device) {
    return device >= 0 && device < STORE_MAX_GPUS && clients[device].open ? &clients[device] : NULL;
}

result result_from_errno(int negative_errno) {
    switch (-negative_errno) {
    case 0: return OK;
    case ENOMEM: case ENOSPC: return OUT_OF_MEMORY;
    case EINVAL: return INVALID_VALUE;
    default: return OPERATING_SYSTEM;
    }
}

static result ensure_open(int device) {
    struct client *client = &clients[device];
    if (client->open) return OK;
    int error = store_client_open(&client->holding, (uint32_t)device_gpu(device));
    if (error) return result_from_errno(error);
    client->device = device;
    client->open = true;
    /* The call that runs now was counted before this client could show it. */
    gate_count_work(0);
    return OK;
}

static void close_unused(struct client *client) {
    if (!client->open || client->contexts || client->blocks) return;
    store_client_close(&client->holding);
    client->open = false;
}

result client_free_nbytes(int device, uint64_t *nbytes) {
    struct store_usage usage[STORE_MAX_GPUS];
    int error = store_walk(usage, NULL, NULL);
    if (error) return result_from_errno(error);
    *nbytes = usage[device_gpu(device)].free_bytes;
    return OK;
}

static result check_room(int device, uint64_t wanted) {
    uint64_t nbytes;
    result failed = client_free_nbytes(device, &nbytes);
    if (failed) return failed;
    return nbytes < wanted ? OUT_OF_MEMORY : OK;
}

/* Compute modes: 2 refuses everybody, 3 admits one process. */
static result check_mode(int device) {
    struct store_usage usage[STORE_MAX_GPUS];
    struct store_process others[64];
    int count = 64;
    unsigned mode = device_config(device)->compute_mode;
    if (mode == 2) return DEVICE_UNAVAILABLE;
    if (mode != 3 || store_walk(usage, others, &count) != 0) return OK;
    for (int i = 0; i < count && i < 64; i++)
        if ((int)others[i].gpu == device_gpu(device)) return DEVICE_UNAVAILABLE;
    return OK;
}

static result admit_first_context(int device) {
    const struct store_gpu *gpu = device_config(device);
    result failed = check_mode(device);
    if (!failed) failed = check_room(device, gpu->context_bytes + gpu->context_overhead_bytes);
    if (!failed) failed = ensure_open(device);
    if (failed) return failed;
    struct store_client *header = clients[device].holding.header;
    header->context_bytes = gpu->context_bytes;
    header->overhead_bytes = gpu->context_overhead_bytes;
    return OK;
}

result client_add_context(int device) {
    if (store_enter() != 0) return OPERATING_SYSTEM;
    result failed = clients[device].contexts ? OK : admit_first_context(device);
    if (!failed) clients[device].holding.header->contexts = ++clients[device].contexts;
    store_leave();
    return failed;
}

void client_drop_context(int device) {
    struct client *client = &clients[device];
    if (store_enter() != 0) return;
    client->holding.header->contexts = --client->contexts;
    if (client->contexts == 0) client->holding.header->context_bytes = client->holding.header->overhead_bytes = 0;
    close_unused(client);
    store_leave();
}

result client_charge(int device, int64_t nbytes) {
    if (store_enter() != 0) return OPERATING_SYSTEM;
    result failed = nbytes > 0 ? check_room(device, (uint64_t)nbytes) : OK;
    if (!failed) failed = ensure_open(device);
    if (!failed) clients[device].holding.header->private_bytes += (uint64_t)nbytes;
    store_leave();
    return failed;
}

result client_begin_block(int device, uint64_t nbytes, uint64_t *offset) {
    result failed = check_room(device, nbytes);
    if (!failed) failed = ensure_open(device);
    if (!failed) failed = result_from_errno(store_bytes_take(&clients[device].holding, nbytes, offset));
    if (failed) return failed;
    clients[device].holding.header->private_bytes += nbytes;
    clients[device].blocks++;
    return OK;
}

void client_end_block(struct client *client, const struct block *block) {
    struct store_client *header = client->holding.header;
    if (block->object)
        store_shared_remove(header, block->object, false);
    else
        header->private_bytes -= block->nbytes;
    /* Bytes that another file still keeps stay where they are. */
    if (!block->object || !store_object_kept(block->object))
        store_bytes_return(&client->holding, block->offset, block->nbytes);
    client->blocks--;
    close_unused(client);
}
