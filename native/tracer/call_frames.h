// Return addresses of the calling thread by the libraries' own tables of call frames, with what they said remembered.
#ifndef VRAM_TRACER_CALL_FRAMES_H
#define VRAM_TRACER_CALL_FRAMES_H

#include <stdbool.h>
#include <stdint.h>

// How to go from a function to its caller: its frame ends at the stack pointer or the base pointer (rbp, x29) plus an
// offset. Distances are in bytes from that end.
struct frame_rule {
    enum frame_kind { FRAME_UNKNOWN, FRAME_OUTERMOST, FRAME_BY_STACK_POINTER, FRAME_BY_BASE_POINTER } kind;
    bool saves_base_pointer;
    int32_t size;           // what to add for the frame's end
    int32_t base_pointer;   // where the caller's base pointer lies
    int32_t return_address; // where the return address lies
};

// The rule at a return address, from the table of the library that contains it. FRAME_UNKNOWN for what is written in
// other than the common forms, and where no library is.
struct frame_rule frame_rule_read(uintptr_t address);

// Stores the return addresses of the calling function and its callers, innermost first, without those at the inner end
// that `is_left_out` names, and returns their number; -1 where a rule is unknown, or on other processors.
// `unloads` is the loader's count of unloaded libraries: what was remembered of an address holds until that changes.
int call_frames_walk(uintptr_t *addresses, int most, bool (*is_left_out)(uintptr_t), unsigned long long unloads);

#endif
