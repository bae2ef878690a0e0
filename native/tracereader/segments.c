/* Which memory of the driver a framework's blocks lie in: such memory is the framework's cache.
 *
 * Kept only for processes that have such blocks, as an array sorted by address.
 */
#include "internal.h"

#include <string.h>

/* Rows moved for insertions, in all: files made to be slow end here. */
#define MAX_MOVED ((uint64_t)1 << 31)

static bool has_address(const struct allocation *allocation) {
    return allocation->space == SPACE_MAPPING ||
           (allocation->space == SPACE_DEVICE && allocation->kind <= KIND_STREAM_ORDERED);
}

/* The first segment that ends after *address*. */
static uint64_t position(const struct section *section, uint64_t address) {
    uint64_t low = 0, high = section->segments.count;
    while (low < high) {
        uint64_t middle = (low + high) / 2;
        if (AT(section->segments, struct segment, middle).end <= address)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

static void insert(struct vramreader *reader, struct section *section, uint32_t index) {
    const struct allocation *allocation = allocation_at(reader, index);
    uint64_t first = allocation->address, end;
    if (!allocation->nbytes || __builtin_add_overflow(first, allocation->nbytes, &end)) return;
    uint64_t at = position(section, first);
    if (at < section->segments.count && AT(section->segments, struct segment, at).first < end)
        return; /* overlaps another one: an address that was used again without a record of the free */
    reader->segments_moved += section->segments.count - at;
    if (section->segments.count >= MAX_SEGMENTS || reader->segments_moved > MAX_MOVED) {
        if (!section->too_many_segments)
            damaged(reader, DAMAGE_SEGMENTS, allocation->section, section->row.file, section->offset, 1);
        section->too_many_segments = true;
        return;
    }
    if (!push(reader, &section->segments, sizeof(struct segment))) return;
    struct segment *place = &AT(section->segments, struct segment, at);
    memmove(place + 1, place, (section->segments.count - 1 - at) * sizeof *place);
    *place = (struct segment){first, end, index};
}

void segment_added(struct vramreader *reader, uint32_t index) {
    const struct allocation *allocation = allocation_at(reader, index);
    struct section *section = SECTION(reader, allocation->section);
    if (section->has_segments && has_address(allocation)) insert(reader, section, index);
}

void segment_removed(struct vramreader *reader, uint32_t index) {
    const struct allocation *allocation = allocation_at(reader, index);
    struct section *section = SECTION(reader, allocation->section);
    if (!section->has_segments || !has_address(allocation)) return;
    uint64_t at = position(section, allocation->address);
    if (at >= section->segments.count || AT(section->segments, struct segment, at).allocation != index) return;
    struct segment *place = &AT(section->segments, struct segment, at);
    memmove(place, place + 1, (section->segments.count - 1 - at) * sizeof *place);
    section->segments.count--;
}

static void begin(struct vramreader *reader, uint32_t number) {
    struct section *section = SECTION(reader, number);
    section->has_segments = true;
    reader->segments_moved += reader->allocation_count;
    if (reader->segments_moved > MAX_MOVED) return;
    for (uint32_t at = 0; at < reader->allocation_count && !reader->error; at++) {
        const struct allocation *allocation = allocation_at(reader, at);
        if (allocation->state == STATE_LIVE && allocation->section == number && has_address(allocation))
            insert(reader, section, at);
    }
}

void block_added(struct vramreader *reader, uint32_t number, uint64_t address, uint8_t kind) {
    struct section *section = SECTION(reader, number);
    if (!section->has_segments) begin(reader, number);
    uint64_t at = position(section, address);
    if (at >= section->segments.count || AT(section->segments, struct segment, at).first > address) return;
    struct allocation *allocation = allocation_at(reader, AT(section->segments, struct segment, at).allocation);
    allocation->framework = kind;
    if (allocation->space == SPACE_MAPPING) allocation_at(reader, allocation->maps)->framework = kind;
}
