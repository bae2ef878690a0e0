/* The driver API's own words: error numbers, flags and structures as programs pass them.
 *
 * Layouts and values are the public binary interface of libcuda.so.1; only what this
 * library reads or answers is declared.
 */
#ifndef VRAM_VIRTUALGPU_API_H
#define VRAM_VIRTUALGPU_API_H

#include <stddef.h>
#include <stdint.h>

#define API __attribute__((visibility("default")))

typedef uint64_t deviceptr;

typedef enum result {
    OK = 0,
    INVALID_VALUE = 1,
    OUT_OF_MEMORY = 2,
    NOT_INITIALIZED = 3,
    DEVICE_UNAVAILABLE = 46,
    NO_DEVICE = 100,
    INVALID_DEVICE = 101,
    INVALID_CONTEXT = 201,
    MAP_FAILED_RESULT = 205,
    ALREADY_MAPPED = 208,
    UNSUPPORTED_LIMIT = 215,
    PEER_ACCESS_UNSUPPORTED = 217,
    OPERATING_SYSTEM = 304,
    INVALID_HANDLE = 400,
    ILLEGAL_STATE = 401,
    NOT_FOUND = 500,
    NOT_READY = 600,
    ILLEGAL_ADDRESS = 700,
    PEER_ACCESS_ALREADY_ENABLED = 704,
    PEER_ACCESS_NOT_ENABLED = 705,
    PRIMARY_CONTEXT_ACTIVE = 708,
    CONTEXT_IS_DESTROYED = 709,
    ALREADY_REGISTERED = 712,
    NOT_REGISTERED = 713,
    NOT_PERMITTED = 800,
    NOT_SUPPORTED = 801,
    UNKNOWN = 999,
} result;

enum { STREAM_NON_BLOCKING = 1 };
enum { EVENT_BLOCKING_SYNC = 1, EVENT_DISABLE_TIMING = 2, EVENT_INTERPROCESS = 4 };
enum { HOST_PORTABLE = 1, HOST_DEVICEMAP = 2, HOST_WRITECOMBINED = 4 };
enum { ATTACH_GLOBAL = 1, ATTACH_HOST = 2, ATTACH_SINGLE = 4 };
enum memory_type { MEMORY_HOST = 1, MEMORY_DEVICE = 2, MEMORY_ARRAY = 3, MEMORY_UNIFIED = 4 };
enum location_type { LOCATION_DEVICE = 1, LOCATION_HOST = 2, LOCATION_HOST_NUMA = 3, LOCATION_HOST_NUMA_CURRENT = 4 };
enum allocation_type { ALLOCATION_PINNED = 1, ALLOCATION_MANAGED = 2 };
enum { HANDLE_NONE = 0, HANDLE_POSIX_FD = 1 };
enum { ACCESS_NONE = 0, ACCESS_READ = 1, ACCESS_READWRITE = 3 };
enum { RANGE_HANDLE_DMABUF = 1 };

struct location {
    int type, id;
};

struct access_desc {
    struct location location;
    int flags;
};

struct allocation_prop {
    int type, handle_types;
    struct location location;
    void *win32;
    unsigned char compression, rdma;
    unsigned short usage;
    unsigned char reserved[4];
};

struct pool_props {
    int type, handle_types;
    struct location location;
    void *win32;
    size_t max_nbytes;
    unsigned short usage;
    unsigned char reserved[54];
};

struct opaque64 {
    unsigned char bytes[64];
};

struct uuid {
    unsigned char bytes[16];
};

/* One side of a 2D copy; the public structure has two of them. */
struct side2d {
    size_t x, y;
    int type;
    void *host;
    deviceptr device;
    void *array;
    size_t pitch;
};

struct copy2d {
    struct side2d source, target;
    size_t width, height;
};

struct side3d {
    size_t x, y, z, lod;
    int type;
    void *host;
    deviceptr device;
    void *array;
    void *context; /* reserved in the plain form, the peer form's context */
    size_t pitch, height;
};

struct copy3d {
    struct side3d source, target;
    size_t width, height, depth;
};

struct lock_args {
    unsigned timeout_ms, reserved;
    uint64_t reserved1[7];
};

struct gpu_pair {
    struct uuid old_uuid, new_uuid;
};

struct restore_args {
    struct gpu_pair *pairs;
    unsigned pair_count;
    char reserved[44];
    uint64_t reserved1;
};

#endif
