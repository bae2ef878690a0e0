/* The table of live memory: allocations by process, space and address, and the lists of those in a context. */
#include "internal.h"

static uint32_t hash_of(const struct vramreader *reader, uint32_t section, uint8_t space, uint64_t address) {
    return (uint32_t)hash_number(reader, address + ((uint64_t)section << 6 | space) * 0x9e3779b97f4a7c15u);
}

uint32_t expect_allocation(const struct vramreader *reader, uint32_t section, uint8_t space, uint64_t address) {
    uint32_t hash = hash_of(reader, section, space, address);
    if (likely(reader->live.slots != NULL)) __builtin_prefetch(&reader->live.slots[hash & reader->live.mask]);
    return hash;
}

uint32_t find_allocation(const struct vramreader *reader, uint32_t section, uint8_t space, uint64_t address) {
    return find_expected(reader, hash_of(reader, section, space, address), section, space, address);
}

uint32_t find_expected(const struct vramreader *reader, uint32_t hash, uint32_t section, uint8_t space,
                       uint64_t address) {
    const struct lookup *lookup = &reader->live;
    if (!lookup->slots) return NONE;
    for (uint64_t at = hash & lookup->mask; lookup->slots[at].number; at = (at + 1) & lookup->mask) {
        if (lookup->slots[at].hash != hash) continue;
        uint32_t found = lookup->slots[at].number - 1;
        const struct allocation *allocation = allocation_at(reader, found);
        if (allocation->address == address && allocation->section == section && allocation->space == space)
            return found;
    }
    return NONE;
}

static uint32_t free_row(struct vramreader *reader) {
    if (reader->free_allocation != NONE) {
        uint32_t taken = reader->free_allocation;
        reader->free_allocation = allocation_at(reader, taken)->next;
        return taken;
    }
    if (reader->allocation_count == NONE - 1) {
        fail(reader, VRAMREADER_NO_MEMORY);
        return NONE;
    }
    if (reader->allocation_count % BLOCK == 0) {
        struct allocation **block = push(reader, &reader->blocks, sizeof *block);
        if (!block) return NONE;
        if (!(*block = take_memory(reader, BLOCK * sizeof **block))) {
            reader->blocks.count--;
            return NONE;
        }
    }
    return reader->allocation_count++;
}

uint32_t new_allocation(struct vramreader *reader, uint32_t section, uint8_t space, uint64_t address) {
    if (!lookup_room(reader, &reader->live)) return NONE;
    uint32_t taken = free_row(reader);
    if (taken == NONE) return NONE;
    *allocation_at(reader, taken) = (struct allocation){
        .address = address,
        .section = section,
        .space = space,
        .state = STATE_LIVE,
        .context = NONE,
        .references = 1,
    };
    lookup_add(&reader->live, hash_of(reader, section, space, address), taken + 1);
    return taken;
}

void forget_address(struct vramreader *reader, uint32_t index) {
    const struct allocation *allocation = allocation_at(reader, index);
    lookup_remove(&reader->live, hash_of(reader, allocation->section, allocation->space, allocation->address),
                  index + 1);
}

void release_allocation(struct vramreader *reader, uint32_t index) {
    struct allocation *allocation = allocation_at(reader, index);
    allocation->state = STATE_FREE;
    allocation->next = reader->free_allocation;
    reader->free_allocation = index;
}

void enter_context(struct vramreader *reader, uint32_t index, uint32_t number) {
    struct context *context = &AT(reader->contexts, struct context, number);
    struct allocation *allocation = allocation_at(reader, index);
    allocation->context = number;
    allocation->previous = NONE;
    allocation->next = context->first;
    if (context->first != NONE) allocation_at(reader, context->first)->previous = index;
    context->first = index;
}

void leave_context(struct vramreader *reader, uint32_t index) {
    struct allocation *allocation = allocation_at(reader, index);
    if (allocation->context == NONE) return;
    if (allocation->previous == NONE)
        AT(reader->contexts, struct context, allocation->context).first = allocation->next;
    else
        allocation_at(reader, allocation->previous)->next = allocation->next;
    if (allocation->next != NONE) allocation_at(reader, allocation->next)->previous = allocation->previous;
    allocation->context = NONE;
}
