/* Arithmetic on sizes that come from callers, files or other processes.
 *
 * The first three say whether the result fits into 64 bits, and write it only then. The last two
 * stop at the end of the range, for totals that are only compared or shown.
 */
#ifndef VRAM_VIRTUALGPU_SIZES_H
#define VRAM_VIRTUALGPU_SIZES_H

#include <stdbool.h>
#include <stdint.h>

static inline bool size_add(uint64_t one, uint64_t other, uint64_t *sum) {
    uint64_t result;
    if (__builtin_add_overflow(one, other, &result)) return false;
    *sum = result;
    return true;
}

static inline bool size_multiply(uint64_t one, uint64_t other, uint64_t *product) {
    uint64_t result;
    if (__builtin_mul_overflow(one, other, &result)) return false;
    *product = result;
    return true;
}

static inline bool size_round_up(uint64_t value, uint64_t step, uint64_t *rounded) {
    uint64_t raised;
    if (!size_add(value, step - 1, &raised)) return false;
    *rounded = raised / step * step;
    return true;
}

/* Whether *nbytes* from *begin* on lie inside [0, whole). */
static inline bool size_within(uint64_t begin, uint64_t nbytes, uint64_t whole) {
    return begin <= whole && nbytes <= whole - begin;
}

static inline uint64_t size_sum(uint64_t one, uint64_t other) {
    uint64_t sum;
    return size_add(one, other, &sum) ? sum : UINT64_MAX;
}

static inline uint64_t size_left(uint64_t whole, uint64_t used) {
    return used < whole ? whole - used : 0;
}

#endif
