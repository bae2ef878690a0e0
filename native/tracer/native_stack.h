// The native frames of the calling thread: return addresses, and what they belong to.
#ifndef VRAM_TRACER_NATIVE_STACK_H
#define VRAM_TRACER_NATIVE_STACK_H

#include <stdbool.h>
#include <stdint.h>

// Loads libgcc's unwinder and looks for Python in the program. To be called once, where taking the loader's lock is
// harmless; native_walk does it otherwise. False where there is no such unwinder.
bool native_prepare(void);

// Return addresses, innermost first, and their number: without the frames of this library, libcupti and libcuda at the
// inner end. Where call_frames.h cannot go on, libgcc's unwinder starts again from the beginning; 0 where that is
// missing. `unloads` becomes the loader's count of unloaded libraries: while it is the same, an address is in the same
// library as before.
int native_walk(uintptr_t *addresses, int most, unsigned long long *unloads);

// The same by libgcc alone, which is slower: 150 to 300 ns a frame instead of 5 to 10.
int native_walk_by_libgcc(uintptr_t *addresses, int most);

struct native_place {
    char library[1024]; // absolute path of the file, or what the loader calls it
    char symbol[512];   // as the library exports it, cut, not demangled; "" where it exports none there, or too many
    char build_id[65];  // in hexadecimal, as in `readelf -n`; "" where the library has none
    uint64_t offset;    // of the call in the library: what addr2line and vram.trace.symbols take
};

// Describes an address of the calling thread's native_walk: since that is where a call returns to, the byte before it
// counts. Takes no lock of the loader for longer than a list of libraries is read. False where no library is there.
bool native_describe(uintptr_t address, struct native_place *place);

// Whether an address of native_walk lies in Python itself: in libpython, or in the program where that is Python.
bool native_is_python(uintptr_t address);

#endif
