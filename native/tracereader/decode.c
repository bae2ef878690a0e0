/* The records of one chunk.
 *
 * Numbers are decoded without a look at the chunk's end, since zeros follow it; a record that reaches beyond
 * the end is none. Definitions (WHERE, PLACE, NODE) are used as they come; the other records are events.
 *
 * Where a file grows, a chunk is read twice: a record counts where its type was there in the first reading,
 * and its bytes are those of the second. The type is written last, so they are complete.
 */
#include "internal.h"

#include <string.h>

static inline uint64_t number(const uint8_t **at, bool *bad) {
    const uint8_t *byte = *at;
    uint64_t value = *byte & 0x7f;
    for (unsigned shift = 7; *byte++ & 0x80; shift += 7) {
        if (unlikely(shift > 63 || (shift == 63 && *byte > 1))) {
            *bad = true;
            return 0;
        }
        value |= (uint64_t)(*byte & 0x7f) << shift;
    }
    *at = byte;
    return value;
}

static inline uint64_t signed_number(const uint8_t **at, bool *bad) {
    uint64_t value = number(at, bad);
    return value >> 1 ^ (~(value & 1) + 1);
}

struct text {
    const uint8_t *bytes;
    uint32_t nbytes;
};

/* *end* is the first byte that is not the chunk's. */
static struct text text(const uint8_t **at, const uint8_t *end, bool *bad, bool *cut) {
    uint64_t nbytes = number(at, bad);
    if (nbytes > MAX_TEXT)
        *bad = true;
    else if (*at > end || nbytes > (uint64_t)(end - *at))
        *cut = true;
    if (*bad || *cut) return (struct text){*at, 0};
    struct text found = {*at, (uint32_t)nbytes};
    *at += nbytes;
    return found;
}

void note_thread(struct vramreader *reader, uint32_t section, uint32_t thread) {
    uint32_t *known = map_value(reader, &reader->thread_numbers, (uint64_t)section << 32 | thread);
    if (!known || *known) return;
    *known = 1;
    SECTION(reader, section)->row.threads++;
}

static void damaged_here(struct vramreader *reader, struct writer *writer, enum vramreader_damage code) {
    const struct chunk *chunk = &AT(writer->chunks, struct chunk, writer->next);
    damaged(reader, code, writer->section, chunk->file, chunk->offset + writer->position, 1);
}

/* ---- definitions ---- */

static void define_where(struct vramreader *reader, struct writer *writer, uint64_t context, uint64_t device,
                         uint64_t stream) {
    if (writer->broken) return;
    struct where *where = push(reader, &writer->wheres, sizeof *where);
    if (where)
        *where =
            (struct where){.context = context, .stream = stream, .device = device <= MAX_GPUS ? (uint32_t)device : 0};
}

static void define_place(struct vramreader *reader, struct writer *writer, uint32_t language, struct text function,
                         struct text file, uint64_t line) {
    if (writer->broken) return;
    uint32_t function_number = intern_string(reader, function.bytes, function.nbytes);
    uint32_t file_number = intern_string(reader, file.bytes, file.nbytes);
    uint32_t place = reader->error ? 0 : intern_place(reader, language, function_number, file_number, line);
    uint32_t *defined = push(reader, &writer->places, sizeof *defined);
    if (defined) *defined = place;
}

/* The numbers of later nodes stay right where this one refers to nothing. */
static void define_node(struct vramreader *reader, struct writer *writer, uint64_t parent, uint64_t place) {
    if (writer->broken) return;
    uint32_t node = 0;
    bool known = parent <= writer->nodes.count && place && place <= writer->places.count;
    uint32_t parent_node = known && parent ? AT(writer->nodes, struct node_ref, parent - 1).node : 0;
    if (known && (!parent || parent_node))
        node = intern_node(reader, parent_node, AT(writer->places, uint32_t, place - 1));
    else if (!known)
        damaged_here(reader, writer, DAMAGE_REFERENCE);
    struct node_ref *defined = push(reader, &writer->nodes, sizeof *defined);
    if (defined) *defined = (struct node_ref){node, 0};
}

static void define_device(struct vramreader *reader, struct writer *writer, uint64_t device, struct text pci,
                          struct text name, uint64_t nbytes) {
    struct section *section = SECTION(reader, writer->section);
    if (device >= MAX_GPUS || section->devices.count >= MAX_GPUS) return;
    uint32_t pci_number = intern_string(reader, pci.bytes, pci.nbytes);
    uint32_t name_number = intern_string(reader, name.bytes, name.nbytes);
    struct device *defined = push(reader, &section->devices, sizeof *defined);
    if (defined) *defined = (struct device){(uint32_t)device, pci_number, name_number, nbytes};
}

static void add_blob(struct vramreader *reader, struct writer *writer, struct text name, uint64_t part, uint64_t parts,
                     uint32_t position, uint64_t nbytes) {
    const struct chunk *chunk = &AT(writer->chunks, struct chunk, writer->next);
    if (reader->blobs.count >= MAX_BLOBS) return damaged_here(reader, writer, DAMAGE_LIMIT);
    uint32_t name_number = intern_string(reader, name.bytes, name.nbytes);
    struct row_blob *row = push(reader, &reader->blobs, sizeof *row);
    if (row)
        *row = (struct row_blob){chunk->offset + position, nbytes,         part,        parts,
                                 writer->section,          writer->number, chunk->file, name_number};
}

/* ---- time ---- */

enum { SECOND = 1000000000 };

/* A writer's records are in the order of what its thread did. A call that ends after others began inside it
 * is stamped with its beginning: it counts as being no earlier than they are. */
static bool take_time(struct vramreader *reader, struct writer *writer, uint64_t difference, uint64_t *time) {
    int64_t change = (int64_t)difference;
    if (change > (int64_t)1 << 53 || change < -((int64_t)1 << 53)) return false;
    int64_t raw = (int64_t)writer->time + change;
    if (raw < 0) return false;
    writer->time = (uint64_t)raw;
    uint64_t relative = relative_time(SECTION(reader, writer->section), (uint64_t)raw);
    if (unlikely(relative > writer->ceiling)) {
        if (relative - writer->ceiling > SECOND) damaged_here(reader, writer, DAMAGE_TIME);
        relative = writer->ceiling;
    }
    if (unlikely(relative < writer->floor)) {
        if (writer->floor - relative > SECOND) damaged_here(reader, writer, DAMAGE_TIME);
        relative = writer->floor;
    }
    *time = writer->floor = relative;
    return true;
}

static uint32_t known_number(struct vramreader *reader, struct writer *writer, uint64_t value, uint64_t defined) {
    if (likely(value <= defined)) return (uint32_t)value;
    if (writer->broken)
        SECTION(reader, writer->section)->row.lost_stacks++;
    else
        damaged_here(reader, writer, DAMAGE_REFERENCE);
    return 0;
}

/* ---- records ---- */

enum outcome { OUTCOME_EVENT, OUTCOME_DEFINITION, OUTCOME_BAD, OUTCOME_CUT };

#define NUMBER() number(&at, &bad)
#define SIGNED() signed_number(&at, &bad)
#define TEXT() text(&at, end, &bad, &cut)
/* Nothing of a record is used before all of it is known to be there. */
#define CHECK() \
    do { \
        if (unlikely(bad)) return OUTCOME_BAD; \
        if (unlikely(cut || at > end)) return OUTCOME_CUT; \
        writer->position = (uint32_t)(at - writer->buffer); \
    } while (0)

static enum outcome decode_definition(struct vramreader *reader, struct writer *writer, uint8_t type, const uint8_t *at,
                                      const uint8_t *end) {
    bool bad = false, cut = false;
    switch (type) {
    case RECORD_THREAD: {
        uint64_t thread = NUMBER();
        TEXT();
        CHECK();
        writer->thread = (uint32_t)thread;
        note_thread(reader, writer->section, (uint32_t)thread);
        return OUTCOME_DEFINITION;
    }
    case RECORD_WHERE: {
        uint64_t context = NUMBER(), device = NUMBER(), stream = NUMBER();
        CHECK();
        define_where(reader, writer, context, device, stream);
        return OUTCOME_DEFINITION;
    }
    case RECORD_PLACE: {
        uint32_t language = *at++;
        struct text function = TEXT(), file = TEXT();
        uint64_t line = cut ? 0 : NUMBER();
        CHECK();
        define_place(reader, writer, language, function, file, line);
        return OUTCOME_DEFINITION;
    }
    case RECORD_NODE: {
        uint64_t parent = NUMBER(), place = NUMBER();
        CHECK();
        define_node(reader, writer, parent, place);
        return OUTCOME_DEFINITION;
    }
    case RECORD_DEVICE: {
        uint64_t device = NUMBER();
        struct text pci = TEXT(), name = TEXT();
        uint64_t nbytes = cut ? 0 : NUMBER();
        CHECK();
        define_device(reader, writer, device, pci, name, nbytes);
        return OUTCOME_DEFINITION;
    }
    case RECORD_BLOB: {
        struct text name = TEXT();
        if (bad || cut) return bad ? OUTCOME_BAD : OUTCOME_CUT;
        uint64_t part = NUMBER(), parts = NUMBER(), nbytes = NUMBER();
        if (nbytes > CHUNK_NBYTES)
            bad = true;
        else if (at > end || nbytes > (uint64_t)(end - at))
            cut = true;
        uint32_t position = (uint32_t)(at - writer->buffer);
        if (!bad && !cut) at += nbytes;
        CHECK();
        add_blob(reader, writer, name, part, parts, position, nbytes);
        return OUTCOME_DEFINITION;
    }
    default: return OUTCOME_BAD;
    }
}

static enum outcome decode_event(struct vramreader *reader, struct writer *writer, uint8_t type, const uint8_t *at,
                                 const uint8_t *end) {
    struct event *event = &writer->event;
    bool bad = false, cut = false;
    uint64_t time, where = 0, node = 0;
    event->type = type;
    event->kind = 255;
    if (likely(type >= RECORD_ALLOC && type < 0x80)) {
        time = SIGNED();
        where = NUMBER();
        event->address = writer->address + SIGNED();
        if (type < RECORD_FREE) {
            event->type = RECORD_ALLOC;
            event->kind = type - RECORD_ALLOC;
            event->space = space_of_kind[event->kind];
            event->nbytes = NUMBER();
            node = NUMBER();
        } else {
            event->type = RECORD_FREE;
            event->space = type - RECORD_FREE;
        }
        CHECK();
        writer->address = event->address;
        event->hash = expect_allocation(reader, writer->section, event->space, event->address);
    } else {
        struct text said = {0};
        switch (type) {
        case RECORD_FAILED:
            event->kind = *at++;
            time = SIGNED();
            where = NUMBER();
            event->nbytes = NUMBER();
            event->extra = NUMBER();
            node = NUMBER();
            break;
        case RECORD_MAP:
        case RECORD_UNMAP:
            time = SIGNED();
            where = NUMBER();
            event->address = writer->address + SIGNED();
            event->nbytes = NUMBER();
            if (type == RECORD_MAP) event->extra = NUMBER();
            break;
        case RECORD_RETAIN:
            time = SIGNED();
            event->address = NUMBER();
            break;
        case RECORD_GAP:
            event->extra = *at++;
            event->kind = *at++;
            time = SIGNED();
            break;
        case RECORD_END:
            event->kind = *at++;
            time = SIGNED();
            event->extra = NUMBER();
            event->nbytes = NUMBER();
            break;
        case RECORD_MARK:
            time = SIGNED();
            said = TEXT();
            break;
        case RECORD_BEFORE:
            time = SIGNED();
            event->extra = NUMBER();
            event->nbytes = NUMBER();
            said = TEXT();
            break;
        case RECORD_TRIM:
            time = SIGNED();
            where = NUMBER();
            event->address = NUMBER();
            event->nbytes = NUMBER();
            break;
        default: return OUTCOME_BAD;
        }
        CHECK();
        if (type == RECORD_MAP || type == RECORD_UNMAP) writer->address = event->address;
        event->text = said.bytes;
        event->text_nbytes = said.nbytes;
    }
    if (!take_time(reader, writer, time, &event->time)) return OUTCOME_BAD;
    event->where = known_number(reader, writer, where, writer->wheres.count);
    event->node = known_number(reader, writer, node, writer->nodes.count);
    return OUTCOME_EVENT;
}

static bool is_definition(uint8_t type) {
    return (type >= RECORD_THREAD && type <= RECORD_NODE) || type == RECORD_BLOB || type == RECORD_DEVICE;
}

enum decoded decode(struct vramreader *reader, struct writer *writer) {
    const uint8_t *end = writer->buffer + writer->limit;
    while (!reader->error && writer->position < writer->limit) {
        const uint8_t *at = writer->buffer + writer->position;
        uint8_t type = *at;
        if (!type || (writer->earlier && !writer->earlier[writer->position])) break;
        enum outcome outcome = is_definition(type) ? decode_definition(reader, writer, type, at + 1, end)
                                                   : decode_event(reader, writer, type, at + 1, end);
        if (outcome == OUTCOME_EVENT) return DECODED_EVENT;
        if (outcome == OUTCOME_DEFINITION) continue;
        damaged_here(reader, writer, outcome == OUTCOME_CUT ? DAMAGE_CUT : DAMAGE_RECORD);
        if (outcome == OUTCOME_BAD) SECTION(reader, writer->section)->row.unreadable_chunks++;
        writer->broken = true;
        writer->position = writer->limit;
    }
    return DECODED_END_OF_CHUNK;
}
