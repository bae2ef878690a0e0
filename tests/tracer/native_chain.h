// A chain of calls through several libraries, whose last one walks the native stack.
#ifndef VRAM_TEST_NATIVE_CHAIN_H
#define VRAM_TEST_NATIVE_CHAIN_H

#include <stdint.h>

struct chain {
    int (*const *functions)(struct chain *); // whom each calls: the one at `at`, which is counted up
    int at;
    int most;
    int count;
    uintptr_t *addresses;
};

#endif
