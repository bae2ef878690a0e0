/* Reads trace files (../FORMAT.md): what Python calls, and the rows that it gets.
 *
 * A reader is given open files, finds their sections and chunks (vramreader_index), goes through all events in
 * the order of time (vramreader_run, vramreader_events) and answers with tables (vramreader_table). Nothing in
 * a file is trusted: what cannot be read is counted in the table of damage, and memory is limited.
 *
 *   memory.c    memory within the limit; numbers by key
 *   index.c     pages: sections and the chunks of their writers
 *   decode.c    records of one chunk
 *   stacks.c    places and stacks of all writers, joined by content
 *   merge.c     the writers' records in the order of time
 *   replay.c    what each event means: which memory lives, and until when
 *   live.c      the table of live memory
 *   totals.c    sums by GPU and by site, peaks, lifetimes, the timeline
 *   windows.c   what was live when a window of the trace began, its highest moment, what came of each site
 *   segments.c  which memory of the driver a framework's blocks lie in
 *   result.c    the tables at the end: what is left, what was live at the peaks, sites
 *   holes.c     holes between what is live
 *   api.c       the exported functions
 */
#pragma once

#include <stdint.h>

#define VRAMREADER_API __attribute__((visibility("default")))

struct vramreader;

enum vramreader_error {
    VRAMREADER_OK = 0,
    VRAMREADER_NO_MEMORY = 1,   /* the limit, or the machine's */
    VRAMREADER_READ_FAILED = 2, /* vramreader_errno() */
    VRAMREADER_BAD_CALL = 3,
};

/* *limit_nbytes*: how much memory the reader may take. *points*: of the timeline. *growing*: the files may
 * still be written to. NULL without memory. */
VRAMREADER_API struct vramreader *vramreader_new(uint64_t limit_nbytes, uint32_t points, uint32_t growing);
VRAMREADER_API void vramreader_free(struct vramreader *reader);
/* The descriptor stays the caller's, and open as long as the reader is used. */
VRAMREADER_API int vramreader_add_file(struct vramreader *reader, int descriptor);
/* Finds what the files have gained since the last call. */
VRAMREADER_API int vramreader_index(struct vramreader *reader);
/* When the latest chunk of the files begins, in ns since the start of the trace: about when it ends. */
VRAMREADER_API uint64_t vramreader_latest_chunk(const struct vramreader *reader);
/* The window of TABLE_WINDOWS, in ns since the start of the trace; before vramreader_run(). Without it: all. */
VRAMREADER_API void vramreader_window(struct vramreader *reader, uint64_t begin_ns, uint64_t end_ns);
/* Goes on through the records up to a time (CLOCK_MONOTONIC of this machine, ns; UINT64_MAX: all), but at most so
 * many: *more* says whether there are others. */
VRAMREADER_API int vramreader_run(struct vramreader *reader, uint64_t until_ns, uint64_t most, uint32_t *more);
VRAMREADER_API int vramreader_errno(const struct vramreader *reader);

enum vramreader_event_type {
    EVENT_ALLOC = 1,
    EVENT_FREE = 2,
    EVENT_FAILED = 3,
    EVENT_MAP = 4,
    EVENT_UNMAP = 5,
    EVENT_RETAIN = 6,
    EVENT_TRIM = 7,
};

/* Columns of *capacity* rows each. */
struct vramreader_columns {
    uint64_t *time_ns, *address, *nbytes;
    uint64_t *allocation; /* number of the allocation that this is about, from 1; 0 unknown */
    uint64_t *context, *stream;
    uint32_t *process, *thread;
    int32_t *gpu; /* -1 unknown */
    uint32_t *stack;
    uint8_t *type, *kind; /* kind 255: unknown */
};
/* The next events, at most *capacity*; *count* is 0 at the end. Instead of vramreader_run(). */
VRAMREADER_API int vramreader_events(struct vramreader *reader, const struct vramreader_columns *columns,
                                     uint64_t capacity, uint64_t *count);

enum vramreader_table {
    TABLE_SECTIONS,
    TABLE_GPUS,
    TABLE_SITES,
    TABLE_TIMELINE,
    TABLE_NODES,
    TABLE_PLACES,
    TABLE_STRINGS,
    TABLE_BYTES,
    TABLE_FAILURES,
    TABLE_GAPS,
    TABLE_MARKS,
    TABLE_BEFORE,
    TABLE_BLOBS,
    TABLE_DAMAGE,
    TABLE_HOLES,
    TABLE_HOLE_BLOCKS,
    TABLE_RESERVED,
    TABLE_TOTALS,
    TABLE_WINDOWS,
    TABLES
};

/* Computes what depends on the end: leaks, what was live at the peaks, holes. Once, after vramreader_run(). */
VRAMREADER_API int vramreader_finish(struct vramreader *reader);
/* The rows of one table; valid until the next call of another function. */
VRAMREADER_API int vramreader_table(struct vramreader *reader, uint32_t table, const void **rows, uint64_t *count,
                                    uint64_t *row_nbytes);

/* Numbers of strings and stacks begin with 1; 0 is none. Times are ns since the earliest start of a section. */

struct row_section {
    uint64_t wall_ns, first_ns, last_ns, last_allocation_ns, process_started;
    uint64_t events, unknown_frees, replaced, lost_stacks;
    uint32_t pid, parent_pid, how, stacks, flags, end_reason; /* end_reason 0: no END record */
    uint32_t end_errno, threads, unreadable_chunks, missing_chunks, cluster, usable;
    uint32_t texts[8]; /* strings by key of the header */
    uint32_t file, reserved;
};

struct row_gpu {
    int32_t number; /* -1 unknown */
    uint32_t cluster, name, pci;
    uint64_t total_nbytes;
    int64_t live_nbytes, peak_nbytes, allocated_nbytes;
    uint64_t peak_ns, peak_event, allocations, frees;
};

struct row_site {
    uint32_t stack, kind, process;
    int32_t gpu; /* row of TABLE_GPUS */
    uint64_t count, freed;
    int64_t nbytes;
    uint64_t live_count;
    int64_t live_nbytes;
    uint64_t median_life_ns;
    uint64_t first_ns; /* of all its allocations */
    /* after vramreader_finish() */
    uint64_t peak_count;
    int64_t peak_nbytes;
    struct row_left {
        uint64_t count;
        int64_t nbytes;
        uint64_t first_ns, last_ns, largest;
        uint32_t quarters,
            reserved; /* one bit for each quarter from the site's first_ns to the end in which some were made */
    } leaked,         /* their context was destroyed, and the program went on */
        kept,         /* the others that were never freed */
        cache;        /* never freed, and a framework's blocks lie in them: its cache, no leak */
    struct row_site_window {
        uint64_t base_count; /* live when the window began */
        int64_t base_nbytes;
        uint64_t earlier_count; /* of count, nbytes and freed: before the window */
        int64_t earlier_nbytes;
        uint64_t earlier_freed;
        uint64_t highest_count; /* live at the highest moment of its layer; after vramreader_finish() */
        int64_t highest_nbytes;
    } window;
};

/* A GPU's memory of the driver (kind 0), or a framework's blocks of a kind, in the window. */
struct row_window {
    uint32_t gpu, kind;
    int64_t base_nbytes, highest_nbytes, end_nbytes;
    int64_t lowest[4]; /* of each quarter */
    uint64_t highest_ns, begin_ns;
    uint64_t used;
};

struct row_timeline {
    uint64_t time_ns;
    int64_t highest, lowest, last;
    uint32_t gpu, reserved;
};

struct row_node {
    uint32_t parent, place;
};

struct row_place {
    uint64_t line;
    uint32_t language, function, file, reserved;
};

struct row_string {
    uint64_t offset; /* in TABLE_BYTES */
    uint64_t nbytes;
};

struct row_failure {
    uint64_t time_ns, nbytes, result;
    uint32_t process, kind, stack;
    int32_t gpu;
};

struct row_gap {
    uint64_t start_ns, end_ns; /* end UINT64_MAX: none */
    uint32_t process, reason;
};

struct row_mark {
    uint64_t time_ns;
    uint32_t process, text;
};

struct row_before {
    uint64_t time_ns, nbytes;
    uint32_t process, source;
    int32_t gpu;
    uint32_t reserved;
};

struct row_blob {
    uint64_t offset, nbytes, part, parts; /* where the bytes are in the file */
    uint32_t process, writer, file, name;
};

enum vramreader_damage {
    DAMAGE_PAGES = 1,   /* bytes that belong to nothing */
    DAMAGE_LOST_HEADER, /* a section whose header is unreadable */
    DAMAGE_NEWER,       /* a section of another major version */
    DAMAGE_HEADER,      /* a header that contradicts itself */
    DAMAGE_DUPLICATE,   /* the same chunk of a writer twice */
    DAMAGE_MISSING,     /* chunks that are not there */
    DAMAGE_RECORD,      /* chunks with a record that cannot be read; the rest of the chunk is lost */
    DAMAGE_CUT,         /* the last record is cut */
    DAMAGE_TIME,        /* times that cannot be */
    DAMAGE_REFERENCE,   /* stacks or places that are not defined */
    DAMAGE_SIZE,        /* sizes that cannot be; left out */
    DAMAGE_READ,        /* the file could not be read there; it became shorter */
    DAMAGE_LIMIT,       /* more of something than is kept (failures, marks, gaps) */
    DAMAGE_SEGMENTS,    /* too many ranges to say which memory a framework's blocks lie in */
    DAMAGE_KIND,        /* records of a kind that this reader does not know */
    DAMAGE_SITES,       /* more stacks than are told apart */
};

struct row_damage {
    uint64_t count, offset;                 /* how often (or how many bytes); where in the file it is first */
    uint32_t code, section, file, reserved; /* section UINT32_MAX: none */
};

struct row_holes {
    uint64_t at_ns, live_nbytes, spanned_nbytes, holes, hole_nbytes, largest_hole;
    uint64_t first_block, blocks; /* rows of TABLE_HOLE_BLOCKS */
    uint32_t gpu, process, at_end, reserved;
};

struct row_block {
    uint64_t address, nbytes;
    uint32_t stack, reserved;
};

/* Memory of the driver in which a framework's blocks lie. */
struct row_reserved {
    uint32_t gpu, process, kind, reserved;
    uint64_t peak_nbytes, end_nbytes;
};

/* Memory that is live when the trace ends. */
struct row_live {
    uint64_t address, nbytes, time_ns, allocation;
    uint32_t site, kind;
};

/* The next live allocations from *position* on, which is 0 at first; at most *capacity*. *count* is 0 at the end. */
VRAMREADER_API int vramreader_live(struct vramreader *reader, uint64_t *position, struct row_live *rows,
                                   uint64_t capacity, uint64_t *count);

struct row_totals {
    uint64_t events, duration_ns, failures, host_peak_nbytes, used_nbytes, file_nbytes, host_live_nbytes;
};
