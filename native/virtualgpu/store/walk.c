/* The walk: every live file of dev/ read once, inside admission, and added up.
 *
 * Dead files are swept on the way, except clients whose bytes a live export or import still
 * needs: an importer that comes after the maker's death must find them.
 */
#define _GNU_SOURCE
#include "holding.h"
#include "inside.h"

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
enum claim { CLAIM_MAKER, CLAIM_DESCRIPTOR, CLAIM_IMPORT };

/* Somebody keeps an object; the strongest claim on each object decides who is charged. */
struct keeper {
    uint64_t object, nbytes;
    enum claim claim;
    uint32_t gpu, instance, serial, process; /* index into processes, or NOBODY */
};

struct dead {
    char name[32];
};

struct picture {
    struct store_usage *usage;
    struct store_process *processes;
    struct keeper *keepers;
    struct dead *dead;
    struct dead *pointed_at; /* clients whose bytes a live export or import needs */
    size_t process_count, keeper_count, dead_count, pointed_count;
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

static void add_keeper(struct picture *picture, struct keeper keeper) {
    picture->keepers = one_more(picture->keepers, picture->keeper_count, sizeof keeper, &picture->failed);
    if (!picture->failed) picture->keepers[picture->keeper_count++] = keeper;
}

static void add_name(struct dead **names, size_t *count, const char *name, bool *failed) {
    *names = one_more(*names, *count, sizeof **names, failed);
    if (!*failed) snprintf((*names)[(*count)++].name, sizeof(struct dead), "%s", name);
}

static uint32_t add_process(struct picture *picture, const struct store_client *client) {
    if (client->contexts == 0) return NOBODY;
    picture->processes =
        one_more(picture->processes, picture->process_count, sizeof *picture->processes, &picture->failed);
    if (picture->failed) return NOBODY;
    picture->processes[picture->process_count] = (struct store_process){
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
        .charged_bytes = client->context_bytes + client->private_bytes,
    };
    return (uint32_t)picture->process_count++;
}

static void add_slot(struct picture *picture, const struct store_client *client, uint32_t process,
                     const struct store_shared *slot) {
    char maker[32];
    enum claim claim = slot->imported ? CLAIM_IMPORT : CLAIM_MAKER;
    add_keeper(picture, (struct keeper){slot->object, slot->nbytes, claim, client->gpu, client->gpu_instance,
                                        client->serial, process});
    if (!slot->imported) return;
    snprintf(maker, sizeof maker, "nvidia%u.%u", client->gpu, slot->maker);
    add_name(&picture->pointed_at, &picture->pointed_count, maker, &picture->failed);
}

static void use(struct store_usage *usage, uint32_t instance, uint64_t nbytes) {
    usage->used_bytes += nbytes;
    if (instance < STORE_INSTANCE_IDS) usage->instance_used[instance] += nbytes;
}

static void add_client(struct picture *picture, const struct store_client *client) {
    if (client->state == STORE_CHECKPOINTED) return;
    uint32_t process = add_process(picture, client);
    struct store_usage *usage = &picture->usage[client->gpu];
    use(usage, client->gpu_instance,
        client->context_bytes + client->overhead_bytes + client->private_bytes + client->managed_bytes);
    usage->bar1_used += client->bar1_bytes;
    picture->initialised[client->gpu] = true;
    if (client->gpu_instance < STORE_INSTANCE_IDS)
        picture->instance_initialised[client->gpu][client->gpu_instance] = true;
    for (uint32_t i = 0; i < client->shared_slots; i++)
        if (client->shared[i].object) add_slot(picture, client, process, &client->shared[i]);
}

static bool read_client(int fd, uint32_t gpu, struct store_client *client) {
    size_t fixed = offsetof(struct store_client, shared);
    if (pread(fd, client, fixed, 0) != (ssize_t)fixed) return false;
    if (memcmp(client->magic, CLIENT_MAGIC, sizeof client->magic) != 0 || client->gpu != gpu) return false;
    if (client->shared_slots > STORE_MAX_SHARED) return false;
    size_t rest = client->shared_slots * sizeof(struct store_shared);
    return pread(fd, client->shared, rest, (off_t)fixed) == (ssize_t)rest;
}

static void read_live_client(struct picture *picture, int fd, uint32_t gpu) {
    struct store_client *client = malloc(sizeof *client);
    if (!client)
        picture->failed = true;
    else if (read_client(fd, gpu, client))
        add_client(picture, client);
    free(client);
}

static void read_live_export(struct picture *picture, int fd, uint32_t serial) {
    struct store_export header;
    if (store_export_read(fd, &header) != 0 || header.gpu >= STORE_MAX_GPUS) return;
    add_keeper(picture, (struct keeper){header.object, header.nbytes, CLAIM_DESCRIPTOR, header.gpu,
                                        header.gpu_instance, serial, NOBODY});
    add_name(&picture->pointed_at, &picture->pointed_count, header.data_file, &picture->failed);
}

static void read_entry(struct picture *picture, int dev, const char *name) {
    uint32_t gpu = 0, serial = 0;
    enum dev_kind kind = dev_kind(name, &gpu, &serial);
    if (kind == DEV_OTHER) return;
    if (kind == DEV_CLIENT && picture->only != EVERY_GPU && picture->only != (int)gpu) return;
    int fd = openat(dev, name, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return;
    if (!dev_locked(fd))
        add_name(&picture->dead, &picture->dead_count, name, &picture->failed);
    else if (kind == DEV_CLIENT)
        read_live_client(picture, fd, gpu);
    else
        read_live_export(picture, fd, serial);
    close(fd);
}

static bool is_pointed_at(const struct picture *picture, const char *name) {
    for (size_t i = 0; i < picture->pointed_count; i++)
        if (strcmp(picture->pointed_at[i].name, name) == 0) return true;
    return false;
}

static void remove_dead(int dev, const char *name) {
    char data[PATH_MAX];
    uint32_t gpu, serial;
    unlinkat(dev, name, 0);
    if (dev_kind(name, &gpu, &serial) == DEV_CLIENT && memory_path(data, sizeof data, name) == 0) unlink(data);
}

static void sweep(const struct picture *picture, int dev) {
    for (size_t i = 0; i < picture->dead_count; i++)
        if (!is_pointed_at(picture, picture->dead[i].name)) remove_dead(dev, picture->dead[i].name);
}

static int by_object_then_claim(const void *left, const void *right) {
    const struct keeper *a = left, *b = right;
    if (a->object != b->object) return a->object < b->object ? -1 : 1;
    if (a->claim != b->claim) return a->claim < b->claim ? -1 : 1;
    return a->serial < b->serial ? -1 : a->serial > b->serial;
}

static void charge_objects(struct picture *picture) {
    if (picture->keeper_count)
        qsort(picture->keepers, picture->keeper_count, sizeof *picture->keepers, by_object_then_claim);
    for (size_t i = 0; i < picture->keeper_count; i++) {
        const struct keeper *keeper = &picture->keepers[i];
        if (i > 0 && keeper[-1].object == keeper->object) continue;
        use(&picture->usage[keeper->gpu], keeper->instance, keeper->nbytes);
        if (keeper->process != NOBODY)
            picture->processes[keeper->process].charged_bytes += keeper->nbytes;
    }
}

static uint64_t at_most(uint64_t nbytes, uint64_t most) {
    return nbytes < most ? nbytes : most;
}

/* The first process on a GPU pays for all: with two, an H200 uses no more than with one.
 * Instances are taken to be GPUs in this, which nobody has measured. */
static void use_for_init(const struct picture *picture, int index, struct store_usage *usage) {
    const struct store_gpu *gpu = &store_config()->gpu[index];
    bool divided = false;
    for (uint32_t id = 0; id < STORE_INSTANCE_IDS; id++) {
        if (!picture->instance_initialised[index][id]) continue;
        use(usage, id, gpu->init_bytes);
        divided = true;
    }
    if (picture->initialised[index] && !divided) use(usage, STORE_NO_INSTANCE, gpu->init_bytes);
}

static void complete(const struct picture *picture, struct store_usage *usage) {
    const struct store_config *config = store_config();
    for (int index = 0; index < config->gpus; index++) {
        const struct store_gpu *gpu = &config->gpu[index];
        uint64_t usable = gpu->total_bytes - gpu->reserved_bytes;
        use_for_init(picture, index, &usage[index]);
        usage[index].used_bytes += gpu->windows_bytes;
        usage[index].free_bytes = usable - at_most(usage[index].used_bytes, usable);
        /* All memory in use is seen through the window, as far as the window reaches. */
        usage[index].bar1_used += gpu->bar1_base_bytes + usage[index].used_bytes;
        usage[index].bar1_used = at_most(usage[index].bar1_used, gpu->bar1_bytes);
    }
}

static int take_picture(struct picture *picture) {
    char path[PATH_MAX];
    int error = dev_path(path, sizeof path, ".");
    if (error) return error;
    DIR *dev = opendir(path);
    if (!dev) return -errno;
    for (struct dirent *entry; (entry = readdir(dev));) read_entry(picture, dirfd(dev), entry->d_name);
    if (!picture->failed) sweep(picture, dirfd(dev));
    closedir(dev);
    return picture->failed ? -ENOMEM : 0;
}

static int admitted_picture(struct picture *picture) {
    int error = store_enter();
    if (error) return error;
    error = take_picture(picture);
    store_leave();
    return error;
}

static void forget(struct picture *picture) {
    free(picture->processes);
    free(picture->keepers);
    free(picture->dead);
    free(picture->pointed_at);
}

/* The order in which they came, as the real lists have it. */
static int by_serial(const void *left, const void *right) {
    const struct store_process *a = left, *b = right;
    return a->serial < b->serial ? -1 : a->serial > b->serial;
}

static void hand_out(const struct picture *picture, struct store_process *processes, int *count) {
    size_t room = processes && count && *count > 0 ? (size_t)*count : 0;
    if (picture->process_count)
        qsort(picture->processes, picture->process_count, sizeof *picture->processes, by_serial);
    for (size_t i = 0; i < picture->process_count && i < room; i++) {
        processes[i] = picture->processes[i];
        processes[i].pid = process_visible_pid(processes[i].creator_pid, processes[i].pid_namespace,
                                               processes[i].started_at);
        if (!processes[i].pid && store_config()->gpu[processes[i].gpu].host_pids)
            processes[i].pid = processes[i].creator_pid;
    }
    if (count) *count = (int)picture->process_count;
}

static int walk(struct picture *picture) {
    memset(picture->usage, 0, STORE_MAX_GPUS * sizeof *picture->usage);
    int error = admitted_picture(picture);
    if (error) return error;
    charge_objects(picture);
    complete(picture, picture->usage);
    return 0;
}

int store_walk(struct store_usage usage[STORE_MAX_GPUS], struct store_process *processes, int *count) {
    struct picture picture = {.usage = usage, .only = EVERY_GPU};
    int error = walk(&picture);
    if (!error) hand_out(&picture, processes, count);
    forget(&picture);
    return error;
}

static uint64_t free_of(const struct store_usage *usage, uint32_t gpu, uint32_t gpu_instance) {
    const struct store_mig *mig = store_instance(&store_config()->gpu[gpu], gpu_instance);
    if (!mig) return usage->free_bytes;
    return mig->total_bytes - at_most(usage->instance_used[gpu_instance], mig->total_bytes);
}

int store_free(uint32_t gpu, uint32_t gpu_instance, uint64_t *nbytes) {
    struct store_usage usage[STORE_MAX_GPUS];
    struct picture picture = {.usage = usage, .only = (int)gpu};
    int error = walk(&picture);
    if (!error) *nbytes = free_of(&usage[gpu], gpu, gpu_instance);
    forget(&picture);
    return error;
}

bool store_object_kept(uint64_t object) {
    struct store_usage usage[STORE_MAX_GPUS] = {0};
    struct picture picture = {.usage = usage, .only = EVERY_GPU};
    bool kept = admitted_picture(&picture) != 0; /* not knowing, keep */
    for (size_t i = 0; i < picture.keeper_count && !kept; i++) kept = picture.keepers[i].object == object;
    forget(&picture);
    return kept;
}
