/* What is recorded of each memory call of the driver.
 *
 * Callback numbers and the layouts of the calls' parameters are those of CUPTI's cupti_driver_cbid.h and
 * generated_cuda_meta.h (CUDA 13.0; numbers are never given to another function). Every parameter that is
 * used here lies in an 8-byte slot of its own.
 *
 * Frees carry the time before the call and allocations the time after it: sorted by time, an address is
 * freed before it is given out again, whichever threads do it.
 */
#include "writer.h"

#include <string.h>

struct call_data { /* CUpti_CallbackData */
    int site;      /* 0 before the call, 1 after it */
    const char *function;
    void *params;
    int *result;
    const char *symbol;
    void *context;
    uint32_t context_id;
    uint64_t *correlation; /* of this call: what is stored before it is found after it */
    uint32_t correlation_id;
};

struct resource_data { /* CUpti_ResourceData */
    void *context;
    void *stream;
    void *descriptor;
};

struct module_data { /* CUpti_ModuleResourceData */
    uint32_t module;
    size_t nbytes;
    const char *code;
};

enum resource_id { CONTEXT_CREATED = 1, CONTEXT_ENDS = 2, MODULE_LOADED = 6, MODULE_UNLOADS = 7 };

enum operation {
    NOTHING,
    ALLOC,         /* slot 0: where the address is stored, slot 1: size */
    ALLOC_PITCH,   /* slot 1: where the pitch is stored, slot 3: height */
    ALLOC_ARRAY,   /* slot 1: width, height, format and channels */
    ALLOC_ARRAY3D, /* slot 1: width, height, depth, format and channels */
    ALLOC_MIPMAP,  /* the same, slot 2: levels */
    CREATE,        /* cuMemCreate: slot 2 says on which device, or at the host */
    REGISTER,      /* slot 0: the address itself, slot 1: size */
    OPEN,          /* the size is asked for */
    IMPORT,        /* slot 0: where the handle is stored; the size is unknown */
    IMPORT_EXTERNAL,
    CREATE_MULTICAST,
    ADD_ALLOC_NODE, /* slot 4: the node's parameters */
    ADD_NODE,       /* the same, if the node is one that allocates */
    ADD_NODE_V2,    /* slot 5 */
    FREE,           /* slot 0: the address or handle */
    MAP,            /* slots: address, size, offset, handle */
    UNMAP,          /* slots: address, size */
    RETAIN,         /* slot 0: where the handle is stored */
    TRIM,           /* slots: pool, bytes to keep */
    TRIM_GRAPHS,
};

enum { NO_STREAM = 0xff };

struct hook {
    uint16_t id;
    uint8_t operation;
    uint8_t what;   /* kind of what is allocated, or space of what is freed */
    uint8_t stream; /* the slot of the stream */
};

static const struct hook hooks[] = {
    {243, ALLOC, KIND_DEVICE, NO_STREAM},               /* cuMemAlloc_v2 */
    {244, ALLOC_PITCH, KIND_DEVICE, NO_STREAM},         /* cuMemAllocPitch_v2 */
    {245, FREE, SPACE_DEVICE, NO_STREAM},               /* cuMemFree_v2 */
    {371, ALLOC, KIND_MANAGED, NO_STREAM},              /* cuMemAllocManaged */
    {598, ALLOC, KIND_STREAM_ORDERED, 2},               /* cuMemAllocAsync */
    {599, ALLOC, KIND_STREAM_ORDERED, 2},               /* cuMemAllocAsync_ptsz */
    {611, ALLOC, KIND_STREAM_ORDERED, 3},               /* cuMemAllocFromPoolAsync */
    {612, ALLOC, KIND_STREAM_ORDERED, 3},               /* cuMemAllocFromPoolAsync_ptsz */
    {600, FREE, SPACE_DEVICE, 1},                       /* cuMemFreeAsync */
    {601, FREE, SPACE_DEVICE, 1},                       /* cuMemFreeAsync_ptsz */
    {37, ALLOC, KIND_PINNED_HOST, NO_STREAM},           /* cuMemAllocHost */
    {294, ALLOC, KIND_PINNED_HOST, NO_STREAM},          /* cuMemAllocHost_v2 */
    {39, ALLOC, KIND_PINNED_HOST, NO_STREAM},           /* cuMemHostAlloc */
    {271, ALLOC, KIND_PINNED_HOST, NO_STREAM},          /* cuMemHostAlloc_v2 */
    {38, FREE, SPACE_HOST, NO_STREAM},                  /* cuMemFreeHost */
    {301, REGISTER, KIND_REGISTERED_HOST, NO_STREAM},   /* cuMemHostRegister */
    {379, REGISTER, KIND_REGISTERED_HOST, NO_STREAM},   /* cuMemHostRegister_v2 */
    {302, FREE, SPACE_HOST, NO_STREAM},                 /* cuMemHostUnregister */
    {272, ALLOC_ARRAY, KIND_ARRAY, NO_STREAM},          /* cuArrayCreate_v2 */
    {274, ALLOC_ARRAY3D, KIND_ARRAY, NO_STREAM},        /* cuArray3DCreate_v2 */
    {347, ALLOC_MIPMAP, KIND_ARRAY, NO_STREAM},         /* cuMipmappedArrayCreate */
    {89, FREE, SPACE_ARRAYS, NO_STREAM},                /* cuArrayDestroy */
    {349, FREE, SPACE_ARRAYS, NO_STREAM},               /* cuMipmappedArrayDestroy */
    {547, ALLOC, KIND_ADDRESS_RANGE, NO_STREAM},        /* cuMemAddressReserve */
    {548, FREE, SPACE_RANGES, NO_STREAM},               /* cuMemAddressFree */
    {549, CREATE, KIND_PHYSICAL, NO_STREAM},            /* cuMemCreate */
    {550, FREE, SPACE_HANDLES, NO_STREAM},              /* cuMemRelease */
    {551, MAP, 0, NO_STREAM},                           /* cuMemMap */
    {552, UNMAP, 0, NO_STREAM},                         /* cuMemUnmap */
    {565, RETAIN, 0, NO_STREAM},                        /* cuMemRetainAllocationHandle */
    {555, IMPORT, KIND_IMPORTED, NO_STREAM},            /* cuMemImportFromShareableHandle */
    {485, IMPORT_EXTERNAL, KIND_IMPORTED, NO_STREAM},   /* cuImportExternalMemory */
    {488, FREE, SPACE_HANDLES, NO_STREAM},              /* cuDestroyExternalMemory */
    {706, CREATE_MULTICAST, KIND_MULTICAST, NO_STREAM}, /* cuMulticastCreate */
    {329, OPEN, KIND_OPENED, NO_STREAM},                /* cuIpcOpenMemHandle */
    {567, OPEN, KIND_OPENED, NO_STREAM},                /* cuIpcOpenMemHandle_v2 */
    {616, OPEN, KIND_OPENED, NO_STREAM},                /* cuMemPoolImportPointer */
    {330, FREE, SPACE_DEVICE, NO_STREAM},               /* cuIpcCloseMemHandle */
    {607, IMPORT, KIND_POOL, NO_STREAM},                /* cuMemPoolCreate */
    {614, IMPORT, KIND_POOL, NO_STREAM},                /* cuMemPoolImportFromShareableHandle */
    {608, FREE, SPACE_POOLS, NO_STREAM},                /* cuMemPoolDestroy */
    {602, TRIM, 0, NO_STREAM},                          /* cuMemPoolTrimTo */
    {640, TRIM_GRAPHS, 0, NO_STREAM},                   /* cuDeviceGraphMemTrim */
    {638, ADD_ALLOC_NODE, KIND_GRAPH, NO_STREAM},       /* cuGraphAddMemAllocNode */
    {712, ADD_NODE, KIND_GRAPH, NO_STREAM},             /* cuGraphAddNode */
    {723, ADD_NODE_V2, KIND_GRAPH, NO_STREAM},          /* cuGraphAddNode_v2 */
};

enum { HOOKS = sizeof hooks / sizeof *hooks, MAX_IDS = 1024 };

static uint8_t rows[MAX_IDS];        /* by callback number: the hook's row plus one */
static _Atomic uint64_t allocations; /* counted for --fail-at */

__attribute__((constructor)) static void index_hooks(void) {
    for (int i = 0; i < HOOKS; i++) rows[hooks[i].id] = (uint8_t)(i + 1);
}

static const uint32_t resources[] = {CONTEXT_CREATED, CONTEXT_ENDS, MODULE_LOADED, MODULE_UNLOADS};

void for_each_hook(void (*each)(int domain, uint32_t id)) {
    for (int i = 0; i < HOOKS; i++) each(DOMAIN_DRIVER, hooks[i].id);
    for (size_t i = 0; i < sizeof resources / sizeof *resources; i++) each(DOMAIN_RESOURCE, resources[i]);
}

bool is_hooked(int domain, uint32_t id) {
    if (domain == DOMAIN_DRIVER) return id < MAX_IDS && rows[id];
    return domain == DOMAIN_RESOURCE &&
           (id == CONTEXT_CREATED || id == CONTEXT_ENDS || id == MODULE_LOADED || id == MODULE_UNLOADS);
}

/* ---- sizes that the parameters do not say ---- */

static uint64_t element_nbytes(uint32_t format, uint32_t channels) {
    uint64_t nbytes = format == 0x02 || format == 0x09 || format == 0x10   ? 2
                      : format == 0x03 || format == 0x0a || format == 0x20 ? 4
                                                                           : 1; /* block formats: about a byte */
    return nbytes * (channels ? channels : 1);
}

static uint64_t array_nbytes(uint64_t width, uint64_t height, uint64_t depth, uint64_t element) {
    uint64_t nbytes = width ? width : 1;
    bool beyond = __builtin_mul_overflow(nbytes, height ? height : 1, &nbytes) ||
                  __builtin_mul_overflow(nbytes, depth ? depth : 1, &nbytes) ||
                  __builtin_mul_overflow(nbytes, element, &nbytes);
    return beyond ? 0 : nbytes;
}

static uint64_t array_size(enum operation operation, const uint64_t *params) {
    const uint64_t *wanted = (const uint64_t *)(uintptr_t)params[1];
    if (!wanted) return 0;
    uint32_t format[2]; /* and channels */
    bool flat = operation == ALLOC_ARRAY;
    memcpy(format, wanted + (flat ? 2 : 3), sizeof format);
    uint64_t width = wanted[0], height = wanted[1], depth = flat ? 0 : wanted[2];
    uint64_t element = element_nbytes(format[0], format[1]);
    uint64_t nbytes = array_nbytes(width, height, depth, element);
    uint32_t levels = operation == ALLOC_MIPMAP ? (uint32_t)params[2] : 1;
    for (uint32_t level = 1; level < levels && level < 32; level++)
        nbytes += array_nbytes(width >> level, height >> level, depth >> level, element);
    return nbytes;
}

static uint64_t range_nbytes(uint64_t address) {
    uint64_t base = 0;
    size_t nbytes = 0;
    int (*range)(uint64_t *, size_t *, uint64_t) = driver_function("cuMemGetAddressRange_v2");
    return range && range(&base, &nbytes, address) == 0 ? nbytes : 0;
}

/* ---- events ---- */

static uint32_t where_number(struct writer *writer, void *context, uint64_t stream) {
    uint32_t epoch = atomic_load_explicit(&context_epoch, memory_order_relaxed);
    if (likely(writer->context == context && writer->stream == stream && writer->epoch == epoch && writer->where))
        return writer->where;
    writer->device = context_device(context);
    writer->where = writer_where(writer, context, writer->device, stream);
    writer->context = context;
    writer->stream = stream;
    writer->epoch = epoch;
    return writer->where;
}

enum { UNKNOWN_DEVICE = -1, OF_CONTEXT = -2 };

struct event {
    uint64_t address, nbytes, stream;
    uint8_t kind;
    int device;
};

static void write_alloc(void *context, const struct event *event) {
    struct writer *writer = writer_begin();
    if (!writer) return;
    uint32_t where = event->device == OF_CONTEXT ? where_number(writer, context, event->stream)
                                                 : writer_where(writer, context, event->device, event->stream);
    uint32_t stack = stack_number(writer);
    if (writer_room(writer, EVENT_NBYTES)) {
        uint8_t *at = put_time(writer, writer->at + 1, now_ns());
        at = put_number(at, where);
        at = put_address(writer, at, event->address);
        at = put_number(at, event->nbytes);
        at = put_number(at, stack);
        commit(writer, (uint8_t)(RECORD_ALLOC + event->kind), at);
    }
    writer_done(writer);
}

static void write_failed(void *context, const struct event *event, int result) {
    struct writer *writer = writer_begin();
    if (!writer) return;
    uint32_t where = where_number(writer, context, event->stream);
    uint32_t stack = stack_number(writer);
    if (writer_room(writer, EVENT_NBYTES)) {
        uint8_t *at = writer->at + 1;
        *at++ = event->kind;
        at = put_time(writer, at, now_ns());
        at = put_number(at, where);
        at = put_number(at, event->nbytes);
        at = put_number(at, (uint64_t)(uint32_t)result);
        at = put_number(at, stack);
        commit(writer, RECORD_FAILED, at);
    }
    writer_done(writer);
}

static void write_free(void *context, uint8_t space, uint64_t time, uint64_t address, uint64_t stream) {
    struct writer *writer = writer_begin();
    if (!writer) return;
    uint32_t where = where_number(writer, context, stream);
    uint8_t *at = put_time(writer, writer->at + 1, time);
    at = put_number(at, where);
    at = put_address(writer, at, address);
    commit(writer, (uint8_t)(RECORD_FREE + space), at);
    writer_done(writer);
}

static void write_mapping(void *context, const struct call_data *call, bool maps, const uint64_t *params) {
    struct writer *writer = writer_begin();
    if (!writer) return;
    uint32_t where = where_number(writer, context, 0);
    uint8_t *at = put_time(writer, writer->at + 1, maps ? now_ns() : *call->correlation);
    at = put_number(at, where);
    at = put_address(writer, at, params[0]);
    at = put_number(at, params[1]);
    if (maps) at = put_number(at, params[3]);
    commit(writer, maps ? RECORD_MAP : RECORD_UNMAP, at);
    writer_done(writer);
}

static void write_retain(uint64_t handle) {
    struct writer *writer = writer_begin();
    if (!writer) return;
    uint8_t *at = put_time(writer, writer->at + 1, now_ns());
    commit(writer, RECORD_RETAIN, put_number(at, handle));
    writer_done(writer);
}

static void write_trim(void *context, uint64_t pool, uint64_t kept) {
    struct writer *writer = writer_begin();
    if (!writer) return;
    uint32_t where = where_number(writer, context, 0);
    uint8_t *at = put_time(writer, writer->at + 1, now_ns());
    at = put_number(at, where);
    at = put_number(at, pool);
    commit(writer, RECORD_TRIM, put_number(at, kept));
    writer_done(writer);
}

/* ---- before a call ---- */

static uint64_t *size_parameter(const struct hook *hook, uint64_t *params) {
    bool on_gpu = hook->what == KIND_DEVICE || hook->what == KIND_MANAGED || hook->what == KIND_STREAM_ORDERED;
    switch (hook->operation) {
    case ALLOC: return on_gpu ? &params[1] : NULL;
    case CREATE: return &params[1];
    default: return NULL;
    }
}

static __thread uint64_t wanted_nbytes; /* of the call that is being made to fail */
static __thread struct {
    uint64_t nbytes, until;
    int left;
} repeats; /* of an allocation that was made to fail */

/* A framework that is refused empties its caches and asks again for the same size (PyTorch up to three
   times): those attempts are refused too, else nobody would notice the first. */
static bool repeats_a_failure(uint64_t nbytes) {
    if (!repeats.left || repeats.nbytes != nbytes || now_ns() > repeats.until) return false;
    repeats.left--;
    return true;
}

/* --fail-at: the driver is asked for more than any GPU has, and answers as when memory is short. */
static void fail_perhaps(const struct hook *hook, uint64_t *params) {
    uint64_t *nbytes = size_parameter(hook, params);
    if (!nbytes) return;
    bool fails = settings.fail == FAIL_AT_SIZE ? *nbytes >= settings.fail_value : repeats_a_failure(*nbytes);
    if (!fails && settings.fail == FAIL_AT_COUNT && atomic_fetch_add(&allocations, 1) + 1 == settings.fail_value) {
        fails = true;
        repeats.nbytes = *nbytes;
        repeats.until = now_ns() + 1000000000u;
        repeats.left = 2;
    }
    if (!fails) return;
    wanted_nbytes = *nbytes;
    *nbytes = (uint64_t)1 << 50;
}

static void before_call(const struct hook *hook, const struct call_data *call) {
    if (hook->operation == FREE || hook->operation == UNMAP) {
        writer_prepare();
        *call->correlation = now_ns();
    }
    if (unlikely(settings.fail != FAIL_NEVER) && hook->operation < FREE) fail_perhaps(hook, call->params);
}

/* ---- after a call ---- */

static uint64_t stored_at(uint64_t slot) {
    uint64_t value = 0;
    if (slot) memcpy(&value, (const void *)(uintptr_t)slot, sizeof value);
    return value;
}

/* A node's parameters: CUDA_MEM_ALLOC_NODE_PARAMS has its size and address in the last two of 15 slots. */
static void alloc_node(struct event *event, const uint8_t *node) {
    memcpy(&event->nbytes, node + 104, 8);
    memcpy(&event->address, node + 112, 8);
}

/* What a call allocated; false where it was nothing. */
static bool allocated(const struct hook *hook, const uint64_t *params, struct event *event) {
    event->kind = hook->what;
    event->device = OF_CONTEXT;
    event->stream = hook->stream == NO_STREAM ? 0 : params[hook->stream];
    event->address = hook->operation == REGISTER ? params[0] : 0;
    event->nbytes = 0;
    switch (hook->operation) {
    case ALLOC:
    case REGISTER: event->nbytes = params[1]; break;
    case ALLOC_PITCH:
        if (__builtin_mul_overflow(stored_at(params[1]), params[3], &event->nbytes)) event->nbytes = 0;
        break;
    case ALLOC_ARRAY:
    case ALLOC_ARRAY3D:
    case ALLOC_MIPMAP: event->nbytes = array_size(hook->operation, params); break;
    case CREATE: {
        event->nbytes = params[1];
        int location[2] = {0, -1}; /* CUmemAllocationProp: type and number of the location */
        if (params[2]) memcpy(location, (const uint8_t *)(uintptr_t)params[2] + 8, sizeof location);
        if (location[0] == 1) event->device = location[1];
        if (location[0] > 1) event->kind = KIND_PHYSICAL_HOST;
        break;
    }
    case IMPORT_EXTERNAL:
        if (params[1]) memcpy(&event->nbytes, (const uint8_t *)(uintptr_t)params[1] + 24, 8);
        break;
    case CREATE_MULTICAST:
        if (params[1]) memcpy(&event->nbytes, (const uint8_t *)(uintptr_t)params[1] + 8, 8);
        break;
    case ADD_ALLOC_NODE:
        if (!params[4]) return false;
        alloc_node(event, (const uint8_t *)(uintptr_t)params[4]);
        return true;
    case ADD_NODE:
    case ADD_NODE_V2: {
        const uint8_t *node = (const uint8_t *)(uintptr_t)params[hook->operation == ADD_NODE ? 4 : 5];
        int type = 0;
        if (node) memcpy(&type, node, sizeof type);
        if (type != 10) return false; /* CU_GRAPH_NODE_TYPE_MEM_ALLOC */
        alloc_node(event, node + 16);
        return true;
    }
    default: break; /* OPEN, IMPORT: only an address or a handle */
    }
    return true;
}

static void after_call(const struct hook *hook, const struct call_data *call) {
    const uint64_t *params = call->params;
    int result = call->result ? *call->result : 0;
    struct event event;
    if (hook->operation < FREE) {
        if (!allocated(hook, params, &event)) return;
        if (unlikely(result)) {
            if (unlikely(wanted_nbytes)) event.nbytes = wanted_nbytes;
            wanted_nbytes = 0;
            write_failed(call->context, &event, result);
            return;
        }
        if (hook->operation < ADD_ALLOC_NODE && hook->operation != REGISTER) event.address = stored_at(params[0]);
        if (hook->operation == OPEN) event.nbytes = range_nbytes(event.address);
        if (event.address) write_alloc(call->context, &event);
        return;
    }
    if (result) return;
    switch (hook->operation) {
    case FREE:
        if (params[0])
            write_free(call->context, hook->what, *call->correlation, params[0],
                       hook->stream == NO_STREAM ? 0 : params[hook->stream]);
        break;
    case MAP: write_mapping(call->context, call, true, params); break;
    case UNMAP: write_mapping(call->context, call, false, params); break;
    case RETAIN: write_retain(stored_at(params[0])); break;
    case TRIM: write_trim(call->context, params[0], params[1]); break;
    case TRIM_GRAPHS: write_trim(call->context, 0, 0); break;
    default: break;
    }
}

static void on_resource(uint32_t id, const struct resource_data *data) {
    if (!data) return;
    struct event event = {
        .address = (uint64_t)(uintptr_t)data->context, .kind = KIND_CONTEXT, .device = UNKNOWN_DEVICE};
    switch (id) {
    case CONTEXT_CREATED:
        context_changed(data->context);
        stacks_find_python();
        write_alloc(data->context, &event);
        break;
    case CONTEXT_ENDS:
        write_free(data->context, SPACE_CONTEXTS, now_ns(), event.address, 0);
        context_changed(data->context);
        break;
    case MODULE_LOADED:
    case MODULE_UNLOADS: {
        const struct module_data *module = data->descriptor;
        if (!module) break;
        event.address = (uint64_t)module->module + 1; /* numbers begin at 0, addresses of memory do not */
        event.nbytes = module->nbytes;
        event.kind = KIND_MODULE;
        event.device = OF_CONTEXT;
        if (id == MODULE_LOADED)
            write_alloc(data->context, &event);
        else
            write_free(data->context, SPACE_MODULES, now_ns(), event.address, 0);
        break;
    }
    default: break;
    }
}

void on_callback(void *unused, int domain, uint32_t id, const void *data) {
    (void)unused;
    if (unlikely(atomic_load_explicit(&recording, memory_order_relaxed) != RECORDING)) return;
    if (domain == DOMAIN_RESOURCE) {
        on_resource(id, data);
        return;
    }
    if (unlikely(domain != DOMAIN_DRIVER || id >= MAX_IDS || !rows[id])) return;
    const struct hook *hook = &hooks[rows[id] - 1];
    const struct call_data *call = data;
    if (call->site == 0)
        before_call(hook, call);
    else
        after_call(hook, call);
}

/* ---- blocks inside a framework's memory: recorded by vram's hooks in the framework ---- */

EXPORTED int vram_tracer_block_alloc(int kind, int device, uint64_t address, uint64_t nbytes, uint64_t stream);
EXPORTED int vram_tracer_block_free(int kind, int device, uint64_t address);

enum { FIRST_BLOCK_KIND = 16, LAST_BLOCK_KIND = 19, FIRST_BLOCK_SPACE = 8 };

int vram_tracer_block_alloc(int kind, int device, uint64_t address, uint64_t nbytes, uint64_t stream) {
    if (kind < FIRST_BLOCK_KIND || kind > LAST_BLOCK_KIND || atomic_load(&recording) != RECORDING) return 1;
    struct event event = {address, nbytes, stream, (uint8_t)kind, device < 0 ? UNKNOWN_DEVICE : device};
    write_alloc(NULL, &event);
    return 0;
}

int vram_tracer_block_free(int kind, int device, uint64_t address) {
    (void)device;
    if (kind < FIRST_BLOCK_KIND || kind > LAST_BLOCK_KIND || atomic_load(&recording) != RECORDING) return 1;
    write_free(NULL, (uint8_t)(FIRST_BLOCK_SPACE + kind - FIRST_BLOCK_KIND), now_ns(), address, 0);
    return 0;
}
