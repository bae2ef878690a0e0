// The native frames of the calling thread: return addresses, and what they belong to.
#ifndef VRAM_TRACER_NATIVE_STACK_H
#define VRAM_TRACER_NATIVE_STACK_H

#include <stdbool.h>
#include <stdint.h>

// Loads the unwinder (libgcc_s) and reads which libraries are where. To be called once, where loading a library is
// harmless; native_walk does it otherwise. False where there is no unwinder.
bool native_prepare(void);

// Return addresses, innermost first, and their number: without the frames of this library, libcupti and libcuda at the
// inner end. 0 where there is no unwinder.
int native_walk(uintptr_t *addresses, int most);

struct native_place {
    char library[1024]; // absolute path of the file, or what the loader calls it
    char symbol[512];   // as the library exports it, not demangled; "" where unknown
    uint64_t offset;    // of the call in the library: what addr2line and vram.trace.symbols take
};

// Describes an address of native_walk: since that is where a call returns to, the byte before it counts. False where
// no library is there.
bool native_describe(uintptr_t address, struct native_place *place);

// Whether an address of native_walk lies in Python itself: in libpython, or in the program where that is Python.
bool native_is_python(uintptr_t address);

#endif
