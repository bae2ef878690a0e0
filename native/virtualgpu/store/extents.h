/* Free ranges of a line of numbers: file offsets, slabs of small allocations, pool chunks. */
#ifndef VRAM_VIRTUALGPU_EXTENTS_H
#define VRAM_VIRTUALGPU_EXTENTS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct extent {
    uint64_t begin, end;
};

/* Sorted, never touching each other. Zero-initialised means: nothing is free. */
struct extents {
    struct extent *free;
    size_t count, capacity;
};

/* First fit; false where no single range is large enough. */
bool extents_take(struct extents *extents, uint64_t nbytes, uint64_t *begin);
/* Adds a range, joining its neighbours; false where memory ran out. */
bool extents_give(struct extents *extents, uint64_t begin, uint64_t nbytes);
/* Whether exactly [0, nbytes) is free, that is, nothing is in use. */
bool extents_all_free(const struct extents *extents, uint64_t nbytes);
void extents_clear(struct extents *extents);

#endif
