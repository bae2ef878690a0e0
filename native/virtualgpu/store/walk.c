/* The walk: every live file of dev/ read once, inside admission, and added up.
 *
 * Dead files are swept on the way, except clients whose bytes a live export or import still
 * needs: an importer that comes after the maker's death must find them.
 */
#define _GNU_SOURCE
#include "client.h"
#include "files.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define NOBODY UINT32_MAX
#define EVERY_GPU -1

/* Strongest first. A descriptor is charged to nobody, and so is the object while it is open. */
enum claim_kind { CLAIM_MAKER, CLAIM_DESCRIPTOR, CLAIM_IMPORT };

/* Somebody keeps an object; the strongest claim on each object decides who is charged. */
struct claim {
    uint64_t object, nbytes;
    enum claim_kind kind;
    uint32_t gpu, instance, serial, process; /* index into processes, or NOBODY */
};

struct dead {
    char name[32];
};

struct totals {
    struct store_usage *usage;
    struct store_process *processes;
    struct claim *claims;
    struct dead *dead;
    struct dead *needed; /* clients whose bytes a live export or import needs */
    size_t process_count, claim_count, dead_count, needed_count;
    bool initialised[STORE_MAX_GPUS]; /* by any process */
    bool instance_initialised[STORE_MAX_GPUS][STORE_INSTANCE_IDS];
    int only; /* this GPU's clients, or EVERY_GPU */
    bool failed;
};

/* Grows in powers of two; the caller's element count is the only state. */
static void *one_more(void *array, size_t count, size_t size, bool *failed) {
    if (count & (count - 1)) return array;
    void *grown = realloc(array, (count ? count * 2 : 1) * size);
    if (!grown) *failed = true;
    return grown ? grown : array;
}

static void add_claim(struct totals *totals, struct claim claim) {
    totals->claims = one_more(totals->claims, totals->claim_count, sizeof claim, &totals->failed);
    if (!totals->failed) totals->claims[totals->claim_count++] = claim;
}

static void add_name(struct dead **names, size_t *count, const char *name, bool *failed) {
    *names = one_more(*names, *count, sizeof **names, failed);
    if (!*failed) snprintf((*names)[(*count)++].name, sizeof(struct dead), "%s", name);
}

static uint32_t add_process(struct totals *totals, const struct store_client *client) {
    if (client->contexts == 0) return NOBODY;
    totals->processes = one_more(totals->processes, totals->process_count, sizeof *totals->processes, &totals->failed);
    if (totals->failed) return NOBODY;
    totals->processes[totals->process_count] = (struct store_process){
        .creator_pid = client->pid,
        .gpu = client->gpu,
        .serial = client->serial,
        .uid = client->uid,
        .state = client->state,
        .gpu_instance = client->gpu_instance,
        .compute_instance = client->compute_instance,
        .mps = client->mps,
        .pid_namespace = client->pid_namespace,
        .started_at = client->started_at,
        .charged_bytes = size_sum(client->context_bytes, client->private_bytes),
    };
    return (uint32_t)totals->process_count++;
}

static void add_slot(struct totals *totals, const struct store_client *client, uint32_t process,
                     const struct store_shared *slot) {
    char maker[32];
    enum claim_kind kind = slot->imported ? CLAIM_IMPORT : CLAIM_MAKER;
    add_claim(totals, (struct claim){slot->object, slot->nbytes, kind, client->gpu, client->gpu_instance,
                                     client->serial, process});
    if (!slot->imported) return;
    snprintf(maker, sizeof maker, "nvidia%u.%u", client->gpu, slot->maker);
    add_name(&totals->needed, &totals->needed_count, maker, &totals->failed);
}

static void use(struct store_usage *usage, uint32_t instance, uint64_t nbytes) {
    usage->used_bytes = size_sum(usage->used_bytes, nbytes);
    if (instance < STORE_INSTANCE_IDS)
        usage->instance_used[instance] = size_sum(usage->instance_used[instance], nbytes);
}

static void add_client(struct totals *totals, const struct store_client *client) {
    if (client->state == STORE_CHECKPOINTED) return;
    uint32_t process = add_process(totals, client);
    struct store_usage *usage = &totals->usage[client->gpu];
    use(usage, client->gpu_instance, size_sum(client->context_bytes, client->overhead_bytes));
    use(usage, client->gpu_instance, size_sum(client->private_bytes, client->managed_bytes));
    usage->bar1_used = size_sum(usage->bar1_used, client->bar1_bytes);
    totals->initialised[client->gpu] = true;
    if (client->gpu_instance < STORE_INSTANCE_IDS)
        totals->instance_initialised[client->gpu][client->gpu_instance] = true;
    for (uint32_t i = 0; i < client->shared_slots; i++)
        if (client->shared[i].object) add_slot(totals, client, process, &client->shared[i]);
}

static bool read_client(int fd, uint32_t gpu, struct store_client *client) {
    size_t fixed = offsetof(struct store_client, shared);
    if (pread(fd, client, fixed, 0) != (ssize_t)fixed) return false;
    if (memcmp(client->magic, CLIENT_MAGIC, sizeof client->magic) != 0 || client->gpu != gpu) return false;
    if (client->shared_slots > STORE_MAX_SHARED) return false;
    size_t rest = client->shared_slots * sizeof(struct store_shared);
    return pread(fd, client->shared, rest, (off_t)fixed) == (ssize_t)rest;
}

static void read_live_client(struct totals *totals, int fd, uint32_t gpu) {
    struct store_client *client = malloc(sizeof *client);
    if (!client)
        totals->failed = true;
    else if (read_client(fd, gpu, client))
        add_client(totals, client);
    free(client);
}

static void read_live_export(struct totals *totals, int fd, uint32_t serial) {
    struct store_export header;
    if (store_export_read(fd, &header) != 0 || header.gpu >= STORE_MAX_GPUS) return;
    add_claim(totals, (struct claim){header.object, header.nbytes, CLAIM_DESCRIPTOR, header.gpu, header.gpu_instance,
                                     serial, NOBODY});
    add_name(&totals->needed, &totals->needed_count, header.data_file, &totals->failed);
}

static void read_entry(struct totals *totals, int dev, const char *name) {
    uint32_t gpu = 0, serial = 0;
    enum dev_kind kind = dev_kind(name, &gpu, &serial);
    if (kind == DEV_OTHER) return;
    if (kind == DEV_CLIENT && totals->only != EVERY_GPU && totals->only != (int)gpu) return;
    int fd = openat(dev, name, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return;
    if (!dev_locked(fd))
        add_name(&totals->dead, &totals->dead_count, name, &totals->failed);
    else if (kind == DEV_CLIENT)
        read_live_client(totals, fd, gpu);
    else
        read_live_export(totals, fd, serial);
    close(fd);
}

static bool is_needed(const struct totals *totals, const char *name) {
    for (size_t i = 0; i < totals->needed_count; i++)
        if (strcmp(totals->needed[i].name, name) == 0) return true;
    return false;
}

static void remove_dead(int dev, const char *name) {
    char data[PATH_MAX];
    uint32_t gpu, serial;
    unlinkat(dev, name, 0);
    if (dev_kind(name, &gpu, &serial) == DEV_CLIENT && memory_path(data, sizeof data, name) == 0) unlink(data);
}

static void remove_dead_files(const struct totals *totals, int dev) {
    for (size_t i = 0; i < totals->dead_count; i++)
        if (!is_needed(totals, totals->dead[i].name)) remove_dead(dev, totals->dead[i].name);
}

static int by_object_then_kind(const void *left, const void *right) {
    const struct claim *a = left, *b = right;
    if (a->object != b->object) return a->object < b->object ? -1 : 1;
    if (a->kind != b->kind) return a->kind < b->kind ? -1 : 1;
    return a->serial < b->serial ? -1 : a->serial > b->serial;
}

static void charge_objects(struct totals *totals) {
    if (totals->claim_count) qsort(totals->claims, totals->claim_count, sizeof *totals->claims, by_object_then_kind);
    for (size_t i = 0; i < totals->claim_count; i++) {
        const struct claim *claim = &totals->claims[i];
        if (i > 0 && claim[-1].object == claim->object) continue;
        use(&totals->usage[claim->gpu], claim->instance, claim->nbytes);
        if (claim->process == NOBODY) continue;
        struct store_process *process = &totals->processes[claim->process];
        process->charged_bytes = size_sum(process->charged_bytes, claim->nbytes);
    }
}

/* The first process on a GPU pays for all: with two, an H200 uses no more than with one.
 * Instances are taken to be GPUs in this, which nobody has measured. */
static void use_for_init(const struct totals *totals, int index, struct store_usage *usage) {
    const struct store_gpu *gpu = &store_config()->gpu[index];
    bool divided = false;
    for (uint32_t id = 0; id < STORE_INSTANCE_IDS; id++) {
        if (!totals->instance_initialised[index][id]) continue;
        use(usage, id, gpu->init_bytes);
        divided = true;
    }
    if (totals->initialised[index] && !divided) use(usage, STORE_NO_INSTANCE, gpu->init_bytes);
}

static void complete(const struct totals *totals, struct store_usage *usage) {
    const struct store_config *config = store_config();
    for (int index = 0; index < config->gpus; index++) {
        const struct store_gpu *gpu = &config->gpu[index];
        use_for_init(totals, index, &usage[index]);
        use(&usage[index], STORE_NO_INSTANCE, gpu->windows_bytes);
        usage[index].free_bytes = size_left(size_left(gpu->total_bytes, gpu->reserved_bytes), usage[index].used_bytes);
        /* All memory in use is mapped through the window, up to the window's size. */
        uint64_t seen = size_sum(size_sum(gpu->bar1_base_bytes, usage[index].used_bytes), usage[index].bar1_used);
        usage[index].bar1_used = seen < gpu->bar1_bytes ? seen : gpu->bar1_bytes;
    }
}

static int read_folder(struct totals *totals) {
    char path[PATH_MAX];
    int error = dev_path(path, sizeof path, ".");
    if (error) return error;
    DIR *dev = opendir(path);
    if (!dev) return -errno;
    for (struct dirent *entry; (entry = readdir(dev));) read_entry(totals, dirfd(dev), entry->d_name);
    if (!totals->failed) remove_dead_files(totals, dirfd(dev));
    closedir(dev);
    return totals->failed ? -ENOMEM : 0;
}

/* The reserve for managed memory goes with the last process. */
static void use_reserve(struct totals *totals, uint32_t gpu) {
    uint64_t nbytes = store_managed_reserve(gpu);
    if (totals->initialised[gpu])
        use(&totals->usage[gpu], STORE_NO_INSTANCE, nbytes);
    else if (nbytes)
        store_set_managed_reserve(gpu, 0);
}

static int read_folder_admitted(struct totals *totals) {
    int error = store_enter();
    if (error) return error;
    error = read_folder(totals);
    for (uint32_t gpu = 0; gpu < (uint32_t)store_config()->gpus && !error; gpu++)
        if (totals->only == EVERY_GPU || totals->only == (int)gpu) use_reserve(totals, gpu);
    store_leave();
    return error;
}

static void release(struct totals *totals) {
    free(totals->processes);
    free(totals->claims);
    free(totals->dead);
    free(totals->needed);
}

/* In order of their start, as the real lists are. */
static int by_serial(const void *left, const void *right) {
    const struct store_process *a = left, *b = right;
    return a->serial < b->serial ? -1 : a->serial > b->serial;
}

static void copy_processes(const struct totals *totals, struct store_process *processes, int *count) {
    size_t room = processes && count && *count > 0 ? (size_t)*count : 0;
    if (totals->process_count) qsort(totals->processes, totals->process_count, sizeof *totals->processes, by_serial);
    for (size_t i = 0; i < totals->process_count && i < room; i++) {
        processes[i] = totals->processes[i];
        processes[i].pid =
            process_visible_pid(processes[i].creator_pid, processes[i].pid_namespace, processes[i].started_at);
        if (!processes[i].pid && store_config()->gpu[processes[i].gpu].host_pids)
            processes[i].pid = processes[i].creator_pid;
    }
    if (count) *count = totals->process_count < INT_MAX / 2 ? (int)totals->process_count : INT_MAX / 2;
}

static int walk(struct totals *totals) {
    memset(totals->usage, 0, STORE_MAX_GPUS * sizeof *totals->usage);
    int error = read_folder_admitted(totals);
    if (error) return error;
    charge_objects(totals);
    complete(totals, totals->usage);
    return 0;
}

static int walk_some(int only, struct store_usage usage[STORE_MAX_GPUS], struct store_process *processes, int *count) {
    struct totals totals = {.usage = usage, .only = only};
    int error = walk(&totals);
    if (!error) copy_processes(&totals, processes, count);
    release(&totals);
    return error;
}

int store_walk(struct store_usage usage[STORE_MAX_GPUS], struct store_process *processes, int *count) {
    return walk_some(EVERY_GPU, usage, processes, count);
}

int store_walk_gpu(uint32_t gpu, struct store_usage usage[STORE_MAX_GPUS], struct store_process *processes,
                   int *count) {
    return walk_some((int)gpu, usage, processes, count);
}

static uint64_t free_of(const struct store_usage *usage, uint32_t gpu, uint32_t gpu_instance) {
    const struct store_mig *mig = store_instance(&store_config()->gpu[gpu], gpu_instance);
    if (!mig) return usage->free_bytes;
    return size_left(mig->total_bytes, usage->instance_used[gpu_instance]);
}

int store_free(uint32_t gpu, uint32_t gpu_instance, uint64_t *nbytes) {
    struct store_usage usage[STORE_MAX_GPUS];
    struct totals totals = {.usage = usage, .only = (int)gpu};
    int error = walk(&totals);
    if (!error) *nbytes = free_of(&usage[gpu], gpu, gpu_instance);
    release(&totals);
    return error;
}

bool store_object_kept(uint64_t object, uint64_t *nbytes) {
    struct store_usage usage[STORE_MAX_GPUS] = {0};
    struct totals totals = {.usage = usage, .only = EVERY_GPU};
    bool kept = read_folder_admitted(&totals) != 0; /* where that is unknown: kept */
    if (nbytes) *nbytes = 0;
    for (size_t i = 0; i < totals.claim_count && !kept; i++) {
        kept = totals.claims[i].object == object;
        if (kept && nbytes) *nbytes = totals.claims[i].nbytes;
    }
    release(&totals);
    return kept;
}
