/* Holes between the address ranges that are live: at a GPU's peak, and at the end. */
#include "internal.h"

#include <string.h>

/* Addresses further apart than this are no neighbours: other parts of the address space, no hole. */
#define NEIGHBOURS ((uint64_t)1 << 30)

struct range {
    uint64_t address, nbytes;
    uint32_t process, stack;
};

static bool has_range(const struct allocation *allocation) {
    return is_on_gpu(allocation->kind) && (allocation->space == SPACE_MAPPING || allocation->space == SPACE_DEVICE);
}

enum { DIGIT_BITS = 11, DIGITS = 1 << DIGIT_BITS, ADDRESS_DIGITS = 6, PROCESS_DIGITS = 3 };

static uint32_t digit(const struct range *range, uint32_t number) {
    if (number < ADDRESS_DIGITS) return range->address >> number * DIGIT_BITS & (DIGITS - 1);
    return range->process >> (number - ADDRESS_DIGITS) * DIGIT_BITS & (DIGITS - 1);
}

/* By process and address: digit by digit, since a trace may have millions of them. */
static void sort_ranges(struct vramreader *reader, struct range *ranges, uint64_t count) {
    struct range *other = take_memory(reader, count * sizeof *other);
    if (!other) return;
    struct range *from = ranges, *to = other;
    for (uint32_t number = 0; number < ADDRESS_DIGITS + PROCESS_DIGITS; number++) {
        uint64_t starts[DIGITS] = {0};
        for (uint64_t at = 0; at < count; at++) starts[digit(&from[at], number)]++;
        if (starts[digit(&from[0], number)] == count) continue;
        for (uint64_t at = 0, sum = 0; at < DIGITS; at++) {
            uint64_t these = starts[at];
            starts[at] = sum;
            sum += these;
        }
        for (uint64_t at = 0; at < count; at++) to[starts[digit(&from[at], number)]++] = from[at];
        struct range *swapped = from;
        from = to;
        to = swapped;
    }
    if (from != ranges) memcpy(ranges, from, count * sizeof *ranges);
    release_memory(reader, other, count * sizeof *other);
}

/* How large a range must be to be among the largest that are kept; *equal* of exactly that size are, too. */
static uint64_t smallest_kept(struct vramreader *reader, const struct range *ranges, uint64_t count, uint64_t *equal) {
    *equal = count;
    if (count <= MAX_HOLE_BLOCKS) return 0;
    uint64_t *sizes = take_memory(reader, count * sizeof *sizes);
    if (!sizes) return UINT64_MAX;
    for (uint64_t at = 0; at < count; at++) sizes[at] = ranges[at].nbytes;
    uint64_t smallest = select_largest(sizes, count, MAX_HOLE_BLOCKS - 1), larger = 0;
    for (uint64_t at = 0; at < count; at++) larger += ranges[at].nbytes > smallest;
    *equal = MAX_HOLE_BLOCKS - larger;
    release_memory(reader, sizes, count * sizeof *sizes);
    return smallest;
}

static void measure_holes(struct vramreader *reader, const struct range *ranges, uint64_t count,
                          struct row_holes *row) {
    uint64_t from = ranges[0].address, end = from;
    for (uint64_t at = 0; at < count; at++) {
        uint64_t address = ranges[at].address, after;
        if (__builtin_add_overflow(address, ranges[at].nbytes, &after)) after = UINT64_MAX;
        row->live_nbytes += ranges[at].nbytes;
        if (address > end && address - end > NEIGHBOURS) {
            row->spanned_nbytes += end - from;
            from = address;
        } else if (address > end) {
            row->holes++;
            row->hole_nbytes += address - end;
            if (address - end > row->largest_hole) row->largest_hole = address - end;
        }
        if (after > end) end = after;
    }
    row->spanned_nbytes += end - from;
    if (reader->hole_blocks.count >= MAX_HOLE_BLOCKS_IN_ALL) return;
    uint64_t equal, smallest = smallest_kept(reader, ranges, count, &equal);
    row->first_block = reader->hole_blocks.count;
    for (uint64_t at = 0; at < count && !reader->error; at++) {
        if (ranges[at].nbytes < smallest || (ranges[at].nbytes == smallest && !equal)) continue;
        if (ranges[at].nbytes == smallest) equal--;
        struct row_block *block = push(reader, &reader->hole_blocks, sizeof *block);
        if (block) *block = (struct row_block){ranges[at].address, ranges[at].nbytes, ranges[at].stack, 0};
    }
    row->blocks = reader->hole_blocks.count - row->first_block;
}

static void add_range(struct vramreader *reader, struct vector *ranges, uint64_t address, uint64_t nbytes,
                      uint32_t site) {
    struct range *range = push(reader, ranges, sizeof *range);
    const struct row_site *row = &SITE(reader, site)->row;
    if (range) *range = (struct range){address, nbytes, row->process, row->stack};
}

void find_holes(struct vramreader *reader, uint32_t gpu, bool at_end) {
    struct vector ranges = {0};
    for (uint32_t at = 0; at < reader->allocation_count && !reader->error; at++) {
        const struct allocation *allocation = allocation_at(reader, at);
        if (allocation->state != STATE_LIVE || !has_range(allocation)) continue;
        if (SITE(reader, allocation->site)->row.gpu != (int32_t)gpu) continue;
        if (at_end || was_at_peak(reader, allocation))
            add_range(reader, &ranges, allocation->address, allocation->nbytes, allocation->site);
    }
    const struct vector *gone = &GPU(reader, gpu)->gone;
    for (uint64_t at = 0; !at_end && at < gone->count && !reader->error; at++) {
        const struct gone *row = &AT(*gone, struct gone, at);
        if (row->mapping || (space_of_kind[row->kind] == SPACE_DEVICE && is_on_gpu(row->kind)))
            add_range(reader, &ranges, row->address, row->nbytes, row->site);
    }
    if (ranges.count && !reader->error) sort_ranges(reader, (struct range *)ranges.items, ranges.count);
    for (uint64_t first = 0, next; first < ranges.count && !reader->error; first = next) {
        const struct range *all = (const struct range *)ranges.items;
        for (next = first; next < ranges.count && all[next].process == all[first].process;) next++;
        struct row_holes *row = push(reader, &reader->holes, sizeof *row);
        if (!row) break;
        *row = (struct row_holes){.gpu = gpu, .process = all[first].process, .at_end = at_end};
        row->at_ns = at_end ? reader->now : GPU(reader, gpu)->row.peak_ns;
        measure_holes(reader, all + first, next - first, row);
    }
    release_vector(reader, &ranges, sizeof(struct range));
}
