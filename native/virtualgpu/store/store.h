/* The virtual GPU's folder: its clients, what they hold, and when that is freed.
 *
 * There is no daemon. Memory belongs to open files, as it does in the real driver: a
 * file in dev/ whose open-file-description lock nobody holds is dead, and its bytes are
 * free. DESIGN.md beside this folder says why that is honest, and draws the files.
 *
 * Both libraries (driver/ and nvml/) read and write the folder through this header only.
 */
#ifndef VRAM_VIRTUALGPU_STORE_H
#define VRAM_VIRTUALGPU_STORE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "sizes.h"

#define STORE_FOLDER_VARIABLE "VRAM_VIRTUAL_GPU"
#define STORE_MAX_GPUS 64
#define STORE_MAX_SHARED 4096
#define STORE_MAX_MIG_DEVICES 7
#define STORE_INSTANCE_IDS 16        /* the driver numbers GPU instances below this */
#define STORE_NO_INSTANCE UINT32_MAX /* of a GPU that is not divided */
#define STORE_CGROUP_SIZE 256        /* a longer path of a control group is not taken */

/* ---- config: read once per process from <folder>/config, lines of "key = value" ---- */

/* A MIG device: one compute instance in a GPU instance. All compute instances of a GPU
 * instance share its memory. */
struct store_mig {
    uint32_t gpu_instance, compute_instance; /* the driver's numbers */
    uint32_t slices, compute_slices;         /* of seven, the instance's and this device's own */
    uint64_t total_bytes;                    /* of the GPU instance */
    char profile[32];                        /* "3g.71gb", or "1c.3g.71gb" where it has but a part */
    char uuid[48];                           /* "MIG-xxxxxxxx-xxxx-..." */
};

struct store_gpu {
    char name[96];
    char uuid[48]; /* "GPU-xxxxxxxx-xxxx-..." */
    uint64_t total_bytes;
    uint64_t reserved_bytes;         /* what v2 calls reserved and v1 counts as used */
    uint64_t init_bytes;             /* used once any process initialised the driver; charged to nobody */
    uint64_t context_bytes;          /* charged to a process for each of its contexts on the GPU */
    uint64_t context_overhead_bytes; /* used by each context beside them, charged to nobody */
    uint64_t bar1_bytes;
    uint64_t bar1_base_bytes; /* of these, what is in use before any client comes */
    bool ecc_enabled, persistence, mig_enabled, remap_pending, remap_failure;
    unsigned compute_mode; /* 0 default, 2 prohibited, 3 exclusive process */
    unsigned remapped_correctable, remapped_uncorrectable;
    bool retires_pages, retired_pending; /* an older chip: it retires pages, and remaps no rows */
    unsigned retired_pages;
    uint64_t ecc_uncorrected; /* errors in device memory since the driver was loaded */
    unsigned utilization;
    int recovery_action;     /* what the driver advises, by NVML's number; -1: it does not know the field */
    unsigned virtualization; /* by NVML's number: 2, a vGPU in a virtual machine */
    uint64_t windows_bytes;  /* under Windows: used by its own programs, which no list names */
    bool unified;            /* no memory of its own: total_bytes are the machine's, and NVML refuses totals */
    int numa_node;           /* its memory is this node of the machine's; -1: it is none */
    uint64_t cpu_bytes;      /* of that memory: used by programs on the processor and by the kernel */
    uint64_t cache_bytes;    /* and by the files' cache, which is released when others need the room */
    int mig_pending;         /* the mode after the next reset; -1: as it is now */
    bool mig_restricted;     /* the caller may ask for MIG devices, not for the GPU as a whole */
    bool host_pids;          /* an older driver: other PID namespaces see the creator's own pid */
    int mig_devices;
    struct store_mig mig[STORE_MAX_MIG_DEVICES];
};

struct store_config {
    int gpus;
    char driver_version[32]; /* "580.159.04" */
    int cuda_version;        /* 13000 */
    bool wddm;               /* as in WSL2: Windows' driver, reached through dev/dxg alone */
    struct store_gpu gpu[STORE_MAX_GPUS];
};

/* The folder's config, or NULL where the variable is unset or the folder unusable. */
const struct store_config *store_config(void);
const char *store_folder(void);
/* The first MIG device of a GPU instance, or NULL. */
const struct store_mig *store_instance(const struct store_gpu *gpu, uint32_t gpu_instance);

/* ---- client files: dev/nvidia<gpu>.<serial>, one per GPU and process that called cuInit ---- */

enum store_state { STORE_RUNNING = 0, STORE_LOCKED = 1, STORE_CHECKPOINTED = 2, STORE_FAILED = 3 };

/* What another process asks of the driver's thread in the process that made a client file. */
enum store_verb { STORE_GET_STATE, STORE_LOCK, STORE_CHECKPOINT, STORE_RESTORE, STORE_UNLOCK };

/* An allocation that more than one file may keep alive. */
struct store_shared {
    uint64_t object; /* unique in the folder, never reused; 0 marks an empty slot */
    uint64_t nbytes;
    uint32_t imported; /* 0: this client made it; 1: it mapped or opened somebody else's */
    uint32_t maker;    /* serial of the client in whose data file the bytes lie */
};

/* A client file, mapped shared by its owner and by its readers. */
struct store_client {
    char magic[8]; /* "VRAMGPU1" */
    uint32_t gpu;
    uint32_t pid; /* the creator's, in its own namespace: stays listed while a fork lives */
    uint32_t uid;
    uint32_t serial;
    uint32_t gpu_instance, compute_instance; /* STORE_NO_INSTANCE on a GPU that is not divided */
    uint32_t mps;                            /* 1: it shares the GPU through MPS */
    uint32_t doorbell_inode;                 /* the low half of the pipe's, see below */
    uint64_t started_at;                     /* clock ticks since boot, field 22 of /proc/self/stat */
    uint64_t pid_namespace;
    _Atomic uint32_t state;        /* enum store_state; written by the driver's thread of the process alone */
    _Atomic uint32_t calls_inside; /* driver calls now running; a checkpoint lock waits for 0 */
    _Atomic uint32_t contexts;     /* live contexts; 0 means: not listed, nothing charged */
    _Atomic uint32_t managed;      /* live managed allocations: they refuse a checkpoint */
    _Atomic uint64_t context_bytes;
    _Atomic uint64_t overhead_bytes;
    _Atomic uint64_t private_bytes; /* device bytes that only this client can keep alive */
    _Atomic uint64_t managed_bytes; /* managed memory that lies on the device: used, in no list */
    _Atomic uint64_t bar1_bytes;    /* of the window into device memory, beyond the memory it uses */
    _Atomic uint32_t shared_slots;  /* one past the highest slot in use */
    _Atomic uint32_t answering;     /* calls that answer while the process is locked, now running */
    /* Orders to the driver's thread, in the process's first client file only. driver/orders.c has the protocol. */
    _Atomic uint64_t order;         /* the latest: its number in the low half, a futex; what to do above */
    _Atomic uint32_t answered;      /* the number of the last order that was carried out; a futex */
    _Atomic uint32_t answer;        /* to that one: a code of the driver's below, the state above */
    _Atomic uint32_t driver_thread; /* its thread id, in its own namespace; 0 until it runs */
    int32_t doorbell;               /* descriptor of that process: the end of a pipe that wakes the thread */
    char cgroup[STORE_CGROUP_SIZE]; /* the control group that its maker is in */
    /* In the process's first client file: where a restore is to bring what was on each GPU, one more than that GPU's
     * number; 0: where it was. Written by the one who orders the restore, cleared by the thread that carries it out. */
    _Atomic uint8_t restore_to[STORE_MAX_GPUS];
    struct store_shared shared[]; /* STORE_MAX_SHARED of them */
};

#define STORE_CLIENT_NBYTES (sizeof(struct store_client) + STORE_MAX_SHARED * sizeof(struct store_shared))

/* ---- exported files: dev/nvidiactl.<serial> and dev/dmabuf.<serial> ----
 * Their descriptor is what cuMemExportToShareableHandle and cuMemGetHandleForAddressRange
 * hand out. They carry this header; a dma-buf's file size is its allocation's size, as
 * the kernel shows it for a real one. */
struct store_export {
    char magic[8]; /* "VRAMEXP1" */
    uint32_t gpu;
    uint32_t dmabuf;
    uint32_t gpu_instance, unused;
    uint64_t object;
    uint64_t nbytes;
    uint64_t data_offset;           /* where the bytes lie in data_file */
    char data_file[32];             /* name in memory/, that of its maker: "nvidia0.17"; importers map it */
    char cgroup[STORE_CGROUP_SIZE]; /* of the process that exported it: it stays charged */
};

/* ---- the walk: one consistent look at every live file ---- */

struct store_process {
    uint32_t pid; /* as the reader's namespace sees it; 0 where it cannot be seen from there */
    uint32_t creator_pid;
    uint32_t gpu, serial, uid, state;
    uint32_t gpu_instance, compute_instance, mps;
    uint64_t pid_namespace, started_at;
    uint64_t charged_bytes; /* what the process list shows */
};

struct store_usage {
    uint64_t used_bytes; /* without reserved: driver, contexts, overhead, private, every object once */
    uint64_t free_bytes; /* total - reserved - used - what the processor's programs use */
    uint64_t bar1_used;
    uint64_t instance_used[STORE_INSTANCE_IDS]; /* of used_bytes, by GPU instance */
};

/* Fills usage[gpu] for every GPU and up to *count processes; *count becomes how many there
 * are. Checkpointed clients count nothing. Each shared object counts once: for its maker
 * while that lives and has not released it; else for nobody while a descriptor exports it
 * (used, but in no list); else for its first importer. Returns 0 or -errno. */
int store_walk(struct store_usage usage[STORE_MAX_GPUS], struct store_process *processes, int *count);

/* The same of one GPU alone; usage of the others is not filled in. */
int store_walk_gpu(uint32_t gpu, struct store_usage usage[STORE_MAX_GPUS], struct store_process *processes, int *count);

/* What one GPU, or one GPU instance of it, has left, without a look at the clients of the
 * others. Returns 0 or -errno. */
int store_free(uint32_t gpu, uint32_t gpu_instance, uint64_t *nbytes);

/* The same by *admission*, a descriptor of store_enter_alone, or by STORE_NO_ADMISSION: then nobody is kept
 * waiting, and while others allocate the figure may be between two true ones. */
enum { STORE_NO_ADMISSION = -1 };
int store_free_by(int admission, uint32_t gpu, uint32_t gpu_instance, uint64_t *nbytes);

/* ---- cgroup.c: control groups and their limits ---- */

struct store_limit {
    uint64_t soft, hard;            /* guaranteed; the most, UINT64_MAX: no limit */
    char cgroup[STORE_CGROUP_SIZE]; /* whose it is: the group's, or the nearest one's above it that has one */
};

/* Which group this process is in, "/" where nothing says. */
const char *store_own_cgroup(void);
bool store_cgroup_within(const char *cgroup, const char *above);
/* False where neither the group nor any above it has device memory's controller. */
bool store_cgroup_limit(uint32_t gpu, const char *cgroup, struct store_limit *limit);
/* 0, or -ENOENT where there is no such group or it has no such controller. */
int store_cgroup_set(uint32_t gpu, const char *cgroup, uint64_t soft, uint64_t hard);
uint64_t store_cgroup_headroom(uint32_t gpu);
/* What the group and all below it use, dead exporters included (walk.c). 0 or -errno. */
int store_cgroup_used(uint32_t gpu, const char *cgroup, uint64_t *nbytes);

/* ---- footprint: what /proc shows of a process that uses the driver ---- */

enum { STORE_FOOTPRINT_MOST = 32 };

/* Zero-initialised means: nothing. */
struct store_footprint {
    int fds[STORE_FOOTPRINT_MOST], fd_count;
    void *mappings[STORE_FOOTPRINT_MOST];
    int mapping_count;
};

/* Opens dev/<name> *fds* times, close-on-exec, and maps it *mappings* times; 0 or -errno. */
int store_footprint_add(struct store_footprint *footprint, const char *name, int fds, int mappings);
/* The same for the GPU's own file, dev/nvidia<gpu>. */
int store_footprint_add_gpu(struct store_footprint *footprint, uint32_t gpu, int fds, int mappings);
void store_footprint_drop(struct store_footprint *footprint);
/* Every descriptor of this process on a GPU's own file becomes one on the file of the GPU that *to* names, one more than
 * its number. Takes no memory and no lock. */
void store_footprint_move(const uint8_t to[STORE_MAX_GPUS]);

/* Puts zeroed memory at *address* that /proc shows as a mapping of dev/nvidia-uvm, as it shows
 * managed memory; a forked child does not get it. 0 or -errno. */
int store_map_managed(void *address, uint64_t nbytes);

/* ---- admission: everything that changes who holds what happens inside ---- */

int store_enter(void);  /* waits for the folder's lock; 0 or -errno */
void store_leave(void); /* the kernel does this for a killed process */

/* Admission of the driver's thread, which works while the program's threads are stopped, perhaps inside a fork: it
 * takes no lock of the process. A descriptor, or -errno. One thread of a process at a time. */
int store_enter_alone(void);
void store_leave_alone(int admission);

/* ---- faults: <folder>/faults, re-read when it changes; see faults.c for the grammar ---- */

enum store_fault_kind { FAULT_NONE, FAULT_ERROR, FAULT_STICKY, FAULT_SENTINEL, FAULT_HALFWAY, FAULT_VALUE };
struct store_fault {
    enum store_fault_kind kind;
    int code; /* the library's own error number; of FAULT_VALUE, what is returned instead; of FAULT_SENTINEL, nothing */
};

/* Asks whether the call named *function* on *gpu* (-1: none) shall misbehave now. A hang
 * or a delay has already happened when this returns. */
struct store_fault store_fault(const char *function, int gpu);

/* Whether the internal step *step* ("step.range", "step.map") shall fail now: so that every step of a
 * creation can be made the one that fails. Looks at the lines that the last store_fault has read. */
bool store_step_fails(const char *step);

/* How long the step shall take more than it does. The process that asks for a checkpoint reads this and passes it
 * on to the driver's thread of the other one, which must take no lock. */
double store_step_delay_s(const char *step);
/* Waits as `slow` does: it ends sooner when the faults file is emptied. Takes no lock. */
void store_delay(double seconds);

#endif
