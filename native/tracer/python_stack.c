// Finds CPython at run time and reads the frames of the calling thread.
//
// Only what this thread's own chain of frames keeps alive is read: the thread is inside a call that one of these
// frames made, so neither the frames nor their code objects can go away. All offsets come from python_layouts.h or,
// from 3.13 on, from the table that Python publishes for debuggers.
#define _GNU_SOURCE
#include "python_stack.h"

#include <dlfcn.h>
#include <link.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/uio.h>
#include <unistd.h>

// Offsets in bytes, on 64-bit Linux (the same on x86-64 and aarch64); a field that the version lacks is 0.
struct layout {
    int minor;
    uint16_t finalizing; // _PyRuntimeState: the state of the thread that finalizes Python, or NULL
    uint16_t thread_id;  // PyThreadState: its pthread_t
    uint16_t frame;      // PyThreadState: frame (3.9, 3.10), cframe (3.11, 3.12), current_frame
    uint16_t current;    // _PyCFrame: current_frame (3.11, 3.12)
    uint16_t previous;   // PyFrameObject (3.9, 3.10) or _PyInterpreterFrame: the caller's frame
    uint16_t code;       // there: the code object
    uint16_t running;    // there: f_lasti (3.9, 3.10), prev_instr (3.11, 3.12), instr_ptr
    uint16_t owner;      // _PyInterpreterFrame: what the frame belongs to
    uint16_t first_line; // PyCodeObject: co_firstlineno
    uint16_t file;       // co_filename
    uint16_t name;       // co_name
    uint16_t qualified;  // co_qualname (from 3.11 on; 0 before): the name with its classes and outer functions
    uint16_t lines;      // co_lnotab (3.9), co_linetable
    uint16_t version;    // co_version: a number that no other code object of the interpreter has (from 3.12 on)
    uint16_t traceable;  // _co_firsttraceable: where the function begins, after its set-up instructions
    uint16_t bytecode;   // co_code_adaptive: the instructions, inside the code object
    uint16_t code_size;  // tp_basicsize of PyCode_Type
    uint16_t ascii_size; // sizeof(PyASCIIObject)
    uint16_t text_size;  // sizeof(PyCompactUnicodeObject)
};

#include "python_layouts.h"

// The same in every supported version: the beginnings of PyObject, PyTypeObject, PyBytesObject, PyASCIIObject.
enum {
    OBJECT_TYPE = 8,
    TYPE_NAME = 24,
    TYPE_BASIC_SIZE = 32,
    BYTES_LENGTH = 16,
    BYTES_DATA = 32,
    TEXT_LENGTH = 16,
    TEXT_HASH = 24,
    TEXT_STATE = 32,
};
enum { OWNED_BY_GENERATOR = 1, OWNED_BY_INTERPRETER = 3 }; // enum _frameowner; from 3 on: frames of C code
#define MAX_TABLE_LENGTH ((int64_t)1 << 28)                // of line numbers, in bytes
#define MAX_TEXT_LENGTH ((int64_t)1 << 32)                 // in characters

// The Python that was found.
static struct {
    struct layout layout;
    void *(*this_thread)(void); // PyGILState_GetThisThreadState
    int (*initialized)(void);   // Py_IsInitialized
    void *(*gil_holder)(void);  // _PyThreadState_UncheckedGet; needed up to 3.11 only
    void *(*newest)(void);      // PyInterpreterState_Head, likewise
    void *(*main_interpreter)(void);
    const char *runtime; // _PyRuntime
    const char *code_type, *text_type, *bytes_type;
    char version[32];
} python;
enum { EMPTY, FILLING, READY };
static atomic_int found = EMPTY; // whether the structure above is filled
static atomic_int state = PYTHON_ABSENT;
static _Atomic(unsigned long long) loads_at_last_search; // libraries loaded so far, plus one

// ---- reading memory ----

static inline uint64_t load_word(const char *at) {
    uint64_t value;
    memcpy(&value, at, sizeof value);
    return value;
}

static inline const char *load_pointer(const char *at) {
    return (const char *)(uintptr_t)load_word(at);
}

static inline int32_t load_int(const char *at) {
    int32_t value;
    memcpy(&value, at, sizeof value);
    return value;
}

// ---- finding Python ----

static int count_loads(struct dl_phdr_info *info, size_t size, void *count) {
    (void)size;
    *(unsigned long long *)count = info->dlpi_adds + 1;
    return 1; // one is enough: the counter is the same in all
}

static int find_library(struct dl_phdr_info *info, size_t size, void *path) {
    (void)size;
    const char *name = strrchr(info->dlpi_name, '/');
    name = name ? name + 1 : info->dlpi_name;
    if (strncmp(name, "libpython3.", 11) || strlen(info->dlpi_name) >= 4096) return 0;
    strcpy(path, info->dlpi_name);
    return 1;
}

// Where to look for Python's names: first among the program's; later in a libpython that was loaded since. Looking
// takes the loader's lock, and this may be called while another thread holds it and waits for CUDA: it must not happen
// for nothing. Where a plugin loaded Python for itself only, its names are not among the program's.
static bool find_scope(void **scope) {
    static atomic_bool has_looked;
    char path[4096];
    *scope = RTLD_DEFAULT;
    if (!atomic_exchange(&has_looked, true) && dlsym(RTLD_DEFAULT, "Py_GetVersion")) return true;
    if (!dl_iterate_phdr(find_library, path)) return false;
    *scope = dlopen(path, RTLD_LAZY | RTLD_NOLOAD);
    return *scope != NULL;
}

static bool is_exact_release(const char *text) {
    text += strspn(text, "0123456789.");
    return *text == ' ' || *text == '+' || *text == '\0' || !strncmp(text, "rc", 2);
}

static bool read_published(const char *runtime, int minor, struct layout *layout) {
    const struct published *table = NULL;
    for (size_t each = 0; each < sizeof published_tables / sizeof *published_tables; each++)
        if (published_tables[each].minor == minor) table = &published_tables[each];
    if (!table || memcmp(runtime, "xdebugpy", 8)) return false;
    uint64_t version = load_word(runtime + 8), free_threaded = load_word(runtime + 16);
    if (version >> 24 != 3 || (int)(version >> 16 & 0xff) != minor || free_threaded) return false;

    uint64_t runtime_size = load_word(runtime + table->runtime_size), thread = load_word(runtime + table->thread_size);
    uint64_t frame = load_word(runtime + table->frame_size), code = load_word(runtime + table->code_size);
    uint64_t ascii = load_word(runtime + table->ascii_size);
    if (runtime_size > 4 << 20 || thread > 4096 || frame > 4096 || code > 4096 || ascii > 256) return false;
    // Each offset, the size of what it points into, and the size of the field.
    const struct {
        uint16_t from;
        uint64_t structure;
        uint64_t field;
        uint16_t *to;
    } fields[] = {
        {table->finalizing, runtime_size, 8, &layout->finalizing},
        {table->current_frame, thread, 8, &layout->frame},
        {table->thread_id, thread, 8, &layout->thread_id},
        {table->previous, frame, 8, &layout->previous},
        {table->executable, frame, 8, &layout->code},
        {table->instruction, frame, 8, &layout->running},
        {table->owner, frame, 1, &layout->owner},
        {table->file, code, 8, &layout->file},
        {table->name, code, 8, &layout->name},
        {table->qualified, code, 8, &layout->qualified},
        {table->lines, code, 8, &layout->lines},
        {table->first_line, code, 4, &layout->first_line},
        {table->variables, code, 8, &layout->version},
        {table->bytecode, code, 2, &layout->bytecode},
    };
    for (size_t each = 0; each < sizeof fields / sizeof *fields; each++) {
        uint64_t offset = load_word(runtime + fields[each].from), field = fields[each].field;
        if (offset % field || offset > UINT16_MAX || offset + field > fields[each].structure) return false;
        *fields[each].to = (uint16_t)offset;
    }
    layout->minor = minor;
    if (layout->version < 16 || layout->bytecode < 64) return false;
    layout->version -= 4;                      // uint32_t co_version; PyObject *co_localsplusnames
    layout->traceable = layout->bytecode - 16; // int _co_firsttraceable; void *co_extra; char co_code_adaptive[]
    layout->code_size = layout->bytecode;
    layout->ascii_size = (uint16_t)ascii;
    layout->text_size = (uint16_t)ascii + 16;
    return load_word(runtime + table->type) == OBJECT_TYPE &&
           load_word(runtime + table->bytes_length) == BYTES_LENGTH &&
           load_word(runtime + table->bytes_data) == BYTES_DATA &&
           load_word(runtime + table->text_state) == TEXT_STATE &&
           load_word(runtime + table->text_length) == TEXT_LENGTH;
}

static bool choose_layout(const char *runtime, int minor, struct layout *layout) {
    for (size_t each = 0; each < sizeof known_layouts / sizeof *known_layouts; each++)
        if (known_layouts[each].minor == minor) {
            *layout = known_layouts[each];
            return true;
        }
    return read_published(runtime, minor, layout);
}

// The names and sizes of the types that are read must be where this file expects them: a build with other options
// (Py_TRACE_REFS) has everything elsewhere.
static bool is_type(const char *type, const char *name, uint64_t size) {
    const char *at = load_pointer(type + TYPE_NAME);
    return at && !strcmp(at, name) && load_word(type + TYPE_BASIC_SIZE) == size;
}

enum python_state python_find(void) {
    int known = atomic_load_explicit(&state, memory_order_acquire);
    if (known != PYTHON_ABSENT) return known;
    unsigned long long loads = 0;
    dl_iterate_phdr(count_loads, &loads);
    if (loads && atomic_load_explicit(&loads_at_last_search, memory_order_relaxed) == loads) return PYTHON_ABSENT;

    void *scope;
    const char *(*get_version)(void) = NULL;
    typeof(python) candidate = {.version = ""};
    if (find_scope(&scope)) {
        *(void **)&get_version = dlsym(scope, "Py_GetVersion");
        *(void **)&candidate.this_thread = dlsym(scope, "PyGILState_GetThisThreadState");
    }
    if (!get_version || !candidate.this_thread) {
        atomic_store_explicit(&loads_at_last_search, loads, memory_order_relaxed);
        return PYTHON_ABSENT;
    }
    *(void **)&candidate.initialized = dlsym(scope, "Py_IsInitialized");
    *(void **)&candidate.gil_holder = dlsym(scope, "_PyThreadState_UncheckedGet");
    *(void **)&candidate.newest = dlsym(scope, "PyInterpreterState_Head");
    *(void **)&candidate.main_interpreter = dlsym(scope, "PyInterpreterState_Main");
    candidate.runtime = dlsym(scope, "_PyRuntime");
    candidate.code_type = dlsym(scope, "PyCode_Type");
    candidate.text_type = dlsym(scope, "PyUnicode_Type");
    candidate.bytes_type = dlsym(scope, "PyBytes_Type");

    const char *version = get_version(); // "3.12.1 (main, ..."
    size_t length = strcspn(version, " ");
    if (length >= sizeof candidate.version) length = sizeof candidate.version - 1;
    memcpy(candidate.version, version, length);
    struct layout *layout = &candidate.layout;
    bool supported = !strncmp(version, "3.", 2) && is_exact_release(version) && candidate.initialized &&
                     candidate.runtime && candidate.code_type && candidate.text_type && candidate.bytes_type &&
                     choose_layout(candidate.runtime, (int)strtol(version + 2, NULL, 10), layout) &&
                     is_type(candidate.code_type, "code", layout->code_size) &&
                     is_type(candidate.text_type, "str", layout->text_size + 8u) &&
                     is_type(candidate.bytes_type, "bytes", BYTES_DATA + 1);

    int empty = EMPTY;
    if (atomic_compare_exchange_strong(&found, &empty, FILLING)) {
        python = candidate;
        atomic_store_explicit(&found, READY, memory_order_release);
        atomic_store_explicit(&state, supported ? PYTHON_SUPPORTED : PYTHON_UNSUPPORTED, memory_order_release);
    }
    return supported ? PYTHON_SUPPORTED : PYTHON_UNSUPPORTED;
}

const char *python_version(void) {
    return atomic_load_explicit(&found, memory_order_acquire) == READY ? python.version : "";
}

// ---- walking ----

// Up to 3.11 Python knows only the first interpreter in which a thread has run: where there are several, the thread
// may be in another one, which holds the GIL then. The holder may be another thread, that ends at this moment: its
// memory is read through the kernel, which answers with an error where it has gone.
static const char *choose_interpreter(const char *thread) {
    if (!python.gil_holder || !python.newest || !python.main_interpreter) return thread;
    if (python.newest() == python.main_interpreter()) return thread;
    char *holder = python.gil_holder();
    if (!holder || holder == thread) return thread;
    pthread_t owner = 0;
    struct iovec here = {&owner, sizeof owner}, there = {holder + python.layout.thread_id, sizeof owner};
    if (process_vm_readv(getpid(), &here, 1, &there, 1, 0) != sizeof owner) return thread;
    return pthread_equal(owner, pthread_self()) ? holder : thread;
}

static const char *find_thread(void) {
    if (atomic_load_explicit(&state, memory_order_acquire) != PYTHON_SUPPORTED) return NULL;
    const char *thread = python.this_thread();
    if (!thread) return NULL;
    // While one thread finalizes Python, it frees the states of the others, which may still run C code. What remains:
    // a thread without the GIL that the scheduler stops in the 50 ns after this check, at the moment when finalizing
    // begins, reads freed memory. Python has nothing against that that would not wait for the GIL.
    const char *finalizing = load_pointer(python.runtime + python.layout.finalizing);
    if (finalizing ? finalizing != thread : !python.initialized()) return NULL;
    return python.layout.minor < 12 ? choose_interpreter(thread) : thread;
}

static int walk_frame_objects(const char *thread, struct python_frame *frames, int most) {
    const struct layout *layout = &python.layout;
    const int unit = layout->minor == 9 ? 1 : 2; // f_lasti counts bytes in 3.9 and instructions in 3.10
    int count = 0;
    for (const char *frame = load_pointer(thread + layout->frame); frame && count < most;
         frame = load_pointer(frame + layout->previous)) {
        int32_t last = load_int(frame + layout->running);
        frames[count].code = load_pointer(frame + layout->code);
        frames[count++].instruction = last < 0 ? PYTHON_NOT_STARTED : (uint32_t)last * unit;
    }
    return count;
}

static int walk_interpreter_frames(const char *thread, struct python_frame *frames, int most) {
    const struct layout *layout = &python.layout;
    const char *frame = load_pointer(thread + layout->frame);
    if (layout->minor < 13) frame = load_pointer(frame + layout->current);
    int count = 0;
    // Between two functions lie at most two frames of C code; a damaged chain must end as well.
    for (long steps = 4L * most + 64; frame && count < most && steps; steps--) {
        unsigned char owner = (unsigned char)frame[layout->owner];
        const char *caller = load_pointer(frame + layout->previous);
        if (owner < OWNED_BY_INTERPRETER) {
            // 3.14 marks references that are not counted in the lowest two bits.
            const char *code = (const char *)(uintptr_t)(load_word(frame + layout->code) & ~(uint64_t)3);
            int64_t running = (int64_t)(load_word(frame + layout->running) - (uintptr_t)code - layout->bytecode);
            // A frame that is still being set up is none yet for Python; its code counts instructions of two bytes.
            if (owner == OWNED_BY_GENERATOR || running >= 2 * (int64_t)load_int(code + layout->traceable)) {
                frames[count].code = code;
                frames[count++].instruction = (uint32_t)running;
            }
        }
        frame = caller;
    }
    return count;
}

int python_walk(struct python_frame *frames, int most) {
    const char *thread = find_thread();
    if (!thread) return 0;
    return python.layout.minor < 11 ? walk_frame_objects(thread, frames, most)
                                    : walk_interpreter_frames(thread, frames, most);
}

// ---- describing ----

// A bytes object's content, or NULL.
static const unsigned char *read_bytes(const char *object, int64_t *length) {
    if (!object || load_pointer(object + OBJECT_TYPE) != python.bytes_type) return NULL;
    *length = (int64_t)load_word(object + BYTES_LENGTH);
    return *length >= 0 && *length <= MAX_TABLE_LENGTH ? (const unsigned char *)object + BYTES_DATA : NULL;
}

// A compact str: its characters, their width in bytes and their number. NULL where it is something else.
static inline const char *read_text(const char *object, int *width, int64_t *length) {
    if (!object || load_pointer(object + OBJECT_TYPE) != python.text_type) return NULL;
    uint32_t bits = (uint32_t)load_int(object + TEXT_STATE); // interned: 2 bits, kind: 3, compact: 1, ascii: 1
    bool ascii = bits >> 6 & 1, compact = bits >> 5 & 1;
    *width = bits >> 2 & 7;
    *length = (int64_t)load_word(object + TEXT_LENGTH);
    if (!compact || *length < 0 || *length > MAX_TEXT_LENGTH) return NULL;
    if (ascii ? *width != 1 : *width != 1 && *width != 2 && *width != 4) return NULL;
    return object + (ascii ? python.layout.ascii_size : python.layout.text_size);
}

static int encode(uint32_t letter, char *to) {
    if (letter > 0x10ffff || (letter >= 0xd800 && letter < 0xe000)) letter = '?';
    if (letter < 0x80) {
        to[0] = (char)letter;
        return 1;
    }
    int more = letter < 0x800 ? 1 : letter < 0x10000 ? 2 : 3;
    static const unsigned char first[] = {0, 0xc0, 0xe0, 0xf0};
    to[0] = (char)(first[more] | letter >> 6 * more);
    for (int each = 1; each <= more; each++) to[each] = (char)(0x80 | (letter >> 6 * (more - each) & 0x3f));
    return more + 1;
}

// False where the object is no text ("?" is stored), or had to be cut.
static bool copy_text(const char *object, char *to, size_t size) {
    int width;
    int64_t length, each;
    const char *letters = read_text(object, &width, &length);
    if (!letters) {
        strcpy(to, "?");
        return false;
    }
    size_t used = 0;
    for (each = 0; each < length; each++) {
        uint32_t letter = 0;
        memcpy(&letter, letters + each * width, (size_t)width); // little-endian
        char encoded[4];
        int nbytes = encode(letter ? letter : '?', encoded); // a NUL would end the name
        if (used + (size_t)nbytes >= size) break;
        memcpy(to + used, encoded, (size_t)nbytes);
        used += (size_t)nbytes;
    }
    to[used] = '\0';
    return each == length;
}

// A method's name with its class, where Python knows it. One that is too long would lose its end, which says most.
static void copy_name(const char *code, char *to, size_t size) {
    const struct layout *layout = &python.layout;
    if (layout->qualified && copy_text(load_pointer(code + layout->qualified), to, size)) return;
    copy_text(load_pointer(code + layout->name), to, size);
}

// 3.9, Objects/lnotab_notes.txt: pairs of steps, in bytes of code (unsigned) and in lines (signed).
static int64_t find_line_by_steps(const unsigned char *table, int64_t length, int64_t place, int64_t line) {
    int64_t at = 0;
    for (int64_t each = 0; each + 1 < length; each += 2) {
        at += table[each];
        if (at > place) break;
        line += (signed char)table[each + 1];
    }
    return line;
}

// 3.10, PEP 626: pairs of a range's length in bytes and the step in lines to it; -128: it belongs to no line.
static int64_t find_line_by_ranges(const unsigned char *table, int64_t length, int64_t place, int64_t line) {
    int64_t end = 0;
    for (int64_t each = 0; each + 1 < length; each += 2) {
        signed char step = (signed char)table[each + 1];
        if (step != -128) line += step;
        end += table[each];
        if (place < end) return step == -128 ? 0 : line;
    }
    return 0;
}

// A number of six bits a byte, the lowest first; the lowest bit is its sign.
static int64_t read_signed(const unsigned char *table, int64_t length, int64_t at) {
    uint64_t value = 0;
    for (int shift = 0; at < length && shift < 60; at++, shift += 6) {
        value |= (uint64_t)(table[at] & 0x3f) << shift;
        if (!(table[at] & 0x40)) break;
    }
    return value & 1 ? -(int64_t)(value >> 1) : (int64_t)(value >> 1);
}

// 3.11 to 3.14, Objects/locations.md: entries that begin with a byte above 127: a kind and a number of instructions.
static int64_t find_line_by_locations(const unsigned char *table, int64_t length, int64_t place, int64_t line) {
    int64_t end = 0;
    for (int64_t at = 0; at < length;) {
        int kind = table[at] >> 3 & 15;
        if (kind == 13 || kind == 14) line += read_signed(table, length, at + 1);
        if (kind >= 10 && kind <= 12) line += kind - 10;
        end += 2 * ((table[at] & 7) + 1);
        if (place < end) return kind == 15 ? 0 : line;
        for (at++; at < length && table[at] < 128;) at++;
    }
    return 0;
}

static int find_line(const char *code, uint32_t instruction, int first_line) {
    int64_t length, line = first_line;
    const unsigned char *table = read_bytes(load_pointer(code + python.layout.lines), &length);
    if (!table || instruction == PYTHON_NOT_STARTED) return first_line;
    if (python.layout.minor == 9)
        line = find_line_by_steps(table, length, instruction, line);
    else if (python.layout.minor == 10)
        line = find_line_by_ranges(table, length, instruction, line);
    else
        line = find_line_by_locations(table, length, instruction, line);
    return line > 0 && line <= INT32_MAX ? (int)line : 0;
}

static bool is_code(const char *code) {
    return atomic_load_explicit(&state, memory_order_acquire) == PYTHON_SUPPORTED && code && !((uintptr_t)code & 7) &&
           load_pointer(code + OBJECT_TYPE) == python.code_type;
}

bool python_describe(const struct python_frame *frame, struct python_place *place) {
    const char *code = frame->code;
    if (!is_code(code)) return false;
    copy_name(code, place->function, sizeof place->function);
    copy_text(load_pointer(code + python.layout.file), place->file, sizeof place->file);
    place->first_line = load_int(code + python.layout.first_line);
    place->line = find_line(code, frame->instruction, place->first_line);
    return true;
}

// ---- telling code objects apart ----

// A qualified name's length and the 8 bytes before the last part: the end of the class's name. A str that is not
// ASCII has something else there, and is at least as long.
static inline uint64_t read_before(const char *qualified, const char *name) {
    int64_t length = (int64_t)load_word(qualified + TEXT_LENGTH);
    int64_t before = length - (int64_t)load_word(name + TEXT_LENGTH) - 9;
    const char *first = qualified + python.layout.ascii_size;
    if (length >= 7) // and the zero after them
        return load_word(first + (before > 0 ? before : 0)) ^ (uint64_t)length << 48;
    return length >= 3 ? (uint32_t)load_int(first) : 0;
}

// Python allocates in the same order when it compiles the same kind of text again: then all addresses are those of the
// code before, and only contents differ. A name is interned, and so has its hash; a qualified one that is another text
// may have none. Not inlined: the way of 3.12 and later stays short.
static __attribute__((noinline)) uint64_t stamp_contents(const char *code, const char *file, uint64_t hash) {
    const struct layout *layout = &python.layout;
    const char *name = load_pointer(code + layout->name), *lines = load_pointer(code + layout->lines);
    const char *qualified = layout->qualified ? load_pointer(code + layout->qualified) : name;
    hash += (uintptr_t)qualified * 0x165667b19e3779f9u + (uintptr_t)lines * 0x27d4eb2f165667c5u;
    uint64_t names = load_word(name + TEXT_HASH);
    if (qualified && qualified != name) names ^= read_before(qualified, name);
    hash ^= names * 0xa0761d6478bd642fu;
    int width;
    int64_t length, nlines = (int64_t)load_word(lines + BYTES_LENGTH);
    uint64_t small = (uint32_t)load_int(code + layout->first_line) ^ (uint64_t)nlines << 24;
    const char *letters = read_text(file, &width, &length);
    if (letters && length * width >= 8) hash ^= load_word(letters + length * width - 8) * 0xe7037ed1a0b428dbu;
    if (letters) small ^= (uint64_t)length << 48;
    if (nlines >= 8) hash ^= load_word(lines + BYTES_DATA) * 0x589965cc75374cc3u;
    hash += small * 0xd6e8feb86659fd93u;
    return (hash ^ hash >> 32) * 0x9e3779b97f4a7c15u ^ hash >> 29;
}

// The factors are odd and unrelated; the products do not wait for one another.
uint64_t python_code_stamp(const void *object) {
    const char *code = object;
    if (!is_code(code)) return 0;
    const struct layout *layout = &python.layout;
    const char *file = load_pointer(code + layout->file);
    uint64_t hash = (uintptr_t)code * 0x9e3779b97f4a7c15u + (uintptr_t)file * 0xc2b2ae3d27d4eb4fu;
    uint32_t version = layout->version ? (uint32_t)load_int(code + layout->version) : 0;
    return version ? (hash ^ hash >> 32) + version * 0xd6e8feb86659fd93u : stamp_contents(code, file, hash);
}
