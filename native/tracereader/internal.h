/* What the files of the reader share. */
#pragma once

#include "../traceformat.h"
#include "reader.h"

#include <stdbool.h>
#include <stddef.h>

#define likely(condition) __builtin_expect(!!(condition), 1)
#define unlikely(condition) __builtin_expect(!!(condition), 0)

enum {
    /* Zeros behind a chunk's bytes: numbers are decoded before their end is compared with the chunk's. */
    PADDING = 128,
    MAX_TEXT = 4096,
    MAX_GPUS = 256,
    MAX_KEPT = 20000,       /* failures, gaps, marks: rows of each */
    MAX_HOLE_BLOCKS = 4000, /* of one process and GPU */
    MAX_HOLE_BLOCKS_IN_ALL = 200000,
    MAX_SITES = 100000,
    MAX_BLOBS = 1 << 20,
    MAX_SEGMENTS = 1 << 16,
    SPACE_MAPPING = 32, /* no space of the format: addresses that are mapped to a handle's memory */
};

#define NONE UINT32_MAX
#define MAX_NBYTES ((uint64_t)1 << 52) /* of one allocation */
#define MAX_NS ((uint64_t)1 << 59)     /* eighteen years: no recording is so long */
#define MAX_SUM ((int64_t)1 << 61)
#define MAX_EXIT_NS ((uint64_t)100000000) /* as in trace/analysis.py */

/* ---- memory.c ---- */

/* A growing array. */
struct vector {
    uint8_t *items;
    uint64_t count, capacity;
};

/* Numbers by a 64-bit key. */
struct map {
    uint64_t *keys;
    uint32_t *values;
    uint64_t mask, count;
};

/* Rows that are looked up by content: the slots hold numbers of rows, from 1, and a part of their hash. */
struct slot {
    uint32_t hash, number;
};

struct lookup {
    struct slot *slots;
    uint64_t mask, count;
};

struct vramreader;

/* NULL sets the reader's error. */
void *take_memory(struct vramreader *reader, uint64_t nbytes);
void release_memory(struct vramreader *reader, void *memory, uint64_t nbytes);
/* A new, zeroed item at the end; NULL sets the error. */
void *push(struct vramreader *reader, struct vector *vector, size_t item_nbytes);
void *push_many(struct vramreader *reader, struct vector *vector, size_t item_nbytes, uint64_t count);
void release_vector(struct vramreader *reader, struct vector *vector, size_t item_nbytes);

#define AT(vector, type, index) (((type *)(vector).items)[index])

/* Where the value for *key* is: 0 where it is new. NULL sets the error. */
uint32_t *map_value(struct vramreader *reader, struct map *map, uint64_t key);
void release_map(struct vramreader *reader, struct map *map);

uint64_t hash_number(const struct vramreader *reader, uint64_t value);
uint64_t hash_bytes(const struct vramreader *reader, const void *bytes, size_t nbytes);

/* Room for one more; false sets the error. */
bool lookup_room(struct vramreader *reader, struct lookup *lookup);
static inline void lookup_add(struct lookup *lookup, uint32_t hash, uint32_t number) {
    uint64_t at = hash & lookup->mask;
    while (lookup->slots[at].number) at = (at + 1) & lookup->mask;
    lookup->slots[at] = (struct slot){hash, number};
    lookup->count++;
}
void lookup_remove(struct lookup *lookup, uint32_t hash, uint32_t number);
void release_lookup(struct vramreader *reader, struct lookup *lookup);

/* ---- what is read ---- */

struct file {
    int descriptor;
    uint64_t nbytes;       /* as of the last index */
    uint64_t indexed;      /* everything before is known */
    uint32_t section;      /* the latest one; NONE */
    struct vector pending; /* uint64_t: chunks of a growing file that have no header yet */
};

struct chunk {
    uint64_t offset, base;
    uint32_t nbytes, number, thread, file;
};

struct where {
    uint64_t context, stream;
    uint32_t device;     /* + 1, 0 unknown */
    uint32_t gpu_plus_1; /* row of gpus; 0: not looked up yet */
    uint32_t context_number;
};

struct node_ref {
    uint32_t node; /* of the table of all writers; 0 unknown */
    uint32_t site; /* + 1 of its latest allocation, 0 none: mostly the next one's too */
};

/* A record with a time. */
struct event {
    uint64_t time; /* ns since the start of the trace */
    uint64_t address, nbytes, extra;
    const uint8_t *text;
    uint32_t text_nbytes, where, node;
    uint32_t hash; /* of the address of an ALLOC or FREE, see live.c */
    uint8_t type, kind, space;
};

struct writer {
    uint32_t section, number;
    struct vector chunks; /* struct chunk, by number */
    uint32_t next;        /* the chunk that is or will be open */
    uint32_t expected;    /* the number of that chunk, where none is missing */
    uint8_t *buffer;      /* bytes of the open chunk; the offset in the chunk is that in the buffer */
    uint8_t *earlier;     /* where the file grows: as read before *buffer*, see decode.c */
    uint32_t position, limit;
    uint64_t time, address; /* of the previous record */
    uint64_t floor;         /* no earlier than this */
    uint64_t ceiling;       /* the base of the writer's next chunk */
    uint32_t thread;
    bool begun;    /* the chunk's header was used: position, time and address are of this chunk */
    bool unsorted; /* chunks were not found in their order */
    bool broken;   /* definitions are lost: new ones have no number that is known */
    bool in_heap, has_event;
    struct vector wheres, places, nodes; /* struct where, uint32_t, struct node_ref; by number - 1 */
    struct event event;
};

struct context {
    uint32_t section, first; /* allocations in it, a list; NONE */
    uint64_t handle;
};

struct device {
    uint32_t number, pci, name;
    uint64_t nbytes;
};

struct section {
    struct row_section row;
    uint64_t mono_ns;                  /* CLOCK_MONOTONIC at its start, corrected where the header is damaged */
    int64_t shift;                     /* added to CLOCK_MONOTONIC: the time since the start of the trace */
    uint64_t offset;                   /* in the file */
    uint64_t first_base;               /* the earliest of its chunks; UINT64_MAX */
    uint64_t last_active;              /* number of its latest event that is not the end of a context */
    uint64_t found_chunks, end_chunks; /* and how many there are by its END record */
    uint32_t mappings;                 /* live */
    bool placed, has_end;
    bool has_segments, too_many_segments;
    struct vector segments; /* struct segment, by address */
    struct vector devices;  /* struct device */
};

enum allocation_state { STATE_FREE, STATE_LIVE, STATE_RELEASED /* mapped still */, STATE_LEFT /* by its context */ };

struct allocation {
    uint64_t address, nbytes, time, event; /* event: its number among all */
    uint32_t site, context;
    uint32_t previous, next; /* in its context's list; or of free rows */
    uint32_t references;
    uint32_t maps; /* of a handle: how many; of a mapping: the allocation that is mapped */
    uint32_t section;
    uint8_t space, kind, state;
    uint8_t framework; /* the kind of blocks that lie in it; 0 none */
};

struct site {
    struct row_site row;
    uint64_t *lives; /* lifetimes: the first ones as they are, then counted; see totals.c */
    uint32_t is_histogram, few;
};

/* What was live at a GPU's peak and is not any more. */
struct gone {
    uint64_t address, nbytes;
    uint32_t site;
    uint8_t framework, mapping, kind;
};

struct point {
    int64_t highest, lowest, last;
    bool used;
};

enum { LAYERS = 5 };

struct layer {
    struct row_window row;
    uint64_t highest_event;
    struct vector gone; /* struct gone_in_window: was live at the highest moment and is not any more */
};

struct gone_in_window {
    uint64_t nbytes;
    uint32_t site;
};

struct gpu {
    struct row_gpu row;
    uint64_t identity;
    struct vector gone; /* struct gone */
    struct layer layers[LAYERS];
    struct point *points;
    uint64_t latest; /* point */
};

struct heap_entry {
    uint64_t key; /* twice the time, plus 1 for an allocation: of two equal times the free is first */
    uint32_t writer;
};

struct cluster {
    uint32_t host; /* string */
    int64_t boot_ns;
};

struct vramreader {
    uint64_t limit, used;
    int error, errno_value;
    uint64_t seed[2];
    uint32_t points_wanted;
    bool growing, placed, finished, too_many_sites;
    int64_t origin_ns; /* wall clock of the trace's time 0 */

    struct vector files, sections, writers, contexts, gpus, clusters;
    struct map writer_numbers, context_numbers, thread_numbers;
    struct vector buffers; /* uint8_t *, not in use */

    /* stacks.c */
    struct vector bytes, strings, places, nodes;
    struct lookup string_lookup, place_lookup, node_lookup;

    /* merge.c */
    struct heap_entry *heap;
    uint64_t heap_count, heap_capacity;
    uint64_t now; /* the time of the latest event */

    /* replay.c, live.c, totals.c */
    uint64_t events;
    struct vector blocks; /* struct allocation *, of BLOCK rows each */
    uint32_t allocation_count, free_allocation;
    struct lookup live;
    struct vector sites;
    struct lookup site_lookup;
    uint32_t shift; /* a point of the timeline is 2^shift ns */
    int64_t host_live, host_peak;
    uint64_t failures_in_all, unmap_steps, segments_moved;
    struct where nowhere; /* of events that name none */

    /* windows.c */
    uint64_t window_bounds[4], window_next; /* where its quarters begin; the next that no event has reached */
    uint32_t window_quarter;                /* how many quarters have begun */

    struct vector failures, gaps, marks, before, blobs, damage;
    struct map damage_rows, reserved_rows;
    /* result.c */
    struct vector windows, holes, hole_blocks, reserved, site_places, timeline, site_rows, section_rows, gpu_rows;
    struct row_totals totals;
};

#define SECTION(reader, index) (&AT((reader)->sections, struct section, index))
#define WRITER(reader, index) (&AT((reader)->writers, struct writer, index))
#define SITE(reader, index) (&AT((reader)->sites, struct site, index))
#define GPU(reader, index) (&AT((reader)->gpus, struct gpu, index))

enum { BLOCK = 16384 };
static inline struct allocation *allocation_at(const struct vramreader *reader, uint32_t index) {
    return &AT(reader->blocks, struct allocation *, index / BLOCK)[index % BLOCK];
}

void fail(struct vramreader *reader, int error);
/* Counts *count* of damage; *offset* is kept of the first. */
void damaged(struct vramreader *reader, enum vramreader_damage code, uint32_t section, uint32_t file, uint64_t offset,
             uint64_t count);

/* ---- index.c ---- */

int index_files(struct vramreader *reader);
/* Bytes of a file, with zeros where it has become shorter; how many were read. */
uint64_t read_bytes(struct vramreader *reader, const struct file *file, uint64_t offset, void *bytes, uint64_t nbytes);
void place_sections(struct vramreader *reader);
uint64_t relative_time(const struct section *section, uint64_t time);

/* ---- stacks.c ---- */

/* Numbers from 1; 0 sets the error. */
uint32_t intern_string(struct vramreader *reader, const uint8_t *bytes, uint64_t nbytes);
uint32_t intern_place(struct vramreader *reader, uint32_t language, uint32_t function, uint32_t file, uint64_t line);
uint32_t intern_node(struct vramreader *reader, uint32_t parent, uint32_t place);

/* ---- decode.c ---- */

enum decoded { DECODED_EVENT, DECODED_END_OF_CHUNK };
enum decoded decode(struct vramreader *reader, struct writer *writer);
void note_thread(struct vramreader *reader, uint32_t section, uint32_t thread);

/* ---- merge.c ---- */

/* The writer whose event is next, or NULL at the end (or at *until*, ns since the start of the trace). */
struct writer *next_event(struct vramreader *reader, uint64_t until);
/* Writers that may have gained something. */
void wake_writers(struct vramreader *reader);
void close_chunk(struct vramreader *reader, struct writer *writer);

/* ---- live.c ---- */

uint32_t find_allocation(const struct vramreader *reader, uint32_t section, uint8_t space, uint64_t address);
/* Its hash, for find_expected() soon after; until then its place in the table comes into the CPU's cache. */
uint32_t expect_allocation(const struct vramreader *reader, uint32_t section, uint8_t space, uint64_t address);
uint32_t find_expected(const struct vramreader *reader, uint32_t hash, uint32_t section, uint8_t space,
                       uint64_t address);
/* NONE sets the error. */
uint32_t new_allocation(struct vramreader *reader, uint32_t section, uint8_t space, uint64_t address);
void forget_address(struct vramreader *reader, uint32_t allocation);
void enter_context(struct vramreader *reader, uint32_t allocation, uint32_t context);
void leave_context(struct vramreader *reader, uint32_t allocation);
void release_allocation(struct vramreader *reader, uint32_t allocation);

/* ---- replay.c ---- */

extern const uint8_t space_of_kind[KINDS];
static inline bool is_on_gpu(uint32_t kind) {
    return kind < KINDS &&
           (1u << kind & (1u << KIND_DEVICE | 1u << KIND_MANAGED | 1u << KIND_STREAM_ORDERED | 1u << KIND_GRAPH |
                          1u << KIND_PHYSICAL | 1u << KIND_ARRAY | 1u << KIND_MODULE));
}
/* What was replayed, for vramreader_events(). */
struct replayed {
    uint64_t allocation, nbytes;
    uint32_t gpu, stack;
    uint8_t kind;
    bool is_event;
};
void replay(struct vramreader *reader, struct writer *writer, struct replayed *replayed);
struct where *where_of(struct vramreader *reader, struct writer *writer, uint32_t number);

/* ---- totals.c ---- */

uint32_t gpu_of(struct vramreader *reader, uint32_t section, uint32_t device_plus_1);
uint32_t site_of(struct vramreader *reader, uint32_t stack, uint32_t kind, uint32_t gpu, uint32_t section);
/* false: its size cannot be. */
bool count_allocation(struct vramreader *reader, const struct allocation *allocation);
void count_end(struct vramreader *reader, const struct allocation *allocation, uint64_t time, bool freed);
uint64_t median_life(const struct site *site);
void release_totals(struct vramreader *reader);

/* ---- windows.c ---- */

void set_window(struct vramreader *reader, uint64_t begin_ns, uint64_t end_ns);
void cross_window_bound(struct vramreader *reader);
static inline struct layer *layer_of(struct gpu *gpu, uint32_t kind) {
    if (likely(is_on_gpu(kind))) return &gpu->layers[0];
    return kind >= KIND_BLOCK ? &gpu->layers[1 + kind - KIND_BLOCK] : NULL;
}

static inline void window_allocation(struct vramreader *reader, struct gpu *gpu, const struct allocation *allocation) {
    struct layer *layer = layer_of(gpu, allocation->kind);
    if (!layer) return;
    layer->row.used = 1;
    layer->row.end_nbytes += (int64_t)allocation->nbytes;
    if (layer->row.end_nbytes <= layer->row.highest_nbytes || !reader->window_quarter) return;
    layer->row.highest_nbytes = layer->row.end_nbytes;
    layer->row.highest_ns = allocation->time;
    layer->highest_event = allocation->event;
    layer->gone.count = 0;
}

static inline void window_end(struct vramreader *reader, struct gpu *gpu, const struct allocation *allocation) {
    struct layer *layer = layer_of(gpu, allocation->kind);
    if (!layer) return;
    layer->row.end_nbytes -= (int64_t)allocation->nbytes;
    if (!reader->window_quarter) return;
    int64_t *lowest = &layer->row.lowest[reader->window_quarter - 1];
    if (layer->row.end_nbytes < *lowest) *lowest = layer->row.end_nbytes;
    if (likely(allocation->event > layer->highest_event)) return;
    struct gone_in_window *gone = push(reader, &layer->gone, sizeof *gone);
    if (gone) *gone = (struct gone_in_window){allocation->nbytes, allocation->site};
}

void finish_window(struct vramreader *reader);

/* ---- segments.c ---- */

struct segment {
    uint64_t first, end;
    uint32_t allocation;
};
void segment_added(struct vramreader *reader, uint32_t allocation);
void segment_removed(struct vramreader *reader, uint32_t allocation);
void block_added(struct vramreader *reader, uint32_t section, uint64_t address, uint8_t kind);

/* ---- holes.c ---- */

void find_holes(struct vramreader *reader, uint32_t gpu, bool at_end);

/* ---- result.c ---- */

bool was_at_peak(const struct vramreader *reader, const struct allocation *allocation);
/* The *rank* largest of *sizes*, counted from 0; their order is lost. */
uint64_t select_largest(uint64_t *sizes, uint64_t count, uint64_t rank);

void finish(struct vramreader *reader);
/* site_rows, of at most MAX_SITES, and in site_places the row of each site. */
void build_sites(struct vramreader *reader);
void build_timeline(struct vramreader *reader);
