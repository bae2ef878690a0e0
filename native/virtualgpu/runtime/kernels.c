/* Kernels and __device__ variables: what the compiler's start-up code registers, and launches, which are checked
 * and counted but compute nothing. A variable is memory in the context that first uses it; the value that it was
 * declared with is in the device code, which is not read: it is zero. */
#include "runtime.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

struct symbol {
    const void *key; /* the address that the program knows it by */
    const char *name;
    size_t nbytes; /* of a variable; 0 for a kernel */
    int dynamic_shared;
    void *context; /* where the variable's memory is */
    deviceptr address;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct symbol **table; /* open addressing; a program may register a hundred thousand */
static size_t capacity, used;

static size_t slot_of(const void *key) {
    size_t slot = ((uintptr_t)key >> 3) * 0x9e3779b97f4a7c15ull & (capacity - 1);
    while (table[slot] && table[slot]->key != key) slot = (slot + 1) & (capacity - 1);
    return slot;
}

static bool grow(void) {
    size_t before = capacity;
    struct symbol **old = table, **larger = calloc(before ? 2 * before : 1024, sizeof *larger);
    if (!larger) return false;
    table = larger;
    capacity = before ? 2 * before : 1024;
    for (size_t i = 0; i < before; i++)
        if (old[i]) table[slot_of(old[i]->key)] = old[i];
    free(old);
    return true;
}

static void lock_table(void) {
    pthread_mutex_lock(&lock);
}

static void unlock_table(void) {
    pthread_mutex_unlock(&lock);
}

/* A child that loads a library of kernels must not find the lock held by a thread that it does not have. */
static void watch_forks(void) {
    pthread_atfork(lock_table, unlock_table, unlock_table);
}

static void add(const void *key, const char *name, size_t nbytes) {
    enum { DEFAULT_SHARED = 48 << 10 };
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    struct symbol *symbol = calloc(1, sizeof *symbol);
    pthread_once(&once, watch_forks);
    pthread_mutex_lock(&lock);
    bool room = 2 * used < capacity || grow();
    if (symbol && room) {
        *symbol = (struct symbol){.key = key, .name = name, .nbytes = nbytes, .dynamic_shared = DEFAULT_SHARED};
        size_t slot = slot_of(key);
        if (!table[slot]) used++;
        table[slot] = symbol; /* the last one registered counts; an earlier one may still be in use */
    }
    pthread_mutex_unlock(&lock);
    if (!room) free(symbol);
}

static struct symbol *find(const void *key) {
    pthread_mutex_lock(&lock);
    struct symbol *symbol = capacity ? table[slot_of(key)] : NULL;
    pthread_mutex_unlock(&lock);
    return symbol;
}

/* ---- registration: before main, without a driver ---- */

API void **__cudaRegisterFatBinary(void *binary) {
    void **handle = calloc(1, sizeof *handle);
    if (handle) *handle = binary;
    return handle;
}

API void __cudaRegisterFatBinaryEnd(void **handle) {
    (void)handle;
}

/* What it registered stays: unloading a library of kernels is rare, and calling one afterwards is a mistake. */
API void __cudaUnregisterFatBinary(void **handle) {
    free(handle);
}

API char __cudaInitModule(void **handle) {
    (void)handle;
    return 1;
}

API void __cudaRegisterFunction(void **handle, const char *key, char *device_function, const char *name,
                                int thread_limit, void *thread, void *block, void *block_size, void *grid_size,
                                int *warp_size) {
    (void)handle, (void)device_function, (void)thread_limit, (void)thread, (void)block, (void)block_size;
    (void)grid_size, (void)warp_size;
    add(key, name, 0);
}

API void __cudaRegisterVar(void **handle, char *key, char *device_address, const char *name, int external,
                           size_t nbytes, int constant, int global) {
    (void)handle, (void)device_address, (void)external, (void)constant, (void)global;
    add(key, name, nbytes);
}

API void __cudaRegisterHostVar(void **handle, const char *name, char *key, size_t nbytes) {
    (void)handle;
    add(key, name, nbytes);
}

/* The program reads the variable through *place*, which needs memory before it is first read. */
API void __cudaRegisterManagedVar(void **handle, void **place, char *device_address, const char *name, int external,
                                  size_t nbytes, int constant, int global) {
    (void)handle, (void)device_address, (void)external, (void)constant, (void)global;
    *place = calloc(1, nbytes);
    add(place, name, nbytes);
}

API void __cudaRegisterUnifiedTable(void **handle, void *unified) {
    (void)handle, (void)unified;
}

/* ---- variables ---- */

/* Variables that have memory: few, whatever was registered. */
static struct symbol **placed;
static size_t placed_count;

static bool note_placed(struct symbol *symbol) {
    for (size_t i = 0; i < placed_count; i++)
        if (placed[i] == symbol) return true;
    struct symbol **larger = realloc(placed, (placed_count + 1) * sizeof *larger);
    if (!larger) return false;
    placed = larger;
    placed[placed_count++] = symbol;
    return true;
}

static error give_memory(struct symbol *symbol) {
    void *context = NULL;
    error code = cu.cuCtxGetCurrent(&context);
    size_t whole = symbol->nbytes;
    /* A reset takes the memory, and the same context may come back: then the address is no longer known. */
    int type = 0, attribute = 2;
    void *answer = &type;
    if (!code && symbol->context == context) code = cu.cuPointerGetAttributes(1, &attribute, &answer, symbol->address);
    if (code || type) return code;
    if (!note_placed(symbol)) return OUT_OF_MEMORY;
    code = cu.cuMemAlloc_v2(&symbol->address, whole);
    if (!code) code = cu.cuMemsetD8Async(symbol->address, 0, whole, NULL);
    if (!code) symbol->context = context;
    return code;
}

error symbol_find(const void *key, deviceptr *address, size_t *nbytes) {
    struct symbol *symbol = find(key);
    if (!symbol || !symbol->nbytes) return INVALID_SYMBOL;
    pthread_mutex_lock(&lock);
    error code = give_memory(symbol);
    *address = symbol->address;
    *nbytes = symbol->nbytes;
    pthread_mutex_unlock(&lock);
    return code;
}

bool symbol_is_at(deviceptr address) {
    bool found = false;
    pthread_mutex_lock(&lock);
    for (size_t i = 0; i < placed_count && !found; i++) found = placed[i]->address == address;
    pthread_mutex_unlock(&lock);
    return found;
}

API error cudaGetSymbolAddress(void **address, const void *key) {
    deviceptr found;
    size_t nbytes;
    NEED_DRIVER();
    NEED_CONTEXT();
    RETURN_IF(symbol_find(key, &found, &nbytes));
    if (!address) return fail(INVALID_VALUE);
    *address = (void *)found;
    return OK;
}

API error cudaGetSymbolSize(size_t *nbytes, const void *key) {
    NEED_DRIVER();
    if (!nbytes) return fail(INVALID_VALUE);
    struct symbol *symbol = find(key);
    if (!symbol || !symbol->nbytes) return fail(INVALID_SYMBOL);
    *nbytes = symbol->nbytes;
    return OK;
}

/* ---- launches ---- */

static error find_kernel(const void *key, struct symbol **kernel) {
    if (!key) return INVALID_FUNCTION;
    *kernel = find(key);
    /* Measured: an address that is no kernel is taken for the handle of one. */
    return *kernel && !(*kernel)->nbytes ? OK : INVALID_HANDLE;
}

static bool fits(struct extent size, unsigned x, unsigned y, unsigned z) {
    return size.x && size.y && size.z && size.x <= x && size.y <= y && size.z <= z;
}

static error launch(const void *key, struct extent grid, struct extent block, size_t shared, void *stream) {
    enum { THREADS = 1024, BLOCK_Z = 64, GRID_X = 0x7fffffff, GRID_YZ = 65535 };
    struct symbol *kernel;
    NEED_DRIVER();
    RETURN_IF(find_kernel(key, &kernel));
    NEED_CONTEXT();
    if (!fits(grid, GRID_X, GRID_YZ, GRID_YZ) || !fits(block, THREADS, THREADS, BLOCK_Z)) return fail(INVALID_VALUE);
    if ((uint64_t)block.x * block.y * block.z > THREADS) return fail(INVALID_VALUE);
    if (shared > (size_t)kernel->dynamic_shared) return fail(INVALID_VALUE);
    return fail(cu.vramCountLaunch(stream_meant(stream)));
}

API error cudaLaunchKernel(const void *key, struct extent grid, struct extent block, void **arguments, size_t shared,
                           void *stream) {
    (void)arguments;
    return launch(key, grid, block, shared, stream);
}
PER_THREAD(cudaLaunchKernel, _ptsz,
           (const void *key, struct extent grid, struct extent block, void **arguments, size_t shared, void *stream),
           (key, grid, block, arguments, shared, stream))

API error cudaLaunchCooperativeKernel(const void *key, struct extent grid, struct extent block, void **arguments,
                                      size_t shared, void *stream) {
    (void)arguments;
    return launch(key, grid, block, shared, stream);
}
PER_THREAD(cudaLaunchCooperativeKernel, _ptsz,
           (const void *key, struct extent grid, struct extent block, void **arguments, size_t shared, void *stream),
           (key, grid, block, arguments, shared, stream))

struct launch_config {
    struct extent grid, block;
    size_t shared;
    void *stream, *attributes;
    unsigned attribute_count;
};

API error cudaLaunchKernelExC(const struct launch_config *config, const void *key, void **arguments) {
    (void)arguments;
    if (!config) return fail(INVALID_VALUE);
    return launch(key, config->grid, config->block, config->shared, config->stream);
}
PER_THREAD(cudaLaunchKernelExC, _ptsz, (const struct launch_config *config, const void *key, void **arguments),
           (config, key, arguments))

/* ---- what nvcc makes of kernel<<<grid, block, shared, stream>>>(…) ---- */

static _Thread_local struct {
    struct extent grid, block;
    size_t shared;
    void *stream;
} pushed;

API unsigned __cudaPushCallConfiguration(struct extent grid, struct extent block, size_t shared, void *stream) {
    pushed.grid = grid;
    pushed.block = block;
    pushed.shared = shared;
    pushed.stream = stream;
    return 0;
}

API error __cudaPopCallConfiguration(struct extent *grid, struct extent *block, size_t *shared, void **stream) {
    *grid = pushed.grid;
    *block = pushed.block;
    *shared = pushed.shared;
    *stream = pushed.stream;
    return OK;
}

/* A kernel's handle is the address that it was registered by. */
API error __cudaGetKernel(const void **kernel, const void *key) {
    struct symbol *found;
    if (!kernel) return fail(INVALID_VALUE);
    RETURN_IF(find_kernel(key, &found));
    *kernel = key;
    return OK;
}

API error cudaGetKernel(const void **kernel, const void *key) {
    return __cudaGetKernel(kernel, key);
}

API error __cudaLaunchKernel(const void *kernel, struct extent grid, struct extent block, void **arguments,
                             size_t shared, void *stream) {
    return cudaLaunchKernel(kernel, grid, block, arguments, shared, stream);
}
PER_THREAD(__cudaLaunchKernel, _ptsz,
           (const void *kernel, struct extent grid, struct extent block, void **arguments, size_t shared, void *stream),
           (kernel, grid, block, arguments, shared, stream))

/* ---- attributes: registers and local memory are the device code's secret, and 0 ---- */

struct function_attributes {
    size_t shared, constant, local;
    int max_threads, registers, ptx_version, binary_version, cache_mode, dynamic_shared, carveout;
    int more[22];
};
_Static_assert(sizeof(struct function_attributes) == 144, "as the header has it");

enum { MAX_SHARED = 232448, DYNAMIC_SHARED = 8, LAST_ATTRIBUTE = 14 };

API error cudaFuncGetAttributes(struct function_attributes *attributes, const void *key) {
    struct symbol *kernel;
    NEED_DRIVER();
    if (!attributes) return fail(INVALID_VALUE);
    RETURN_IF(find_kernel(key, &kernel));
    NEED_CONTEXT();
    *attributes = (struct function_attributes){
        .max_threads = 1024,
        .ptx_version = 90,
        .binary_version = 90,
        .dynamic_shared = kernel->dynamic_shared,
        .carveout = -1,
    };
    return OK;
}

API error cudaFuncSetAttribute(const void *key, int attribute, int value) {
    struct symbol *kernel;
    NEED_DRIVER();
    RETURN_IF(find_kernel(key, &kernel));
    NEED_CONTEXT();
    if (attribute < DYNAMIC_SHARED || attribute > LAST_ATTRIBUTE) return fail(INVALID_VALUE);
    if (attribute != DYNAMIC_SHARED) return OK;
    if (value < 0 || value > MAX_SHARED) return fail(INVALID_VALUE);
    kernel->dynamic_shared = value;
    return OK;
}

API error cudaFuncSetCacheConfig(const void *key, int config) {
    struct symbol *kernel;
    (void)config;
    NEED_DRIVER();
    error code = find_kernel(key, &kernel);
    if (RUNTIME_MAJOR == 12 && code == INVALID_HANDLE) code = INVALID_FUNCTION;
    return fail(code);
}

API error cudaFuncSetSharedMemConfig(const void *key, int config) {
    return cudaFuncSetCacheConfig(key, config);
}

API error cudaFuncGetName(const char **name, const void *key) {
    struct symbol *kernel;
    NEED_DRIVER();
    if (!name) return fail(INVALID_VALUE);
    RETURN_IF(find_kernel(key, &kernel));
    *name = kernel->name;
    return OK;
}

/* As many as threads and shared memory of an H200's multiprocessor allow; registers are not known. */
API error cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int *blocks, const void *key, int threads,
                                                                 size_t shared, unsigned flags) {
    enum { WARP = 32, THREADS = 2048, BLOCKS = 32, SHARED = 233472, SHARED_PER_BLOCK = 1024 };
    struct symbol *kernel;
    (void)flags;
    NEED_DRIVER();
    if (!blocks) return fail(INVALID_VALUE);
    RETURN_IF(find_kernel(key, &kernel));
    NEED_CONTEXT();
    if (threads <= 0) return fail(INVALID_VALUE);
    size_t by_threads = THREADS / (((size_t)threads + WARP - 1) / WARP * WARP);
    size_t by_shared = shared > SHARED ? 0 : SHARED / (shared + SHARED_PER_BLOCK);
    size_t most = by_threads < by_shared ? by_threads : by_shared;
    *blocks = (int)(most < BLOCKS ? most : BLOCKS);
    return OK;
}

API error cudaOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, const void *key, int threads, size_t shared) {
    return cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(blocks, key, threads, shared, 0);
}
