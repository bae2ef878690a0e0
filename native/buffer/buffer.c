/* What vram.Buffer does in C: allocate and free in one call, the deleters of DLPack, and a count of
 * loaded libraries. Nothing of Python or of the driver is linked: their functions come in tables, so
 * that one library serves every version.
 */
#define _GNU_SOURCE
#include <link.h>
#include <stddef.h>
#include <stdint.h>

#define API __attribute__((visibility("default")))

/* ---- allocate and free ----
 *
 * The driver gives every allocation a number and never uses it again. Read before a free, it shows
 * whether the memory at an address is still the allocation that was made: after a reset of its context,
 * or a free by somebody else, another allocation may have the same address.
 */

enum { BUFFER_ID = 7 }; /* CU_POINTER_ATTRIBUTE_BUFFER_ID */
enum { LOST = -1 };     /* the driver has no code below zero */

struct driver {
    int (*allocate)(uint64_t *pointer, size_t nbytes);
    int (*get_attribute)(void *answer, int attribute, uint64_t pointer);
    int (*free)(uint64_t pointer);
};

struct allocation {
    uint64_t pointer;
    uint64_t id; /* 0 where the driver does not report one */
};

static struct driver driver;

API void vram_allocation_prepare(const struct driver *table) {
    driver = *table;
}

static uint64_t id_of(uint64_t pointer) {
    uint64_t id = 0;
    return driver.get_attribute(&id, BUFFER_ID, pointer) ? 0 : id;
}

API int vram_allocation_allocate(size_t nbytes, struct allocation *allocation) {
    int code = driver.allocate(&allocation->pointer, nbytes);
    if (!code) allocation->id = id_of(allocation->pointer);
    return code;
}

API int vram_allocation_free(const struct allocation *allocation) {
    return id_of(allocation->pointer) == allocation->id ? driver.free(allocation->pointer) : LOST;
}

/* ---- DLPack ----
 *
 * A consumer may call a deleter without the GIL, while an exception propagates in the calling thread,
 * or after Python has ended. A callback written in Python would need the GIL, lose the exception and
 * crash after the end; these functions do none of that.
 */

struct python {
    int (*is_initialized)(void);
    int (*take_gil)(void);
    void (*release_gil)(int);
    void (*decref)(void *);
    void (*fetch_exception)(void **, void **, void **);
    void (*restore_exception)(void *, void *, void *);
    int (*is_capsule)(void *, const char *);
    void *(*in_capsule)(void *, const char *);
};

static struct python python;

API void vram_dlpack_prepare(const struct python *table) {
    python = *table;
}

/* The layouts that DLPack fixes, up to the fields that are needed here. */
struct tensor {
    void *data;
    int32_t device_type, device_id;
    int32_t dimensions;
    uint8_t code, bits;
    uint16_t lanes;
    int64_t *shape, *strides;
    uint64_t byte_offset;
};

struct managed {
    struct tensor tensor;
    void *owner;
    void (*deleter)(void *);
};

struct managed_versioned {
    uint32_t major, minor;
    void *owner;
    void (*deleter)(void *);
    uint64_t flags;
    struct tensor tensor;
};

/* Releasing the owner frees the structure that *place* is in: it is not read again. */
static void release_owner(void **place) {
    void *owner = *place, *type, *value, *trace;
    *place = NULL;
    if (!owner || !python.is_initialized()) return;
    int state = python.take_gil();
    python.fetch_exception(&type, &value, &trace);
    python.decref(owner);
    python.restore_exception(type, value, trace);
    python.release_gil(state);
}

API void vram_dlpack_delete(void *managed) {
    release_owner(&((struct managed *)managed)->owner);
}

API void vram_dlpack_delete_versioned(void *managed) {
    release_owner(&((struct managed_versioned *)managed)->owner);
}

/* A consumer renames the capsule that it takes over; one that has its first name was never used. */
API void vram_dlpack_unused(void *capsule) {
    if (!python.is_capsule(capsule, "dltensor")) return;
    vram_dlpack_delete(python.in_capsule(capsule, "dltensor"));
}

API void vram_dlpack_unused_versioned(void *capsule) {
    if (!python.is_capsule(capsule, "dltensor_versioned")) return;
    vram_dlpack_delete_versioned(python.in_capsule(capsule, "dltensor_versioned"));
}

/* ---- how many libraries this process has ever loaded, by the loader's own count ----
 *
 * In C, because the loader holds its lock while it calls back: a Python callback there would wait for
 * the GIL, and the thread that has the GIL may be waiting for the loader's lock.
 */

static int read_count(struct dl_phdr_info *library, size_t size, void *count) {
    (void)size;
    *(unsigned long long *)count = library->dlpi_adds;
    return 1; /* every library reports the same count: stop at the first */
}

API unsigned long long vram_library_loads(void) {
    unsigned long long count = 0;
    dl_iterate_phdr(read_count, &count);
    return count;
}
