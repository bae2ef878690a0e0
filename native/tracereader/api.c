/* The exported functions. */
#include "internal.h"

#include <linux/random.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

void damaged(struct vramreader *reader, enum vramreader_damage code, uint32_t section, uint32_t file, uint64_t offset,
             uint64_t count) {
    uint32_t *number = map_value(reader, &reader->damage_rows, (uint64_t)section << 8 | code);
    if (!number) return;
    if (!*number) {
        struct row_damage *row = push(reader, &reader->damage, sizeof *row);
        if (!row) return;
        *row = (struct row_damage){0, offset, code, section, file, 0};
        *number = (uint32_t)reader->damage.count;
    }
    struct row_damage *row = &AT(reader->damage, struct row_damage, *number - 1);
    if (__builtin_add_overflow(row->count, count, &row->count)) row->count = UINT64_MAX;
}

struct vramreader *vramreader_new(uint64_t limit_nbytes, uint32_t points, uint32_t growing) {
    struct vramreader *reader = calloc(1, sizeof *reader);
    if (!reader) return NULL;
    reader->limit = limit_nbytes;
    reader->points_wanted = points < 2 ? 2 : points > 100000 ? 100000 : points;
    reader->growing = growing != 0;
    reader->free_allocation = NONE;
    reader->shift = 10;
    // glibc has getrandom() from 2.25 on, and nothing else here needs more than 2.17.
    if (syscall(SYS_getrandom, reader->seed, sizeof reader->seed, GRND_NONBLOCK) != (long)sizeof reader->seed)
        reader->seed[0] = (uint64_t)(uintptr_t)reader * 0x9e3779b97f4a7c15u;
    return reader;
}

void vramreader_free(struct vramreader *reader) {
    if (!reader) return;
    release_totals(reader);
    for (uint32_t at = 0; at < reader->writers.count; at++) {
        struct writer *writer = WRITER(reader, at);
        release_memory(reader, writer->buffer, CHUNK_NBYTES + PADDING);
        release_memory(reader, writer->earlier, CHUNK_NBYTES + PADDING);
        free(writer->chunks.items);
        free(writer->wheres.items);
        free(writer->places.items);
        free(writer->nodes.items);
    }
    for (uint64_t at = 0; at < reader->sections.count; at++) {
        free(SECTION(reader, at)->segments.items);
        free(SECTION(reader, at)->devices.items);
    }
    for (uint64_t at = 0; at < reader->files.count; at++) free(AT(reader->files, struct file, at).pending.items);
    for (uint64_t at = 0; at < reader->buffers.count; at++) free(AT(reader->buffers, uint8_t *, at));
    for (uint64_t at = 0; at < reader->blocks.count; at++) free(AT(reader->blocks, struct allocation *, at));
    struct vector *vectors[] = {
        &reader->files,    &reader->sections,     &reader->writers,     &reader->contexts,    &reader->gpus,
        &reader->clusters, &reader->buffers,      &reader->bytes,       &reader->strings,     &reader->places,
        &reader->nodes,    &reader->blocks,       &reader->sites,       &reader->failures,    &reader->gaps,
        &reader->marks,    &reader->before,       &reader->blobs,       &reader->damage,      &reader->holes,
        &reader->reserved, &reader->timeline,     &reader->hole_blocks, &reader->site_places, &reader->site_rows,
        &reader->gpu_rows, &reader->section_rows, &reader->windows,
    };
    for (size_t at = 0; at < sizeof vectors / sizeof *vectors; at++) free(vectors[at]->items);
    struct map *maps[] = {&reader->writer_numbers, &reader->context_numbers, &reader->thread_numbers,
                          &reader->damage_rows, &reader->reserved_rows};
    for (size_t at = 0; at < sizeof maps / sizeof *maps; at++) release_map(reader, maps[at]);
    struct lookup *lookups[] = {&reader->string_lookup, &reader->place_lookup, &reader->node_lookup, &reader->live,
                                &reader->site_lookup};
    for (size_t at = 0; at < sizeof lookups / sizeof *lookups; at++) release_lookup(reader, lookups[at]);
    free(reader->heap);
    free(reader);
}

int vramreader_add_file(struct vramreader *reader, int descriptor) {
    if (reader->error) return reader->error;
    struct file *file = push(reader, &reader->files, sizeof *file);
    if (file) *file = (struct file){.descriptor = descriptor, .section = NONE};
    return reader->error;
}

int vramreader_index(struct vramreader *reader) {
    if (reader->error) return reader->error;
    index_files(reader);
    if (!reader->error) wake_writers(reader);
    return reader->error;
}

uint64_t vramreader_latest_chunk(const struct vramreader *reader) {
    uint64_t latest = 0;
    for (uint64_t number = 0; number < reader->writers.count; number++) {
        const struct writer *writer = WRITER(reader, number);
        if (!writer->chunks.count) continue;
        uint64_t base = AT(writer->chunks, struct chunk, writer->chunks.count - 1).base;
        uint64_t time = relative_time(SECTION(reader, writer->section), base);
        if (time > latest && time < MAX_NS) latest = time;
    }
    return latest;
}

void vramreader_window(struct vramreader *reader, uint64_t begin_ns, uint64_t end_ns) {
    set_window(reader, begin_ns, end_ns);
    reader->window_next = begin_ns;
}

int vramreader_run(struct vramreader *reader, uint64_t until_ns, uint64_t most, uint32_t *more) {
    uint64_t until = until_ns;
    *more = 0;
    if (until_ns != UINT64_MAX) {
        /* Only the machine that writes knows its clock: sections of this one are placed by the first. */
        if (!reader->sections.count) return reader->error;
        until = relative_time(SECTION(reader, 0), until_ns);
    }
    struct replayed replayed;
    struct writer *writer = NULL;
    while (most-- && (writer = next_event(reader, until))) replay(reader, writer, &replayed);
    *more = writer != NULL;
    return reader->error;
}

int vramreader_errno(const struct vramreader *reader) {
    return reader->errno_value;
}

static uint8_t event_type(uint8_t record) {
    switch (record) {
    case RECORD_ALLOC: return EVENT_ALLOC;
    case RECORD_FREE: return EVENT_FREE;
    case RECORD_FAILED: return EVENT_FAILED;
    case RECORD_MAP: return EVENT_MAP;
    case RECORD_UNMAP: return EVENT_UNMAP;
    case RECORD_RETAIN: return EVENT_RETAIN;
    default: return EVENT_TRIM;
    }
}

int vramreader_events(struct vramreader *reader, const struct vramreader_columns *columns, uint64_t capacity,
                      uint64_t *count) {
    *count = 0;
    struct writer *writer;
    while (*count < capacity && (writer = next_event(reader, UINT64_MAX))) {
        const struct event *event = &writer->event;
        struct replayed replayed;
        replay(reader, writer, &replayed);
        if (reader->error) break;
        if (!replayed.is_event) continue;
        uint64_t at = (*count)++;
        const struct where *where = where_of(reader, writer, event->where);
        uint32_t gpu = replayed.gpu == NONE ? where->gpu_plus_1 - 1 : replayed.gpu;
        bool has_stack = event->node && (event->type == RECORD_ALLOC || event->type == RECORD_FAILED);
        columns->time_ns[at] = event->time;
        columns->address[at] = event->type == RECORD_FAILED ? 0 : event->address;
        columns->nbytes[at] = replayed.nbytes;
        columns->allocation[at] = replayed.allocation;
        columns->context[at] = where->context;
        columns->stream[at] = where->stream;
        columns->process[at] = writer->section;
        columns->thread[at] = writer->thread;
        columns->gpu[at] = GPU(reader, gpu)->row.number;
        columns->stack[at] = has_stack ? AT(writer->nodes, struct node_ref, event->node - 1).node : replayed.stack;
        columns->type[at] = event_type(event->type);
        columns->kind[at] = replayed.kind;
    }
    return reader->error;
}

/* Chunks after the last that is there: only the END record tells that they were written. */
static void count_missing_ends(struct vramreader *reader) {
    for (uint64_t at = 0; at < reader->sections.count; at++) {
        struct section *section = SECTION(reader, at);
        uint64_t known = section->found_chunks + section->row.missing_chunks;
        if (section->end_chunks <= known || section->end_chunks > UINT32_MAX) continue;
        uint32_t missing = (uint32_t)(section->end_chunks - known);
        section->row.missing_chunks += missing;
        damaged(reader, DAMAGE_MISSING, (uint32_t)at, section->row.file, section->offset, missing);
    }
}

int vramreader_finish(struct vramreader *reader) {
    if (!reader->error) count_missing_ends(reader);
    if (!reader->error) finish(reader);
    return reader->error;
}

/* ---- tables ---- */

static void build_rows(struct vramreader *reader, struct vector *rows, const struct vector *from, size_t item,
                       size_t row_nbytes) {
    /* The row is the item's first member. */
    rows->count = 0;
    uint8_t *to = push_many(reader, rows, row_nbytes, from->count);
    for (uint64_t at = 0; to && at < from->count; at++)
        memcpy(to + at * row_nbytes, from->items + at * item, row_nbytes);
}

static void build_totals(struct vramreader *reader) {
    struct row_totals *totals = &reader->totals;
    *totals = (struct row_totals){0};
    for (uint64_t at = 0; at < reader->sections.count; at++) {
        totals->events += SECTION(reader, at)->row.events;
        uint64_t last = SECTION(reader, at)->row.last_ns;
        if (last > totals->duration_ns) totals->duration_ns = last;
    }
    for (uint64_t at = 0; at < reader->files.count; at++)
        totals->file_nbytes += AT(reader->files, struct file, at).nbytes;
    totals->failures = reader->failures_in_all;
    totals->host_peak_nbytes = (uint64_t)reader->host_peak;
    totals->host_live_nbytes = (uint64_t)reader->host_live;
    totals->used_nbytes = reader->used;
}

int vramreader_live(struct vramreader *reader, uint64_t *position, struct row_live *rows, uint64_t capacity,
                    uint64_t *count) {
    if (!*position) build_sites(reader);
    *count = 0;
    for (; *position < reader->allocation_count && *count < capacity && !reader->error; ++*position) {
        const struct allocation *from = allocation_at(reader, (uint32_t)*position);
        if ((from->state != STATE_LIVE && from->state != STATE_RELEASED) || from->space == SPACE_MAPPING) continue;
        uint32_t site = AT(reader->site_places, uint32_t, from->site);
        rows[(*count)++] = (struct row_live){from->address, from->nbytes, from->time, from->event, site, from->kind};
    }
    return reader->error;
}

int vramreader_table(struct vramreader *reader, uint32_t table, const void **rows, uint64_t *count,
                     uint64_t *row_nbytes) {
    if (reader->error) return reader->error;
    const struct vector *from = NULL;
    size_t item = 0;
    switch (table) {
    case TABLE_SECTIONS:
        item = sizeof(struct row_section);
        build_rows(reader, &reader->section_rows, &reader->sections, sizeof(struct section), item);
        from = &reader->section_rows;
        break;
    case TABLE_GPUS:
        item = sizeof(struct row_gpu);
        build_rows(reader, &reader->gpu_rows, &reader->gpus, sizeof(struct gpu), item);
        from = &reader->gpu_rows;
        break;
    case TABLE_SITES:
        build_sites(reader);
        from = &reader->site_rows, item = sizeof(struct row_site);
        break;
    case TABLE_TIMELINE:
        build_timeline(reader);
        from = &reader->timeline, item = sizeof(struct row_timeline);
        break;
    case TABLE_NODES: from = &reader->nodes, item = sizeof(struct row_node); break;
    case TABLE_PLACES: from = &reader->places, item = sizeof(struct row_place); break;
    case TABLE_STRINGS: from = &reader->strings, item = sizeof(struct row_string); break;
    case TABLE_BYTES: from = &reader->bytes, item = 1; break;
    case TABLE_FAILURES: from = &reader->failures, item = sizeof(struct row_failure); break;
    case TABLE_GAPS: from = &reader->gaps, item = sizeof(struct row_gap); break;
    case TABLE_MARKS: from = &reader->marks, item = sizeof(struct row_mark); break;
    case TABLE_BEFORE: from = &reader->before, item = sizeof(struct row_before); break;
    case TABLE_BLOBS: from = &reader->blobs, item = sizeof(struct row_blob); break;
    case TABLE_DAMAGE: from = &reader->damage, item = sizeof(struct row_damage); break;
    case TABLE_HOLES: from = &reader->holes, item = sizeof(struct row_holes); break;
    case TABLE_HOLE_BLOCKS: from = &reader->hole_blocks, item = sizeof(struct row_block); break;
    case TABLE_RESERVED: from = &reader->reserved, item = sizeof(struct row_reserved); break;
    case TABLE_WINDOWS: from = &reader->windows, item = sizeof(struct row_window); break;
    case TABLE_TOTALS:
        build_totals(reader);
        *rows = &reader->totals;
        *count = 1;
        *row_nbytes = sizeof reader->totals;
        return VRAMREADER_OK;
    default: return VRAMREADER_BAD_CALL;
    }
    *rows = from->items;
    *count = from->count;
    *row_nbytes = item;
    return reader->error;
}
