/* Places and stacks of all writers, joined by content: a stack is its innermost node. */
#include "internal.h"

#include <string.h>

uint32_t intern_string(struct vramreader *reader, const uint8_t *bytes, uint64_t nbytes) {
    if (!lookup_room(reader, &reader->string_lookup)) return 0;
    uint32_t hash = (uint32_t)hash_bytes(reader, bytes, nbytes);
    struct lookup *lookup = &reader->string_lookup;
    for (uint64_t at = hash & lookup->mask; lookup->slots[at].number; at = (at + 1) & lookup->mask) {
        if (lookup->slots[at].hash != hash) continue;
        const struct row_string *row = &AT(reader->strings, struct row_string, lookup->slots[at].number - 1);
        if (row->nbytes == nbytes && (!nbytes || !memcmp(reader->bytes.items + row->offset, bytes, nbytes)))
            return lookup->slots[at].number;
    }
    uint64_t offset = reader->bytes.count;
    if (reader->strings.count >= NONE - 1) {
        fail(reader, VRAMREADER_NO_MEMORY);
        return 0;
    }
    if (nbytes) {
        uint8_t *copy = push_many(reader, &reader->bytes, 1, nbytes);
        if (!copy) return 0;
        memcpy(copy, bytes, nbytes);
    }
    struct row_string *row = push(reader, &reader->strings, sizeof *row);
    if (!row) return 0;
    *row = (struct row_string){offset, nbytes};
    lookup_add(lookup, hash, (uint32_t)reader->strings.count);
    return (uint32_t)reader->strings.count;
}

uint32_t intern_place(struct vramreader *reader, uint32_t language, uint32_t function, uint32_t file, uint64_t line) {
    if (!lookup_room(reader, &reader->place_lookup)) return 0;
    struct row_place wanted = {line, language, function, file, 0};
    uint32_t hash = (uint32_t)hash_bytes(reader, &wanted, sizeof wanted);
    struct lookup *lookup = &reader->place_lookup;
    for (uint64_t at = hash & lookup->mask; lookup->slots[at].number; at = (at + 1) & lookup->mask)
        if (lookup->slots[at].hash == hash &&
            !memcmp(&AT(reader->places, struct row_place, lookup->slots[at].number - 1), &wanted, sizeof wanted))
            return lookup->slots[at].number;
    struct row_place *row = push(reader, &reader->places, sizeof *row);
    if (!row) return 0;
    *row = wanted;
    lookup_add(lookup, hash, (uint32_t)reader->places.count);
    return (uint32_t)reader->places.count;
}

uint32_t intern_node(struct vramreader *reader, uint32_t parent, uint32_t place) {
    if (!lookup_room(reader, &reader->node_lookup)) return 0;
    uint32_t hash = (uint32_t)hash_number(reader, (uint64_t)parent << 32 | place);
    struct lookup *lookup = &reader->node_lookup;
    for (uint64_t at = hash & lookup->mask; lookup->slots[at].number; at = (at + 1) & lookup->mask) {
        if (lookup->slots[at].hash != hash) continue;
        const struct row_node *row = &AT(reader->nodes, struct row_node, lookup->slots[at].number - 1);
        if (row->parent == parent && row->place == place) return lookup->slots[at].number;
    }
    struct row_node *row = push(reader, &reader->nodes, sizeof *row);
    if (!row) return 0;
    *row = (struct row_node){parent, place};
    lookup_add(lookup, hash, (uint32_t)reader->nodes.count);
    return (uint32_t)reader->nodes.count;
}
