/* This process on each GPU: its client file, from cuInit to its end, and what its contexts cost. */
#include "driver.h"

#include <errno.h>

static struct client clients[STORE_MAX_GPUS];

struct client *client_of(int device) {
    return device >= 0 && device < STORE_MAX_GPUS && clients[device].open ? &clients[device] : NULL;
}

result result_from_errno(int negative_errno) {
    switch (-negative_errno) {
    case 0: return OK;
    case ENOMEM:
    case ENOSPC: return OUT_OF_MEMORY;
    case EINVAL: return INVALID_VALUE;
    default: return OPERATING_SYSTEM;
    }
}

/* Beside the client file itself: 4 descriptors and 2 mappings of the GPU's file in all. */
enum { FDS_OF_CLIENT = 3, MAPPINGS_OF_CLIENT = 1 };

static int open_client(struct client *client, uint32_t gpu, const struct store_mig *mig) {
    int error = store_footprint_add_gpu(&client->footprint, gpu, FDS_OF_CLIENT, MAPPINGS_OF_CLIENT);
    if (!error) error = store_client_open(&client->holding, gpu, mig);
    if (error) store_footprint_drop(&client->footprint);
    client->open = !error;
    return error;
}

static void close_all(void) {
    for (int device = 0; device < device_count(); device++) {
        if (!clients[device].open) continue;
        store_footprint_drop(&clients[device].footprint);
        store_client_close(&clients[device].holding);
        clients[device].open = false;
    }
}

result clients_open(void) {
    struct store_usage unused[STORE_MAX_GPUS];
    int error = store_enter();
    if (error) return OPERATING_SYSTEM;
    /* What earlier processes left behind goes before this one counts as using the GPU. */
    error = store_walk(unused, NULL, NULL);
    for (int device = 0; device < device_count() && !error; device++)
        error = open_client(&clients[device], (uint32_t)device_gpu(device), device_mig(device));
    if (error) close_all();
    store_leave();
    /* Calls that run now were counted before there was a client to write the count to. */
    gate_count_work(0);
    return result_from_errno(error);
}

result clients_move(const uint8_t to[STORE_MAX_GPUS]) {
    for (int device = 0; device < device_count(); device++) {
        int gpu = device_gpu(device), wanted = to[gpu] ? to[gpu] - 1 : gpu;
        if (!clients[device].open || wanted == gpu) continue;
        if (store_client_move(&clients[device].holding, (uint32_t)wanted) != 0) return OPERATING_SYSTEM;
        device_move(device, wanted);
    }
    store_footprint_move(to);
    return OK;
}

void clients_close(void) {
    if (store_enter() != 0) return;
    close_all();
    store_leave();
}

result client_free_nbytes(int device, uint64_t *nbytes) {
    return result_from_errno(store_free((uint32_t)device_gpu(device), device_instance(device), nbytes));
}

result client_glance_free_nbytes(int device, uint64_t *nbytes) {
    uint32_t gpu = (uint32_t)device_gpu(device);
    return result_from_errno(store_free_by(STORE_NO_ADMISSION, gpu, device_instance(device), nbytes));
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
        if ((int)others[i].gpu == device_gpu(device) && others[i].gpu_instance == device_instance(device))
            return DEVICE_UNAVAILABLE;
    return OK;
}

/* ---- contexts: each costs memory, and shows in /proc; figures of an H200, driver 580.159 ---- */

enum { FDS_OF_CONTEXT = 16, GPU_MAPPINGS = 1, CONTROL_MAPPINGS = 26, UVM_MAPPINGS = 1 };
static const uint64_t bar1_bytes_of_context = 64 << 10;

static int show_context(struct store_footprint *footprint, uint32_t gpu) {
    int error = store_footprint_add_gpu(footprint, gpu, FDS_OF_CONTEXT, GPU_MAPPINGS);
    if (!error) error = store_footprint_add(footprint, "nvidiactl", 0, CONTROL_MAPPINGS);
    if (!error) error = store_footprint_add(footprint, "nvidia-uvm", 0, UVM_MAPPINGS);
    if (error) store_footprint_drop(footprint);
    return error;
}

static void count_contexts(int device, int change) {
    struct client *client = &clients[device];
    struct store_client *header = client->holding.header;
    client->contexts += (unsigned)change;
    header->contexts = client->contexts;
    header->context_bytes = client->contexts * device_config(device)->context_bytes + client->stream_bytes;
    header->overhead_bytes = client->contexts * device_config(device)->context_overhead_bytes;
    header->bar1_bytes = client->contexts * bar1_bytes_of_context;
}

static result admit_context(int device, struct store_footprint *footprint) {
    const struct store_gpu *gpu = device_config(device);
    result failed = clients[device].contexts ? OK : check_mode(device);
    if (!failed) failed = check_room(device, size_sum(gpu->context_bytes, gpu->context_overhead_bytes));
    if (!failed) failed = result_from_errno(show_context(footprint, (uint32_t)device_gpu(device)));
    if (!failed) count_contexts(device, +1);
    return failed;
}

result client_add_context(int device, struct store_footprint *footprint) {
    if (store_enter() != 0) return OPERATING_SYSTEM;
    result failed = admit_context(device, footprint);
    store_leave();
    return failed;
}

void client_drop_context(int device, struct store_footprint *footprint) {
    store_footprint_drop(footprint);
    if (store_enter() != 0) return;
    count_contexts(device, -1);
    store_leave();
}

/* Managed memory is taken from the GPU 128 MiB at a time, into a reserve of all processes; less where no more is
 * free. What is freed goes back to the GPU. Measured; not on MIG devices nor under Windows, which have none here. */
static result take_managed(int device, uint64_t nbytes) {
    enum { STEP = 128 << 20 };
    uint32_t gpu = (uint32_t)device_gpu(device);
    bool simple = device_mig(device) || store_config()->wddm;
    uint64_t reserve = simple ? 0 : store_managed_reserve(gpu), room = 0;
    uint64_t missing = size_left(nbytes, reserve), taken = simple ? missing : round_up(missing, STEP);
    result failed = missing ? client_free_nbytes(device, &room) : OK;
    if (failed || missing > room) return failed ? failed : OUT_OF_MEMORY;
    if (taken > room) taken = missing;
    if (!simple) store_set_managed_reserve(gpu, reserve + taken - nbytes);
    return OK;
}

result client_use_managed(int device, int64_t nbytes) {
    if (store_enter() != 0) return OPERATING_SYSTEM;
    result failed = nbytes > 0 ? take_managed(device, (uint64_t)nbytes) : OK;
    if (!failed) clients[device].holding.header->managed_bytes += (uint64_t)nbytes;
    store_leave();
    return failed;
}

result client_use_streams(int device, int64_t nbytes) {
    if (store_enter() != 0) return OPERATING_SYSTEM;
    result failed = nbytes > 0 ? check_room(device, (uint64_t)nbytes) : OK;
    if (!failed) clients[device].stream_bytes += (uint64_t)nbytes;
    if (!failed) count_contexts(device, 0);
    store_leave();
    return failed;
}

result client_begin_block(int device, uint64_t nbytes, uint64_t *offset) {
    result failed = check_room(device, nbytes);
    if (!failed) failed = result_from_errno(store_bytes_take(&clients[device].holding, nbytes, offset));
    if (failed) return failed;
    clients[device].holding.header->private_bytes += nbytes;
    return OK;
}

void client_end_block(struct client *client, const struct block *block) {
    struct store_client *header = client->holding.header;
    if (block->object)
        store_shared_remove(header, block->object, false);
    else
        header->private_bytes -= block->nbytes;
    /* Bytes that another file still keeps stay where they are. */
    if (!block->object || !store_object_kept(block->object, NULL))
        store_bytes_return(&client->holding, block->offset, block->nbytes);
}
