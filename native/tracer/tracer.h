/* The recorder: what its files share. The map:
 *
 *   control.c      the exported functions; settings; start, stop, fork, exit
 *   cupti.c        finds libcupti, subscribes, tells it which calls to report
 *   subscribers.c  passes the subscription on to a profiler in the program (PyTorch's)
 *   hooks.c        a row for every memory call of the driver: what is recorded of it
 *   contexts.c     which GPU a context is on; names the GPUs
 *   stacks.c       call stacks, each written once; python_stack.c and native_stack.c walk them
 *   writer.c       a thread's place in the file: records, one after the other
 *   section.c      the file: header, chunks, what happens when the disk is full
 *
 * ../FORMAT.md describes what is written. Nothing here may end or change the traced program: what cannot be
 * recorded is not recorded, and a message says so.
 */
#pragma once

#include <limits.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <time.h>

#define TRACER_VERSION "1.0"

/* Only these functions are visible to others. */
#define EXPORTED __attribute__((visibility("default")))

#define likely(condition) __builtin_expect(!!(condition), 1)
#define unlikely(condition) __builtin_expect(!!(condition), 0)

/* ---- settings: from the environment, or from who attached ---- */

enum stack_mode { STACKS_NONE = 0, STACKS_PYTHON = 1, STACKS_NATIVE = 2 };
enum fail_mode { FAIL_NEVER, FAIL_AT_COUNT, FAIL_AT_SIZE };

struct settings {
    char output[PATH_MAX];
    char cupti[4 * PATH_MAX];
    char payload[PATH_MAX];
    char messages[PATH_MAX];
    uint8_t run[16];
    enum stack_mode stacks;
    enum fail_mode fail;
    uint64_t fail_value;
    bool attached;
};
extern struct settings settings;

/* ---- control.c ---- */

enum { NOT_RECORDING, RECORDING };
extern _Atomic int recording;

/* The process was forked: nothing that the parent had mapped may be used. Called by whoever notices. */
void tracer_forked(void);
/* Reads zero in a forked child, whichever way it was made. */
extern volatile uint32_t *not_forked;

/* One line for `vram run` (see VRAM_TRACE_MESSAGES); printf's format. */
void message(const char *code, const char *format, ...) __attribute__((format(printf, 2, 3)));

static inline uint64_t now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

/* ---- cupti.c ---- */

/* Why recording cannot begin; the numbers that vram_tracer_start() returns. */
enum start_error {
    START_OK = 0,
    START_ALREADY = 1,
    START_OUTPUT = 2,
    START_NO_CUPTI = 3,
    START_SUBSCRIBER = 4,
    START_CUPTI_ERROR = 5,
    START_SETTINGS = 6,
};

/* A sentence into *text* where it fails. */
enum start_error cupti_start(char *text, size_t size);
void cupti_stop(void);
const char *cupti_path(void);
uint32_t cupti_version(void);
/* libcuda's function of this name, or NULL. */
void *driver_function(const char *name);

/* ---- hooks.c ---- */

/* The callback of all subscriptions: CUPTI's signature. */
void on_callback(void *unused, int domain, uint32_t id, const void *data);
/* Calls *each* for every (domain, id) that the recorder needs. */
void for_each_hook(void (*each)(int domain, uint32_t id));
bool is_hooked(int domain, uint32_t id);

enum { DOMAIN_DRIVER = 1, DOMAIN_RESOURCE = 3 };

/* ---- contexts.c ---- */

/* The device of the calling thread's current context, which is *context*; -1 where unknown. */
int context_device(void *context);
/* A context was made or is about to end: what is known about this handle no longer holds. */
void context_changed(void *context);
/* Changes whenever a handle may mean another context. */
extern _Atomic uint32_t context_epoch;
/* Writes a DEVICE record, once for each device of the section. */
void device_seen(int device);
void devices_forget(void);
