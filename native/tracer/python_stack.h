// The Python frames of the calling thread, read without the GIL and without Python's headers.
#ifndef VRAM_TRACER_PYTHON_STACK_H
#define VRAM_TRACER_PYTHON_STACK_H

#include <stdbool.h>
#include <stdint.h>

enum python_state {
    PYTHON_ABSENT,     // no CPython in this process, so far
    PYTHON_SUPPORTED,  // one of the versions in python_layouts.h
    PYTHON_UNSUPPORTED // another version, a free-threaded build, or one whose structures are laid out differently
};

// Looks for a CPython in this process. Safe at any time and from any thread; may be called again, since a program
// can load a libpython later: while nothing new was loaded, that costs about 0.1 µs. The first call should be where
// taking the loader's lock is harmless. Until it has answered PYTHON_SUPPORTED once, python_walk finds no frames.
enum python_state python_find(void);

// Of the Python that was found, "3.12.1"; "" where none was found.
const char *python_version(void);

// A place in a running function: its code object, and the offset in bytes of the running instruction in its
// bytecode; PYTHON_NOT_STARTED where none has run yet.
struct python_frame {
    const void *code;
    uint32_t instruction;
};
#define PYTHON_NOT_STARTED UINT32_MAX

// The frames of the calling thread, innermost first, and their number; 0 where the thread runs no Python. Takes no
// lock and no GIL, changes no reference count and allocates nothing: it reads the thread's own chain of frames,
// which stay alive while the thread is in the call that led here. The frames are those of Python's traceback.
// In a sub-interpreter of 3.9 to 3.11 while the GIL is released: the frames of the thread's first interpreter.
int python_walk(struct python_frame *frames, int most);

struct python_place {
    char function[256]; // "Model.forward" from 3.11 on, "forward" before; where the former is too long, the latter
    char file[1024];
    int line; // of the instruction; 0 where it belongs to no line
    int first_line;
};

// Describes a frame while it is still running: names as UTF-8, cut between two characters to the buffers' sizes. A
// surrogate (an undecodable byte of a file name) becomes "?"; a string that is no exact, compact str reads "?".
// False, with nothing written, where the memory does not look like a code object.
bool python_describe(const struct python_frame *frame, struct python_place *place);

// A number that changes when another code object now lies at the same address. From 3.12 on from the number that
// Python gives every code object (3 loads); before, from the first line, the names' addresses, lengths and contents (the
// last 8 bytes of the file's name, 8 of the qualified name), and the line table's size and beginning.
uint64_t python_code_stamp(const void *code);

#endif
