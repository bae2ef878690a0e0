/* Free ranges in a sorted array: lookups are short, and neighbours join on return. */
#include "client.h"

#include <stdlib.h>
#include <string.h>

static bool make_room(struct extents *extents, size_t needed) {
    if (needed <= extents->capacity) return true;
    size_t capacity = needed < 8 ? 8 : needed * 2;
    struct extent *grown = store_step_fails("step.extents") ? NULL : realloc(extents->free, capacity * sizeof *grown);
    if (!grown) return false;
    extents->free = grown;
    extents->capacity = capacity;
    return true;
}

bool extents_take(struct extents *extents, uint64_t nbytes, uint64_t *begin) {
    /* Between n ranges in use lie n + 1 free ones at most. */
    if (!make_room(extents, extents->taken + 2)) return false;
    for (size_t i = 0; i < extents->count; i++) {
        struct extent *extent = &extents->free[i];
        if (extent->end - extent->begin < nbytes) continue;
        *begin = extent->begin;
        extents->taken++;
        extent->begin += nbytes;
        if (extent->begin == extent->end) memmove(extent, extent + 1, (--extents->count - i) * sizeof *extent);
        return true;
    }
    return false;
}

static size_t first_after(const struct extents *extents, uint64_t begin) {
    size_t low = 0, high = extents->count;
    while (low < high) {
        size_t middle = (low + high) / 2;
        if (extents->free[middle].begin < begin)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

bool extents_give(struct extents *extents, uint64_t begin, uint64_t nbytes) {
    uint64_t end;
    if (!size_add(begin, nbytes, &end) || !make_room(extents, extents->count + 1)) return false;
    if (extents->taken) extents->taken--;
    size_t at = first_after(extents, begin);
    struct extent *free = extents->free;
    bool joins_left = at > 0 && free[at - 1].end == begin;
    bool joins_right = at < extents->count && free[at].begin == end;
    if (joins_left && joins_right) {
        free[at - 1].end = free[at].end;
        memmove(&free[at], &free[at + 1], (--extents->count - at) * sizeof *free);
    } else if (joins_left) {
        free[at - 1].end = end;
    } else if (joins_right) {
        free[at].begin = begin;
    } else {
        memmove(&free[at + 1], &free[at], (extents->count++ - at) * sizeof *free);
        free[at] = (struct extent){begin, end};
    }
    return true;
}

bool extents_all_free(const struct extents *extents, uint64_t nbytes) {
    return extents->count == 1 && extents->free[0].begin == 0 && extents->free[0].end == nbytes;
}

void extents_clear(struct extents *extents) {
    free(extents->free);
    *extents = (struct extents){0};
}
