/* Memory within the reader's limit, growing arrays, and numbers by key.
 *
 * Hashes depend on a random seed: the contents of a file cannot be chosen so that all keys collide.
 */
#include "internal.h"

#include <stdlib.h>
#include <string.h>

void fail(struct vramreader *reader, int error) {
    if (!reader->error) reader->error = error;
}

void *take_memory(struct vramreader *reader, uint64_t nbytes) {
    if (nbytes > reader->limit - reader->used) {
        fail(reader, VRAMREADER_NO_MEMORY);
        return NULL;
    }
    void *memory = calloc(1, nbytes ? nbytes : 1);
    if (!memory)
        fail(reader, VRAMREADER_NO_MEMORY);
    else
        reader->used += nbytes;
    return memory;
}

void release_memory(struct vramreader *reader, void *memory, uint64_t nbytes) {
    if (!memory) return;
    free(memory);
    reader->used -= nbytes;
}

/* ---- arrays ---- */

static bool grow(struct vramreader *reader, struct vector *vector, size_t item_nbytes, uint64_t needed) {
    uint64_t capacity = vector->capacity ? vector->capacity : 4;
    /* By halves once it is large, for the limit's sake. */
    while (capacity < needed) capacity += capacity < 65536 ? capacity : capacity / 2;
    uint64_t nbytes, old = vector->capacity * item_nbytes;
    if (__builtin_mul_overflow(capacity, item_nbytes, &nbytes) || nbytes - old > reader->limit - reader->used) {
        fail(reader, VRAMREADER_NO_MEMORY);
        return false;
    }
    uint8_t *items = realloc(vector->items, nbytes);
    if (!items) {
        fail(reader, VRAMREADER_NO_MEMORY);
        return false;
    }
    reader->used += nbytes - old;
    vector->items = items;
    vector->capacity = capacity;
    return true;
}

void *push_many(struct vramreader *reader, struct vector *vector, size_t item_nbytes, uint64_t count) {
    if (vector->count + count > vector->capacity && !grow(reader, vector, item_nbytes, vector->count + count))
        return NULL;
    if (!count) return vector->items; /* NULL in an empty one, which is no error */
    uint8_t *item = vector->items + vector->count * item_nbytes;
    memset(item, 0, count * item_nbytes);
    vector->count += count;
    return item;
}

void *push(struct vramreader *reader, struct vector *vector, size_t item_nbytes) {
    return push_many(reader, vector, item_nbytes, 1);
}

void release_vector(struct vramreader *reader, struct vector *vector, size_t item_nbytes) {
    release_memory(reader, vector->items, vector->capacity * item_nbytes);
    *vector = (struct vector){0};
}

/* ---- hashes ---- */

static inline uint64_t mix(uint64_t value) {
    value ^= value >> 32;
    value *= 0xd6e8feb86659fd93u;
    value ^= value >> 32;
    value *= 0xd6e8feb86659fd93u;
    return value ^ value >> 32;
}

uint64_t hash_number(const struct vramreader *reader, uint64_t value) {
    return mix((value ^ reader->seed[0]) + reader->seed[1]);
}

uint64_t hash_bytes(const struct vramreader *reader, const void *bytes, size_t nbytes) {
    const uint8_t *at = bytes;
    uint64_t hash = reader->seed[1] ^ nbytes;
    for (; nbytes >= 8; at += 8, nbytes -= 8) {
        uint64_t word;
        memcpy(&word, at, 8);
        hash = mix(hash ^ word ^ reader->seed[0]);
    }
    uint64_t rest = 0;
    if (nbytes) memcpy(&rest, at, nbytes);
    return mix(hash ^ rest ^ reader->seed[0]);
}

/* ---- numbers by a key ---- */

static bool grow_map(struct vramreader *reader, struct map *map) {
    uint64_t slots = map->keys ? (map->mask + 1) * 2 : 16;
    uint64_t *keys = take_memory(reader, slots * sizeof *keys);
    uint32_t *values = keys ? take_memory(reader, slots * sizeof *values) : NULL;
    if (!values) {
        release_memory(reader, keys, slots * sizeof *keys);
        return false;
    }
    struct map old = *map;
    *map = (struct map){keys, values, slots - 1, old.count};
    for (uint64_t at = 0; old.keys && at <= old.mask; at++) {
        if (!old.values[at]) continue;
        uint64_t to = hash_number(reader, old.keys[at]) & map->mask;
        while (map->values[to]) to = (to + 1) & map->mask;
        map->keys[to] = old.keys[at];
        map->values[to] = old.values[at];
    }
    release_map(reader, &old);
    return true;
}

uint32_t *map_value(struct vramreader *reader, struct map *map, uint64_t key) {
    if ((!map->keys || map->count * 3 >= (map->mask + 1) * 2) && !grow_map(reader, map)) return NULL;
    uint64_t at = hash_number(reader, key) & map->mask;
    while (map->values[at]) {
        if (map->keys[at] == key) return &map->values[at];
        at = (at + 1) & map->mask;
    }
    /* The caller sets the value, which makes the slot count. */
    map->keys[at] = key;
    map->count++;
    return &map->values[at];
}

void release_map(struct vramreader *reader, struct map *map) {
    if (!map->keys) return;
    release_memory(reader, map->keys, (map->mask + 1) * sizeof *map->keys);
    release_memory(reader, map->values, (map->mask + 1) * sizeof *map->values);
    *map = (struct map){0};
}

/* ---- rows by content ---- */

bool lookup_room(struct vramreader *reader, struct lookup *lookup) {
    if (lookup->slots && lookup->count * 3 < (lookup->mask + 1) * 2) return true;
    uint64_t slots = lookup->slots ? (lookup->mask + 1) * 2 : 64;
    struct slot *taken = take_memory(reader, slots * sizeof *taken);
    if (!taken) return false;
    struct lookup old = *lookup;
    *lookup = (struct lookup){taken, slots - 1, 0};
    for (uint64_t at = 0; old.slots && at <= old.mask; at++)
        if (old.slots[at].number) lookup_add(lookup, old.slots[at].hash, old.slots[at].number);
    release_lookup(reader, &old);
    return true;
}

void lookup_remove(struct lookup *lookup, uint32_t hash, uint32_t number) {
    uint64_t at = hash & lookup->mask;
    while (lookup->slots[at].number != number) {
        if (!lookup->slots[at].number) return;
        at = (at + 1) & lookup->mask;
    }
    /* What follows moves up, so that no search ends at the gap. */
    for (uint64_t next = (at + 1) & lookup->mask; lookup->slots[next].number; next = (next + 1) & lookup->mask) {
        uint64_t home = lookup->slots[next].hash & lookup->mask;
        if (((next - home) & lookup->mask) < ((next - at) & lookup->mask)) continue;
        lookup->slots[at] = lookup->slots[next];
        at = next;
    }
    lookup->slots[at] = (struct slot){0};
    lookup->count--;
}

void release_lookup(struct vramreader *reader, struct lookup *lookup) {
    if (lookup->slots) release_memory(reader, lookup->slots, (lookup->mask + 1) * sizeof *lookup->slots);
    *lookup = (struct lookup){0};
}
