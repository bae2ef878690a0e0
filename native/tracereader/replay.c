/* What each event means: which memory lives, and until when. The rules are those of ../FORMAT.md. */
#include "internal.h"

const uint8_t space_of_kind[KINDS] = {0, 0, 0,  0,  0,  2,  2,  2,  1,  1,  3,  4,  5,  6,  7,  2,
                                      8, 9, 10, 11, 11, 11, 11, 11, 11, 11, 11, 11, 11, 11, 11, 11};

static bool outlives_context(uint32_t kind) {
    return kind == KIND_STREAM_ORDERED || kind == KIND_PHYSICAL || kind == KIND_PHYSICAL_HOST || kind == KIND_POOL;
}

/* ---- where ---- */

static uint32_t context_of(struct vramreader *reader, uint32_t section, uint64_t handle) {
    if (!handle) return NONE;
    uint64_t key = handle ^ (uint64_t)section << 48;
    uint32_t *number = map_value(reader, &reader->context_numbers, key);
    if (!number) return NONE;
    if (!*number) {
        struct context *context = push(reader, &reader->contexts, sizeof *context);
        if (!context) return NONE;
        *context = (struct context){section, NONE, handle};
        *number = (uint32_t)reader->contexts.count;
    }
    const struct context *found = &AT(reader->contexts, struct context, *number - 1);
    return found->section == section && found->handle == handle ? *number - 1 : NONE;
}

struct where *where_of(struct vramreader *reader, struct writer *writer, uint32_t number) {
    if (!number) {
        reader->nowhere = (struct where){.context_number = NONE};
        reader->nowhere.gpu_plus_1 = gpu_of(reader, writer->section, 0) + 1;
        return &reader->nowhere;
    }
    struct where *where = &AT(writer->wheres, struct where, number - 1);
    if (unlikely(!where->gpu_plus_1)) {
        where->gpu_plus_1 = gpu_of(reader, writer->section, where->device) + 1;
        where->context_number = context_of(reader, writer->section, where->context);
    }
    return where;
}

/* ---- allocations ---- */

static void end_allocation(struct vramreader *reader, uint32_t index, uint64_t time) {
    struct allocation *allocation = allocation_at(reader, index);
    leave_context(reader, index);
    segment_removed(reader, index);
    count_end(reader, allocation, time, true);
    release_allocation(reader, index);
}

static void free_allocation(struct vramreader *reader, uint32_t index, uint64_t time) {
    forget_address(reader, index);
    end_allocation(reader, index, time);
}

static uint32_t site_for(struct vramreader *reader, struct writer *writer, const struct event *event, uint8_t kind,
                         uint32_t gpu) {
    if (!event->node) return site_of(reader, 0, kind, gpu, writer->section);
    struct node_ref *node = &AT(writer->nodes, struct node_ref, event->node - 1);
    if (likely(node->site)) {
        const struct row_site *row = &SITE(reader, node->site - 1)->row;
        if (row->kind == kind && row->gpu == (int32_t)gpu) return node->site - 1;
    }
    uint32_t site = site_of(reader, node->node, kind, gpu, writer->section);
    node->site = site + 1;
    return site;
}

static void replay_alloc(struct vramreader *reader, struct writer *writer, struct replayed *replayed) {
    const struct event *event = &writer->event;
    struct section *section = SECTION(reader, writer->section);
    uint8_t kind = event->kind > KIND_OTHER_BLOCK ? KIND_OTHER_BLOCK : event->kind;
    uint8_t space = event->space;
    const struct chunk *chunk = &AT(writer->chunks, struct chunk, writer->next);
    if (event->nbytes > MAX_NBYTES) {
        damaged(reader, DAMAGE_SIZE, writer->section, chunk->file, chunk->offset, 1);
        return;
    }
    uint32_t existing = find_expected(reader, event->hash, writer->section, space, event->address);
    if (existing != NONE) {
        struct allocation *there = allocation_at(reader, existing);
        if (kind == KIND_OPENED || kind == KIND_IMPORTED) {
            /* Opened once more: the driver counts, and each opening is closed. */
            if (there->references < UINT32_MAX) there->references++;
            there->state = STATE_LIVE;
            replayed->allocation = there->event;
            return;
        }
        if (there->state == STATE_RELEASED) {
            forget_address(reader, existing); /* a handle's number is used again; the old memory is mapped still */
            there->space = 255;
        } else {
            section->row.replaced++;
            free_allocation(reader, existing, event->time);
        }
    }
    const struct where *where = where_of(reader, writer, event->where);
    uint32_t gpu = where->gpu_plus_1 - 1, context = where->context_number;
    uint32_t site = reader->error ? NONE : site_for(reader, writer, event, kind, gpu);
    if (site == NONE || reader->error) return;
    uint32_t index = new_allocation(reader, writer->section, space, event->address);
    if (index == NONE) return;
    struct allocation *allocation = allocation_at(reader, index);
    allocation->nbytes = event->nbytes;
    allocation->time = event->time;
    allocation->event = reader->events;
    allocation->site = site;
    allocation->kind = kind;
    replayed->allocation = allocation->event;
    if (!count_allocation(reader, allocation)) {
        damaged(reader, DAMAGE_SIZE, writer->section, chunk->file, chunk->offset, 1);
        forget_address(reader, index);
        release_allocation(reader, index);
        return;
    }
    if (context != NONE && !outlives_context(kind) && kind != KIND_CONTEXT) enter_context(reader, index, context);
    if (kind >= KIND_BLOCK)
        block_added(reader, writer->section, event->address, kind);
    else
        segment_added(reader, index);
}

/* Memory that its context took along: kept for the verdict, whether the program went on afterwards. */
static void leave_behind(struct vramreader *reader, uint32_t index, uint64_t time) {
    struct allocation *allocation = allocation_at(reader, index);
    forget_address(reader, index);
    leave_context(reader, index);
    segment_removed(reader, index);
    count_end(reader, allocation, time, false);
    allocation->state = STATE_LEFT;
    allocation->event = reader->events;
}

static void end_context(struct vramreader *reader, uint32_t section, uint64_t handle, uint64_t time) {
    uint32_t number = context_of(reader, section, handle);
    if (number == NONE) return;
    uint32_t at;
    while ((at = AT(reader->contexts, struct context, number).first) != NONE) leave_behind(reader, at, time);
}

static void replay_free(struct vramreader *reader, struct writer *writer, struct replayed *replayed) {
    const struct event *event = &writer->event;
    struct section *section = SECTION(reader, writer->section);
    uint8_t space = event->space;
    if (space >= SPACES) {
        const struct chunk *chunk = &AT(writer->chunks, struct chunk, writer->next);
        damaged(reader, DAMAGE_KIND, writer->section, chunk->file, chunk->offset, 1);
        return;
    }
    uint32_t index = find_expected(reader, event->hash, writer->section, space, event->address);
    struct allocation *allocation = index == NONE ? NULL : allocation_at(reader, index);
    if (allocation && allocation->references && allocation->time <= event->time) {
        const struct row_site *site = &SITE(reader, allocation->site)->row;
        *replayed = (struct replayed){allocation->event, allocation->nbytes, (uint32_t)site->gpu,
                                      site->stack,       allocation->kind,   true};
        if (--allocation->references) return;
        if (space == SPACE_HANDLES && allocation->maps)
            allocation->state = STATE_RELEASED;
        else
            free_allocation(reader, index, event->time);
    } else if (space != SPACE_CONTEXTS) {
        section->row.unknown_frees++;
    }
    if (space == SPACE_CONTEXTS) end_context(reader, writer->section, event->address, event->time);
}

/* ---- handles and mappings ---- */

static void unmap(struct vramreader *reader, uint32_t index, uint64_t time) {
    struct allocation *mapping = allocation_at(reader, index);
    uint32_t handle = mapping->maps;
    forget_address(reader, index);
    segment_removed(reader, index);
    count_end(reader, mapping, time, true);
    SECTION(reader, mapping->section)->mappings--;
    release_allocation(reader, index);
    struct allocation *mapped = allocation_at(reader, handle);
    if (--mapped->maps || mapped->references) return;
    if (mapped->space != 255) forget_address(reader, handle);
    end_allocation(reader, handle, time);
}

static void replay_map(struct vramreader *reader, struct writer *writer, struct replayed *replayed) {
    const struct event *event = &writer->event;
    if (event->nbytes > MAX_NBYTES) return;
    uint32_t existing = find_allocation(reader, writer->section, SPACE_MAPPING, event->address);
    if (existing != NONE) unmap(reader, existing, event->time);
    uint32_t handle = find_allocation(reader, writer->section, SPACE_HANDLES, event->extra);
    if (handle == NONE || allocation_at(reader, handle)->maps == UINT32_MAX) return;
    uint32_t index = new_allocation(reader, writer->section, SPACE_MAPPING, event->address);
    if (index == NONE) return;
    struct allocation *mapping = allocation_at(reader, index), *mapped = allocation_at(reader, handle);
    mapped->maps++;
    SECTION(reader, writer->section)->mappings++;
    mapping->nbytes = event->nbytes;
    mapping->time = event->time;
    mapping->event = reader->events;
    mapping->site = mapped->site;
    mapping->kind = mapped->kind;
    mapping->maps = handle;
    replayed->allocation = mapped->event;
    replayed->kind = mapped->kind;
    segment_added(reader, index);
}

/* Of all calls together: files made to be slow end here. */
enum { MAX_UNMAP_STEPS = 20000000 };

/* One call may unmap several neighbouring mappings. */
static void replay_unmap(struct vramreader *reader, struct writer *writer) {
    const struct event *event = &writer->event;
    uint64_t at = event->address, end;
    if (__builtin_add_overflow(at, event->nbytes, &end)) end = UINT64_MAX;
    do {
        uint32_t index = find_allocation(reader, writer->section, SPACE_MAPPING, at);
        uint64_t nbytes = 2 << 20; /* the driver maps at multiples of it */
        if (index != NONE) {
            nbytes = allocation_at(reader, index)->nbytes;
            unmap(reader, index, event->time);
        }
        if (!nbytes || __builtin_add_overflow(at, nbytes, &at)) break;
    } while (at < end && SECTION(reader, writer->section)->mappings && reader->unmap_steps++ < MAX_UNMAP_STEPS);
}

static void replay_retain(struct vramreader *reader, struct writer *writer) {
    uint32_t index = find_allocation(reader, writer->section, SPACE_HANDLES, writer->event.address);
    if (index == NONE) return;
    struct allocation *allocation = allocation_at(reader, index);
    if (allocation->references < UINT32_MAX) allocation->references++;
    allocation->state = STATE_LIVE;
}

/* ---- what is no memory ---- */

static bool keeps(struct vramreader *reader, const struct writer *writer, const struct vector *rows) {
    if (rows->count < MAX_KEPT) return true;
    const struct chunk *chunk = &AT(writer->chunks, struct chunk, writer->next);
    damaged(reader, DAMAGE_LIMIT, writer->section, chunk->file, chunk->offset, 1);
    return false;
}

static void replay_failed(struct vramreader *reader, struct writer *writer, struct replayed *replayed) {
    const struct event *event = &writer->event;
    uint32_t gpu = where_of(reader, writer, event->where)->gpu_plus_1 - 1;
    uint32_t stack = event->node ? AT(writer->nodes, struct node_ref, event->node - 1).node : 0;
    replayed->gpu = gpu;
    replayed->stack = stack;
    reader->failures_in_all++;
    if (reader->failures.count >= MAX_KEPT) return; /* the sum says how many there are */
    struct row_failure *row = push(reader, &reader->failures, sizeof *row);
    if (row)
        *row = (struct row_failure){event->time, event->nbytes, event->extra, writer->section,
                                    event->kind, stack,         (int32_t)gpu};
}

static void replay_gap(struct vramreader *reader, struct writer *writer) {
    const struct event *event = &writer->event;
    uint32_t reason = (uint32_t)event->extra;
    if (event->kind == 1 && keeps(reader, writer, &reader->gaps)) {
        struct row_gap *row = push(reader, &reader->gaps, sizeof *row);
        if (row) *row = (struct row_gap){event->time, UINT64_MAX, writer->section, reason};
    }
    for (uint64_t back = 1; event->kind == 2 && back <= reader->gaps.count && back <= 64; back++) {
        struct row_gap *row = &AT(reader->gaps, struct row_gap, reader->gaps.count - back);
        if (row->process != writer->section || row->reason != reason || row->end_ns != UINT64_MAX) continue;
        row->end_ns = event->time;
        return;
    }
}

static void replay_text(struct vramreader *reader, struct writer *writer) {
    const struct event *event = &writer->event;
    if (!keeps(reader, writer, event->type == RECORD_MARK ? &reader->marks : &reader->before)) return;
    uint32_t text = intern_string(reader, event->text, event->text_nbytes);
    if (event->type == RECORD_MARK) {
        struct row_mark *row = push(reader, &reader->marks, sizeof *row);
        if (row) *row = (struct row_mark){event->time, writer->section, text};
        return;
    }
    uint32_t device = event->extra <= MAX_GPUS ? (uint32_t)event->extra : 0;
    uint32_t gpu = gpu_of(reader, writer->section, device);
    struct row_before *row = push(reader, &reader->before, sizeof *row);
    if (row) *row = (struct row_before){event->time, event->nbytes, writer->section, text, (int32_t)gpu, 0};
}

void replay(struct vramreader *reader, struct writer *writer, struct replayed *replayed) {
    const struct event *event = &writer->event;
    struct section *section = SECTION(reader, writer->section);
    bool ends_context = event->type == RECORD_FREE && event->space == SPACE_CONTEXTS;
    while (unlikely(event->time >= reader->window_next)) cross_window_bound(reader);
    reader->events++;
    /* After the process's end only its libraries take down what is left. */
    if (!ends_context && !section->has_end) section->last_active = reader->events;
    if (event->time > section->row.last_ns) section->row.last_ns = event->time;
    if (event->type == RECORD_ALLOC && event->time > section->row.last_allocation_ns)
        section->row.last_allocation_ns = event->time;
    *replayed = (struct replayed){.nbytes = event->nbytes, .gpu = NONE, .kind = event->kind, .is_event = true};
    switch (event->type) {
    case RECORD_ALLOC: replay_alloc(reader, writer, replayed); break;
    case RECORD_FREE: replay_free(reader, writer, replayed); break;
    case RECORD_MAP: replay_map(reader, writer, replayed); break;
    case RECORD_UNMAP: replay_unmap(reader, writer); break;
    case RECORD_RETAIN: replay_retain(reader, writer); break;
    case RECORD_FAILED: replay_failed(reader, writer, replayed); break;
    case RECORD_TRIM: break;
    default: replayed->is_event = false;
    }
    section = SECTION(reader, writer->section);
    if (replayed->is_event) {
        section->row.events++;
        return;
    }
    if (event->type == RECORD_GAP)
        replay_gap(reader, writer);
    else if (event->type == RECORD_END) {
        section->row.end_reason = event->kind;
        section->row.end_errno = (uint32_t)event->extra;
        section->has_end = true;
        section->end_chunks = event->nbytes;
    } else
        replay_text(reader, writer);
}
