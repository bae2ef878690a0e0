/* The driver inside: its objects, and what each file offers the others.
 *
 * One lock guards the process's state; it is never held while waiting for work, for a
 * checkpoint or for another process, except for the short admission to the folder.
 * Functions say "locked" where the caller must hold it.
 */
#ifndef VRAM_VIRTUALGPU_DRIVER_H
#define VRAM_VIRTUALGPU_DRIVER_H

#include "../store/client.h"
#include "api.h"
#include "callbacks.h"
#include "functions.h"
#include "signature.h"

#include <stdatomic.h>
#include <stdlib.h>

#define PAGE (2ull << 20) /* device memory is allocated in multiples of 2 MiB */

/* For sizes that were checked before: of an allocation that exists. Others take size_round_up. */
static inline uint64_t round_up(uint64_t value, uint64_t step) {
    return (value + step - 1) / step * step;
}

/* Zeroed memory for a record of the library's own, or NULL. */
static inline void *new_record(size_t size) {
    return store_step_fails("step.memory") ? NULL : calloc(1, size);
}

/* ---- the functions of the API, as the driver's files define and call them ---- */

struct context;
struct stream;
struct event;
struct pool;
struct green;
struct dev_resource;
typedef void (*host_function)(void *data);
typedef void (*stream_callback)(void *stream, result code, void *data);

/* Their symbols are not those that programs find: entry.c exports these, and reports calls to CUPTI. */
#define DECLARE_CALL(name, version, symbol, id, ...) result symbol(PARAMETERS(__VA_ARGS__)) __asm__("call_" #symbol);
FUNCTIONS(DECLARE_CALL)
#undef DECLARE_CALL

/* ---- callbacks.c: what a CUPTI subscriber is told ---- */

struct call {
    struct subscriber *reported_to; /* NULL: not reported */
    uint32_t id;
    result code;
    uint64_t correlation;
    struct callback_data data;
};

extern _Atomic(struct subscriber *) callback_subscriber;

static inline bool callback_anybody(void) {
    return __builtin_expect(atomic_load_explicit(&callback_subscriber, memory_order_relaxed) != NULL, 0);
}

void call_begin(struct call *call, uint32_t id, const char *symbol, void *parameters);
result call_end(struct call *call, result code); /* returns what the caller gets */
/* Not locked: the subscriber may call any function. */
void callback_resource(enum resource_id id, struct context *context, struct stream *stream);
/* Whether this thread is in a callback that was made inside a call, which has passed the gate. */
bool callback_inside_call(void);
/* Whether anybody has ever subscribed in this process. */
bool callback_was_subscribed(void);

/* ---- injection.c ---- */

void injection_load(void); /* once in a process, for cuInit. Not locked */

/* ---- orders.c: what a process asks of the driver's thread of another one ---- */

struct order_target {
    struct store_client *slot; /* of the process's first client */
    int pid, pidfd;            /* of that process; -1 where the kernel has no pidfds */
};

struct order {
    enum store_verb verb;
    bool breaks;    /* it begins, and then the process is FAILED */
    double delay_s; /* how long it takes in the middle; 0 up to hours, in milliseconds */
};

struct answer {
    result code;
    uint32_t state; /* the process's afterwards */
};

/* Waits for the answer: as long as the driver's thread is stopped or busy, or until the process has ended
 * (OPERATING_SYSTEM). */
struct answer order_give(const struct order_target *target, struct order order);
bool order_target_ended(const struct order_target *target);
/* The other side: what the thread waits for, the next order, and the answer to it. */
bool order_prepare(struct store_client *slot);
void order_forget(struct store_client *slot);
struct order order_wait(struct store_client *slot);
void order_answer(struct store_client *slot, struct answer answer);

/* ---- driver_thread.c: the driver's own threads ---- */

result driver_thread_start(void); /* for cuInit, when the clients are open. Locked */
result event_thread_start(void);  /* before the first context; later it does nothing. Locked */

/* ---- gate.c: every call passes it ---- */

struct gate {
    result refused;
    struct store_fault fault;
    bool counted;           /* a lock waits for this call */
    bool answering;         /* the process was locked when it began: it changes nothing and takes no admission */
    bool keeps_from_unlock; /* as long as it is inside, an answering call does */
};

/* What a call does while a checkpoint has the process locked, and while it is checkpointed. Measured on an H200
 * (580.159.04). All kinds but GATE_FREE are counted where they begin while the process runs. */
enum gate_kind {
    GATE_FREE,             /* nothing: the call is about other processes */
    GATE_WAITS,            /* waits for the unlock */
    GATE_ANSWERS,          /* answers as ever */
    GATE_ANSWERS_OR_FAILS, /* answers while locked; while checkpointed it returns OPERATING_SYSTEM */
    GATE_ANSWERS_OR_DIES,  /* answers while locked; while checkpointed the process dies of SIGSEGV */
};

/* Refuses before cuInit and in forked children, fails on request, and waits while a checkpoint has the process
 * locked, unless the kind of the call says otherwise. */
struct gate gate_enter(const char *function, int device, enum gate_kind kind);
void gate_leave(struct gate *gate);
/* A call that from here on waits for work keeps nobody from unlocking the process. */
void gate_before_wait(struct gate *gate);
bool gate_initialised(void); /* by this process */

#define GATE_AS(device, kind) \
    struct gate gate __attribute__((cleanup(gate_leave))) = gate_enter(__func__, device, kind); \
    if (gate.refused) return gate.refused
#define GATE() GATE_AS(-1, GATE_WAITS)
#define GATE_ON(device) GATE_AS(device, GATE_WAITS)

/* Work that goes on after its call returned counts as a call until it is done. Locked. */
void gate_count_work(int change);

void state_lock(void);
void state_unlock(void);
static inline void state_unlock_scope(int *unused) {
    (void)unused;
    state_unlock();
}
#define LOCKED() int locked_scope __attribute__((cleanup(state_unlock_scope), unused)) = (state_lock(), 0)

/* ---- objects that programs hold by address ---- */

enum handle_kind {
    HANDLE_FREE,
    HANDLE_CONTEXT,
    HANDLE_STREAM,
    HANDLE_EVENT,
    HANDLE_POOL,
    HANDLE_ALLOCATION,
    HANDLE_RESOURCES,
    HANDLE_GREEN,
    HANDLE_KINDS
};

struct handle {
    enum handle_kind kind;
    struct context *owner; /* ends with it; NULL for what belongs to the process */
    struct handle *next;
};

/* Memory of dropped handles is reused for the same kind only, so that a stale handle is recognised. Locked. */
void *handle_take(enum handle_kind kind, size_t size, struct context *owner);
void handle_drop(void *handle);
/* Invalid from now on, but its memory is never used again: queued work still points to it. */
void handle_retire(void *handle);
bool handle_is(const void *handle, enum handle_kind kind);
/* The first live handle of a kind, then each next one. */
void *handle_first(enum handle_kind kind);
void *handle_next(void *handle);

/* ---- device.c ---- */

int device_count(void);
int device_gpu(int device); /* the folder's number of a visible device, or -1 */
void device_parse_uuid(const char *text, struct uuid *uuid);
void device_move(int device, int gpu);              /* it is this GPU from now on */
const struct store_gpu *device_config(int device);  /* of a device that device_gpu knows */
const struct store_mig *device_mig(int device);     /* NULL for a whole GPU */
uint32_t device_instance(int device);               /* its GPU instance, or STORE_NO_INSTANCE */
uint64_t device_usable_bytes(int device);           /* what a program can have at most */
int device_multiprocessors(int device);             /* of a device that device_gpu knows */
int device_of(uint32_t gpu, uint32_t gpu_instance); /* the visible device that is it, or -1 */

/* ---- client.c: this process on one GPU ---- */

struct client {
    struct store_holding holding;
    struct store_footprint footprint;
    unsigned contexts;
    uint64_t stream_bytes; /* what the streams of its contexts cost */
    bool open;
};

struct client *client_of(int device); /* NULL before cuInit. Locked */
result clients_open(void);            /* on every visible GPU, for cuInit. Locked */
/* After a checkpoint: each client's GPU becomes the one that *to* names. Inside admission; for the driver's thread. */
result clients_move(const uint8_t to[STORE_MAX_GPUS]);
void clients_close(void);                                                 /* where cuInit fails later. Locked */
result client_add_context(int device, struct store_footprint *footprint); /* Locked */
void client_drop_context(int device, struct store_footprint *footprint);  /* Locked */
result client_free_nbytes(int device, uint64_t *nbytes);
/* The same without admission: for a call that may be stopped in it for long. */
result client_glance_free_nbytes(int device, uint64_t *nbytes);
/* Counts managed memory that moved to the device: used there, but in no process list. Locked */
result client_use_managed(int device, int64_t nbytes);
/* Counts what streams cost: in the process list, as the context is. Locked */
result client_use_streams(int device, int64_t nbytes);

struct block;
/* Bytes of the data file for a block, charged; and back. Inside admission. Locked */
result client_begin_block(int device, uint64_t nbytes, uint64_t *offset);
void client_end_block(struct client *client, const struct block *block);

/* ---- block.c: a range of a data file, the unit that is charged ---- */

struct block {
    struct client *client; /* NULL: somebody else's, opened here */
    int device;
    int data_fd; /* for foreign blocks */
    uint64_t offset, nbytes;
    deviceptr address; /* 0: not mapped as a whole */
    uint64_t object;   /* not 0 once others may keep it */
    char data_file[32];
};

const char *block_data_file(const struct block *block);                 /* the name of the file that its bytes lie in */
result block_create(int device, uint64_t nbytes, struct block **block); /* Locked */
void block_destroy(struct block *block);                                /* Locked */
result block_map(struct block *block);                                  /* Locked */
result block_map_at(struct block *block, deviceptr address, uint64_t nbytes);
result block_share(struct block *block); /* gives it an object number. Locked */
/* A descriptor that keeps the block alive, of a file of *file_nbytes*. Locked */
result block_export(struct block *block, bool dmabuf, uint64_t file_nbytes, int *fd);
/* Opens bytes that another process made; they are charged here once nobody else has them. */
result block_import(const struct store_export *from, int device, struct block **block);

/* NULL where there is no such range of addresses, or no number for its end. */
void *address_reserve(uint64_t nbytes, uint64_t alignment, uint64_t wanted);
void address_release(deviceptr address, uint64_t nbytes);
/* Back to reserved but inaccessible. */
void address_blank(deviceptr address, uint64_t nbytes);

/* ---- range.c: what an address means ---- */

enum range_kind { RANGE_PLAIN, RANGE_POOL, RANGE_MANAGED, RANGE_PINNED, RANGE_REGISTERED, RANGE_IPC, RANGE_VMM };

struct range {
    deviceptr begin;
    uint64_t nbytes; /* as asked for */
    enum range_kind kind;
    int device;
    unsigned flags;
    uint64_t id;
    bool accessible;
    int sync_memops;
    struct context *context;
    void *owner; /* what its kind hangs it on: slab, chunk, block, allocation, managed pages */
};

struct range *range_add(struct range range); /* NULL where memory ran out, or it has no end. Locked */
void range_remove(struct range *range);
struct range *range_at(deviceptr address);             /* that contains the address */
struct range *range_exact(deviceptr address);          /* that begins there */
struct range *range_after(deviceptr address);          /* the first that begins at or after it */
bool range_covers(deviceptr address, uint64_t nbytes); /* all accessible device-side memory */
bool range_overlaps(deviceptr address, uint64_t nbytes);
/* Whether all of [address, address + nbytes) lies in the range. */
bool range_contains(const struct range *range, deviceptr address, uint64_t nbytes);
bool range_is_device(const struct range *range);
struct block *range_block(const struct range *range); /* the device memory under it, or NULL */

/* 2 MiB that many small allocations share; a large allocation is a slab of its own. */
struct slab {
    struct slab *next;
    struct block *block;
    struct extents free;
};

/* ---- context.c ---- */

enum { LIMITS = 10 };

struct context {
    struct handle handle;
    int device;
    bool primary, alive, ending;
    unsigned retained, flags, api_version;
    int cache_config, shared_config;
    uint64_t id, peers;
    size_t limits[LIMITS];
    struct slab *slabs;
    struct stream *legacy;
    uint64_t stream_bytes; /* for the most streams that it had at once */
    struct store_footprint footprint;
};

struct context *context_current(void);
/* The sticky error that keeps this thread from calling *function*, or OK. */
result context_broken(const char *function);
/* Breaks every context of this process on the current context's device, for good. */
void context_break(int code);
/* Whether a green context of this process is alive on the device. Locked. */
bool green_on(int device);
/* What cuDevicePrimaryCtxRetain and Release do. Not locked. */
result primary_retain(struct context **context, int device);
result primary_release(int device);
/* The thread's live context, or the error to return. Locked. */
result context_need(struct context **context);
result context_check(struct context *context);
void contexts_wait_idle(struct context *context); /* not locked */
uint64_t next_id(void);

/* ---- what each kind of memory frees when its context ends. Locked ---- */

void plain_free_context(struct context *context);
void managed_free_context(struct context *context);
/* The device writes there: managed pages move to it, as far as there is room. Locked */
void managed_touch(deviceptr address, uint64_t nbytes, int device);
void host_free_context(struct context *context);
void ipc_free_context(struct context *context);
void streams_free_context(struct context *context);
result plain_free(struct range *range);
result managed_free(struct range *range);
result ipc_close(struct range *range);

/* ---- stream.c: order of work ---- */

struct stream {
    struct handle handle;
    int priority;
    unsigned flags;
    long thread; /* of a per-thread default stream, else 0 */
    uint64_t id, submitted, completed;
    struct work *first, *last;
    bool busy, worker, dying, is_legacy;
};

/* Set while a thread is in a call whose default stream is its own: cuMemcpyAsync_ptsz and the like. */
extern _Thread_local bool default_stream_is_own;
/* What a stream argument means to this thread. Locked. */
result stream_resolve(void *handle, struct stream **stream);
struct stream *stream_create(struct context *context, unsigned flags, int priority);
void stream_destroy(struct stream *stream);
bool stream_idle(const struct stream *stream);
void stream_wait(struct stream *stream); /* not locked */
/* Runs after everything before it: at once where nothing is, else by a thread of the
 * stream. *inline_allowed* false is for code of the program, which must not run in the
 * calling thread. The argument is copied. Not locked. */
result stream_submit(struct stream *stream, void (*run)(void *), const void *argument, size_t nbytes,
                     bool inline_allowed);
result stream_submit_on(void *handle, void (*run)(void *), const void *argument, size_t nbytes);
/* On the legacy stream, and done when it returns. */
result stream_run_now(void (*run)(void *), const void *argument, size_t nbytes);

/* ---- event.c ---- */

void event_free(struct event *event);

/* ---- pool.c ---- */

result pool_default(int device, struct pool **pool);
result pool_current(int device, struct pool **pool);
void pool_set_current(int device, struct pool *pool);
result pool_create(const struct pool_props *props, struct pool **pool);
void pool_destroy(struct pool *pool);
result pool_allocate(struct pool *pool, uint64_t nbytes, deviceptr *address);
result pool_free(struct range *range);
void pool_trim(struct pool *pool, uint64_t keep_nbytes);
/* At a synchronisation: releases free memory above each pool's threshold. Locked. */
void pools_synchronized(int device);
/* The same after a call that waited, where that may change anything. Not locked. */
void pools_synchronized_by(const struct gate *gate, int device);

struct chunk {
    struct chunk *next;
    struct pool *pool;
    struct block *block; /* NULL for host memory, which nobody charges */
    deviceptr address;
    uint64_t nbytes, used;
    struct extents free;
};

/* For imports: a chunk that another process's pool made, and a given piece of it. Locked */
result chunk_adopt(struct pool *pool, struct block *block, struct chunk **chunk);
result chunk_cut(struct chunk *chunk, uint64_t begin, uint64_t nbytes, deviceptr *address);
void chunk_destroy(struct chunk *chunk);

enum { REUSE_FLAGS = 3 };

struct pool {
    struct handle handle;
    int device; /* -1: host memory */
    struct pool_props props;
    bool is_default, imported, dying;
    int reuse[REUSE_FLAGS];
    uint64_t threshold, reserved, reserved_high, used, used_high;
    uint64_t readable, writable; /* by which devices */
    struct chunk *chunks;
};

/* ---- vmm.c ---- */

struct allocation {
    struct handle handle;
    struct allocation_prop prop;
    struct block *block;
    unsigned references;
};

struct allocation *allocation_from(uint64_t handle);
struct allocation *allocation_adopt(struct block *block, const struct allocation_prop *prop);

/* ---- for share.c ---- */

result result_from_errno(int negative_errno);
int export_file(const struct block *block, bool dmabuf, uint64_t file_nbytes); /* descriptor or -errno. Locked */

#endif
