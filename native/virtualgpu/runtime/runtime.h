/* The CUDA runtime over the virtual driver, inside: what each file offers the others.
 *
 * The public functions do what NVIDIA's runtime was measured to do (tests/virtualgpu/runtime): they begin with
 * the driver, then check their arguments, then need a context. Whatever they return but success is remembered
 * for cudaGetLastError.
 */
#ifndef VRAM_VIRTUALGPU_RUNTIME_H
#define VRAM_VIRTUALGPU_RUNTIME_H

#include "../driver/api.h"
#include "driver_calls.h"

#include <stdbool.h>

#ifndef RUNTIME_MAJOR
#define RUNTIME_MAJOR 13
#endif
#define RUNTIME_VERSION (RUNTIME_MAJOR == 12 ? 12090 : 13000)

/* A number of cudaError_t. Those of the driver are the same numbers; these are the runtime's own. */
typedef int error;
enum {
    INVALID_PITCH = 12,
    INVALID_SYMBOL = 13,
    INVALID_DIRECTION = 21,
    INSUFFICIENT_DRIVER = 35,
    INVALID_FUNCTION = 98,
};

/* ---- load.c ---- */

struct driver {
#define POINTER(name, ...) result (*name)(__VA_ARGS__);
    DRIVER_CALLS(POINTER)
#undef POINTER
};
extern struct driver cu;

/* Loads and initialises the driver, once; what it returned then is returned to every call after it. */
error driver_ready(void);
extern int device_count;    /* as it was then */
error driver_failure(void); /* of an earlier driver_ready; success before it */

/* ---- errors.c ---- */

/* Remembers an error of this thread, and returns it. */
error fail(error code);
#define RETURN_IF(code) \
    do { \
        error failed_with = (code); \
        if (failed_with) return fail(failed_with); \
    } while (0)
#define NEED_DRIVER() RETURN_IF(driver_ready())
#define NEED_CONTEXT() RETURN_IF(context_ready())

/* ---- context.c ---- */

/* Whatever context the thread has current; where it has none, the primary one of its device, made if need be. */
error context_ready(void);
error device_chosen(int *device); /* by the thread: that of its current context, else what it set, else 0 */
error device_check(int device);   /* 101 where there is no such device */
error primary_of(int device, void **context);

/* ---- stream.c ---- */

/* The default stream of a call compiled with --default-stream per-thread is another one. */
extern _Thread_local bool per_thread_streams;
void *stream_meant(void *stream);

/* Defines the form of a function for such programs: `_ptsz` takes a stream, `_ptds` uses the default one. */
#define PER_THREAD(name, suffix, parameters, arguments) \
    API error name##suffix parameters; \
    API error name##suffix parameters { \
        per_thread_streams = true; \
        error code = name arguments; \
        per_thread_streams = false; \
        return code; \
    }

/* ---- kernels.c ---- */

/* The device memory of a __device__ variable in the current context. */
bool symbol_is_at(deviceptr address);
error symbol_find(const void *symbol, deviceptr *address, size_t *nbytes);

/* ---- structures that programs pass ---- */

struct extent {
    unsigned x, y, z;
};

struct box {
    size_t width, height, depth;
};

struct position {
    size_t x, y, z;
};

struct pitched {
    void *address;
    size_t pitch, width, height;
};

enum copy_kind { HOST_TO_HOST, HOST_TO_DEVICE, DEVICE_TO_HOST, DEVICE_TO_DEVICE, COPY_DEFAULT };

#endif
