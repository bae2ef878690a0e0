/* The C functions that a DLPack capsule needs.
 *
 * A consumer may call a deleter without the GIL, while an exception is on its way through the
 * calling thread, or after Python has ended. A callback written in Python would need the first,
 * swallow the second and crash on the third; these do none of it.
 *
 * Nothing of Python is linked: its functions come in a table, so one library serves every version.
 */
#include <stddef.h>
#include <stdint.h>

#define API __attribute__((visibility("default")))

struct python {
    int (*is_initialized)(void);
    int (*take_gil)(void);
    void (*give_gil)(int);
    void (*drop)(void *);
    void (*take_exception)(void **, void **, void **);
    void (*put_exception)(void *, void *, void *);
    int (*is_capsule)(void *, const char *);
    void *(*in_capsule)(void *, const char *);
};

static struct python python;

API void vram_lend_prepare(const struct python *table) {
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

/* Dropping the owner frees the very structure that named it: it is not looked at again. */
static void drop_owner(void **place) {
    void *owner = *place, *type, *value, *trace;
    *place = NULL;
    if (!owner || !python.is_initialized()) return;
    int state = python.take_gil();
    python.take_exception(&type, &value, &trace);
    python.drop(owner);
    python.put_exception(type, value, trace);
    python.give_gil(state);
}

API void vram_lend_return(void *managed) {
    drop_owner(&((struct managed *)managed)->owner);
}

API void vram_lend_return_versioned(void *managed) {
    drop_owner(&((struct managed_versioned *)managed)->owner);
}

/* A consumer renames the capsule that it takes over; one with its first name was never used. */
API void vram_lend_unused(void *capsule) {
    if (!python.is_capsule(capsule, "dltensor")) return;
    vram_lend_return(python.in_capsule(capsule, "dltensor"));
}

API void vram_lend_unused_versioned(void *capsule) {
    if (!python.is_capsule(capsule, "dltensor_versioned")) return;
    vram_lend_return_versioned(python.in_capsule(capsule, "dltensor_versioned"));
}
