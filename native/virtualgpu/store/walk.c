/* The walk: every live file of dev/ read once, inside admission, and added up.
 *
 * Dead files are swept on the way, except clients whose bytes a live export or import still
 * needs: an importer that comes after the maker's death must find them.
 *
 * Nothing up to store_free_by takes memory from malloc, or a lock: the driver's thread walks while the
 * program's threads are stopped, and one of them may be inside malloc.
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
#include <sys/mman.h>
#include <sys/syscall.h>
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
    bool within;                             /* the control group that is asked about */
};

struct dead {
    char name[32];
};

/* An array: in its owner's memory at first, in pages straight from the kernel where that is too small. */
struct list {
    void *items;
    size_t count, nbytes;
    bool is_mapped;
};

struct totals {
    struct store_usage *usage;
    struct list processes, claims, dead;
    struct list needed;               /* clients whose bytes a live export or import needs */
    bool initialised[STORE_MAX_GPUS]; /* by any process */
    bool instance_initialised[STORE_MAX_GPUS][STORE_INSTANCE_IDS];
    const char *cgroup;    /* whose use is asked about, or NULL */
    uint64_t cgroup_bytes; /* and that */
    int only;              /* this GPU's clients, or EVERY_GPU */
    int lock_file;         /* of admission */
    bool admitted;         /* else it only looks: a file that is not locked may be one that is just being made */
    bool failed;
    /* Enough for nearly every walk, so that it needs no pages. */
    struct store_process first_processes[24];
    struct claim first_claims[16];
    struct dead first_dead[8], first_needed[8];
};

static void totals_begin(struct totals *totals, struct store_usage usage[STORE_MAX_GPUS], int only) {
    memset(usage, 0, STORE_MAX_GPUS * sizeof *usage);
    memset(totals, 0, offsetof(struct totals, first_processes));
    totals->usage = usage;
    totals->only = only;
    totals->processes = (struct list){.items = totals->first_processes, .nbytes = sizeof totals->first_processes};
    totals->claims = (struct list){.items = totals->first_claims, .nbytes = sizeof totals->first_claims};
    totals->dead = (struct list){.items = totals->first_dead, .nbytes = sizeof totals->first_dead};
    totals->needed = (struct list){.items = totals->first_needed, .nbytes = sizeof totals->first_needed};
}

static bool list_grow(struct list *list) {
    enum { PAGES_NBYTES = 64 << 10 };
    size_t nbytes = list->is_mapped ? list->nbytes * 2 : PAGES_NBYTES;
    void *grown = list->is_mapped ? mremap(list->items, list->nbytes, nbytes, MREMAP_MAYMOVE)
                                  : mmap(NULL, nbytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (grown == MAP_FAILED) return false;
    if (!list->is_mapped) memcpy(grown, list->items, list->nbytes);
    *list = (struct list){grown, list->count, nbytes, true};
    return true;
}

/* Room for one more item, or NULL where memory ran out. */
static void *list_add(struct list *list, size_t size, bool *failed) {
    if ((list->count + 1) * size > list->nbytes && !list_grow(list)) {
        *failed = true;
        return NULL;
    }
    return (char *)list->items + list->count++ * size;
}

static void list_release(struct list *list) {
    if (list->is_mapped) munmap(list->items, list->nbytes);
}

static void add_claim(struct totals *totals, struct claim claim) {
    struct claim *added = list_add(&totals->claims, sizeof claim, &totals->failed);
    if (added) *added = claim;
}

static void add_name(struct list *names, const char *name, bool *failed) {
    struct dead *added = list_add(names, sizeof *added, failed);
    if (added) snprintf(added->name, sizeof added->name, "%.31s", name);
}

static bool is_within(const struct totals *totals, const char *cgroup) {
    return totals->cgroup && store_cgroup_within(cgroup, totals->cgroup);
}

static uint32_t add_process(struct totals *totals, const struct store_client *client) {
    if (client->contexts == 0) return NOBODY;
    struct store_process *added = list_add(&totals->processes, sizeof *added, &totals->failed);
    if (!added) return NOBODY;
    *added = (struct store_process){
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
    return (uint32_t)(totals->processes.count - 1);
}

static void add_slot(struct totals *totals, const struct store_client *client, uint32_t process,
                     const struct store_shared *slot) {
    char maker[32];
    enum claim_kind kind = slot->imported ? CLAIM_IMPORT : CLAIM_MAKER;
    add_claim(totals, (struct claim){slot->object, slot->nbytes, kind, client->gpu, client->gpu_instance,
                                     client->serial, process, is_within(totals, client->cgroup)});
    if (!slot->imported) return;
    snprintf(maker, sizeof maker, "nvidia%u.%u", client->gpu, slot->maker);
    add_name(&totals->needed, maker, &totals->failed);
}

static void use(struct store_usage *usage, uint32_t instance, uint64_t nbytes) {
    usage->used_bytes = size_sum(usage->used_bytes, nbytes);
    if (instance < STORE_INSTANCE_IDS)
        usage->instance_used[instance] = size_sum(usage->instance_used[instance], nbytes);
}

static void add_slots(struct totals *totals, const struct store_client *client, uint32_t process, int fd) {
    struct store_shared slots[32];
    for (uint32_t at = 0; at < client->shared_slots && !totals->failed; at += 32) {
        uint32_t count = client->shared_slots - at < 32 ? client->shared_slots - at : 32;
        size_t nbytes = count * sizeof *slots;
        if (pread(fd, slots, nbytes, (off_t)(sizeof *client + at * sizeof *slots)) != (ssize_t)nbytes) return;
        for (uint32_t i = 0; i < count; i++)
            if (slots[i].object) add_slot(totals, client, process, &slots[i]);
    }
}

static void add_client(struct totals *totals, const struct store_client *client, int fd) {
    if (client->state == STORE_CHECKPOINTED) return;
    uint32_t process = add_process(totals, client);
    struct store_usage *usage = &totals->usage[client->gpu];
    use(usage, client->gpu_instance, size_sum(client->context_bytes, client->overhead_bytes));
    use(usage, client->gpu_instance, size_sum(client->private_bytes, client->managed_bytes));
    if (is_within(totals, client->cgroup)) {
        uint64_t own = size_sum(client->private_bytes, client->managed_bytes);
        uint64_t contexts = size_sum(client->context_bytes, client->overhead_bytes);
        totals->cgroup_bytes = size_sum(totals->cgroup_bytes, size_sum(own, contexts));
    }
    usage->bar1_used = size_sum(usage->bar1_used, client->bar1_bytes);
    totals->initialised[client->gpu] = true;
    if (client->gpu_instance < STORE_INSTANCE_IDS)
        totals->instance_initialised[client->gpu][client->gpu_instance] = true;
    add_slots(totals, client, process, fd);
}

static void read_live_client(struct totals *totals, int fd, uint32_t gpu) {
    struct store_client client;
    if (pread(fd, &client, sizeof client, 0) != sizeof client) return;
    if (memcmp(client.magic, CLIENT_MAGIC, sizeof client.magic) != 0 || client.gpu != gpu) return;
    if (client.shared_slots <= STORE_MAX_SHARED) add_client(totals, &client, fd);
}

static void read_live_export(struct totals *totals, int fd, uint32_t serial) {
    struct store_export header;
    if (store_export_read(fd, &header) != 0 || header.gpu >= STORE_MAX_GPUS) return;
    add_claim(totals, (struct claim){header.object, header.nbytes, CLAIM_DESCRIPTOR, header.gpu, header.gpu_instance,
                                     serial, NOBODY, is_within(totals, header.cgroup)});
    add_name(&totals->needed, header.data_file, &totals->failed);
}

static void read_entry(struct totals *totals, int dev, const char *name) {
    uint32_t gpu = 0, serial = 0;
    enum dev_kind kind = dev_kind(name, &gpu, &serial);
    if (kind == DEV_OTHER) return;
    if (kind == DEV_CLIENT && totals->only != EVERY_GPU && totals->only != (int)gpu) return;
    int fd = openat(dev, name, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return;
    if (!dev_locked(fd))
        add_name(&totals->dead, name, &totals->failed);
    else if (kind == DEV_CLIENT)
        read_live_client(totals, fd, gpu);
    else
        read_live_export(totals, fd, serial);
    close(fd);
}

static bool is_needed(const struct totals *totals, const char *name) {
    const struct dead *needed = totals->needed.items;
    for (size_t i = 0; i < totals->needed.count; i++)
        if (strcmp(needed[i].name, name) == 0) return true;
    return false;
}

static void remove_dead(int dev, const char *name) {
    char data[PATH_MAX];
    uint32_t gpu, serial;
    unlinkat(dev, name, 0);
    if (dev_kind(name, &gpu, &serial) == DEV_CLIENT && memory_path(data, sizeof data, name) == 0) unlink(data);
}

static void remove_dead_files(const struct totals *totals, int dev) {
    const struct dead *dead = totals->dead.items;
    for (size_t i = 0; i < totals->dead.count; i++)
        if (!is_needed(totals, dead[i].name)) remove_dead(dev, dead[i].name);
}

/* By object, the strongest claim on it first. */
static bool is_before(const struct claim *a, const struct claim *b) {
    if (a->object != b->object) return a->object < b->object;
    if (a->kind != b->kind) return a->kind < b->kind;
    return a->serial < b->serial;
}

static void sift_down(struct claim *claims, size_t root, size_t count) {
    for (size_t child; (child = 2 * root + 1) < count; root = child) {
        if (child + 1 < count && is_before(&claims[child], &claims[child + 1])) child++;
        if (!is_before(&claims[root], &claims[child])) return;
        struct claim moved = claims[root];
        claims[root] = claims[child];
        claims[child] = moved;
    }
}

/* A heap sort, because the C library's qsort takes memory from malloc. */
static void sort_claims(struct claim *claims, size_t count) {
    for (size_t root = count / 2; root-- > 0;) sift_down(claims, root, count);
    for (size_t last = count; last-- > 1;) {
        struct claim largest = claims[0];
        claims[0] = claims[last];
        claims[last] = largest;
        sift_down(claims, 0, last);
    }
}

static void charge_objects(struct totals *totals) {
    sort_claims(totals->claims.items, totals->claims.count);
    for (size_t i = 0; i < totals->claims.count; i++) {
        const struct claim *claim = &((const struct claim *)totals->claims.items)[i];
        if (i > 0 && claim[-1].object == claim->object) continue;
        use(&totals->usage[claim->gpu], claim->instance, claim->nbytes);
        if (claim->within && (totals->only == EVERY_GPU || claim->gpu == (uint32_t)totals->only))
            totals->cgroup_bytes = size_sum(totals->cgroup_bytes, claim->nbytes);
        if (claim->process == NOBODY) continue;
        struct store_process *process = &((struct store_process *)totals->processes.items)[claim->process];
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
        uint64_t used = size_sum(usage[index].used_bytes, gpu->cpu_bytes);
        usage[index].free_bytes = size_left(size_left(gpu->total_bytes, gpu->reserved_bytes), used);
        /* All memory in use is mapped through the window, up to the window's size. */
        uint64_t seen = size_sum(size_sum(gpu->bar1_base_bytes, usage[index].used_bytes), usage[index].bar1_used);
        usage[index].bar1_used = seen < gpu->bar1_bytes ? seen : gpu->bar1_bytes;
    }
}

/* As opendir and readdir do it, which take memory from malloc. */
static int read_entries(struct totals *totals, int dev) {
    _Alignas(struct dirent64) char buffer[4096];
    long nbytes;
    while ((nbytes = syscall(SYS_getdents64, dev, buffer, sizeof buffer)) > 0)
        for (long at = 0; at < nbytes;) {
            const struct dirent64 *entry = (const struct dirent64 *)(buffer + at);
            read_entry(totals, dev, entry->d_name);
            at += entry->d_reclen;
        }
    return nbytes < 0 ? -errno : 0;
}

static int read_folder(struct totals *totals) {
    int dev = dev_open(".", O_RDONLY | O_DIRECTORY);
    if (dev < 0) return dev;
    int error = read_entries(totals, dev);
    if (!error && totals->failed) error = -ENOMEM;
    if (!error && totals->admitted) remove_dead_files(totals, dev);
    close(dev);
    return error;
}

/* The reserve for managed memory goes with the last process. */
static void use_reserve(struct totals *totals, uint32_t gpu) {
    uint64_t nbytes = reserve_read(totals->lock_file, gpu);
    if (totals->initialised[gpu])
        use(&totals->usage[gpu], STORE_NO_INSTANCE, nbytes);
    else if (nbytes && totals->admitted)
        reserve_write(totals->lock_file, gpu, 0);
}

static int read_all(struct totals *totals) {
    int error = read_folder(totals);
    for (uint32_t gpu = 0; gpu < (uint32_t)store_config()->gpus && !error; gpu++)
        if (totals->only == EVERY_GPU || totals->only == (int)gpu) use_reserve(totals, gpu);
    return error;
}

static int read_all_admitted(struct totals *totals) {
    int error = store_enter();
    if (error) return error;
    totals->lock_file = admission_fd();
    totals->admitted = true;
    error = read_all(totals);
    store_leave();
    return error;
}

static int read_all_by(struct totals *totals, int admission) {
    totals->admitted = admission != STORE_NO_ADMISSION;
    totals->lock_file = totals->admitted ? admission : open_lock_file();
    if (totals->lock_file < 0) return totals->lock_file;
    int error = read_all(totals);
    if (!totals->admitted) close(totals->lock_file);
    return error;
}

static void release(struct totals *totals) {
    list_release(&totals->processes);
    list_release(&totals->claims);
    list_release(&totals->dead);
    list_release(&totals->needed);
}

static void add_up(struct totals *totals) {
    charge_objects(totals);
    complete(totals, totals->usage);
}

static uint64_t free_of(const struct store_usage *usage, uint32_t gpu, uint32_t gpu_instance) {
    const struct store_mig *mig = store_instance(&store_config()->gpu[gpu], gpu_instance);
    if (!mig) return usage->free_bytes;
    return size_left(mig->total_bytes, usage->instance_used[gpu_instance]);
}

int store_free_by(int admission, uint32_t gpu, uint32_t gpu_instance, uint64_t *nbytes) {
    struct store_usage usage[STORE_MAX_GPUS];
    struct totals totals;
    totals_begin(&totals, usage, (int)gpu);
    int error = read_all_by(&totals, admission);
    if (!error) add_up(&totals);
    if (!error) *nbytes = free_of(&usage[gpu], gpu, gpu_instance);
    release(&totals);
    return error;
}

/* ---- from here on for the program's own threads ---- */

/* In order of their start, as the real lists are. */
static int by_serial(const void *left, const void *right) {
    const struct store_process *a = left, *b = right;
    return a->serial < b->serial ? -1 : a->serial > b->serial;
}

static void copy_processes(const struct totals *totals, struct store_process *processes, int *count) {
    size_t room = processes && count && *count > 0 ? (size_t)*count : 0, found = totals->processes.count;
    struct store_process *all = totals->processes.items;
    if (found) qsort(all, found, sizeof *all, by_serial);
    for (size_t i = 0; i < found && i < room; i++) {
        processes[i] = all[i];
        processes[i].pid =
            process_visible_pid(processes[i].creator_pid, processes[i].pid_namespace, processes[i].started_at);
        if (!processes[i].pid && store_config()->gpu[processes[i].gpu].host_pids)
            processes[i].pid = processes[i].creator_pid;
    }
    if (count) *count = found < INT_MAX / 2 ? (int)found : INT_MAX / 2;
}

static int walk(struct totals *totals) {
    int error = read_all_admitted(totals);
    if (!error) add_up(totals);
    return error;
}

static int walk_some(int only, struct store_usage usage[STORE_MAX_GPUS], struct store_process *processes, int *count) {
    struct totals totals;
    totals_begin(&totals, usage, only);
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

int store_free(uint32_t gpu, uint32_t gpu_instance, uint64_t *nbytes) {
    struct store_usage usage[STORE_MAX_GPUS];
    struct totals totals;
    totals_begin(&totals, usage, (int)gpu);
    int error = walk(&totals);
    if (!error) *nbytes = free_of(&usage[gpu], gpu, gpu_instance);
    release(&totals);
    uint64_t headroom = store_cgroup_headroom(gpu);
    if (!error && headroom < *nbytes) *nbytes = headroom;
    return error;
}

int store_cgroup_used(uint32_t gpu, const char *cgroup, uint64_t *nbytes) {
    struct store_usage usage[STORE_MAX_GPUS];
    struct totals totals;
    totals_begin(&totals, usage, (int)gpu);
    totals.cgroup = cgroup;
    int error = walk(&totals);
    if (!error) *nbytes = totals.cgroup_bytes;
    release(&totals);
    return error;
}

bool store_object_kept(uint64_t object, uint64_t *nbytes) {
    struct store_usage usage[STORE_MAX_GPUS];
    struct totals totals;
    totals_begin(&totals, usage, EVERY_GPU);
    bool kept = read_all_admitted(&totals) != 0; /* where that is unknown: kept */
    if (nbytes) *nbytes = 0;
    const struct claim *claims = totals.claims.items;
    for (size_t i = 0; i < totals.claims.count && !kept; i++) {
        kept = claims[i].object == object;
        if (kept && nbytes) *nbytes = claims[i].nbytes;
    }
    release(&totals);
    return kept;
}
