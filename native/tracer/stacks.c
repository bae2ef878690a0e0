/* Call stacks: walked at each allocation, written when they are new.
 *
 * A stack that this writer has seen costs the walk, a hash and one look into a table. A stack of Python
 * frames is what people read; where a thread runs no Python its native frames are taken instead, and with
 * `native` those between Python and CUDA as well.
 */
#include "cupti.h"
#include "native_stack.h"
#include "python_stack.h"
#include "writer.h"

#include <string.h>

enum { MAX_FRAMES = 128, MAX_NATIVE = 64 };

static _Atomic int python = PYTHON_ABSENT;

void stacks_find_python(void) {
    if (atomic_load_explicit(&python, memory_order_relaxed) == PYTHON_SUPPORTED) return;
    int found = (int)python_find();
    int before = atomic_exchange(&python, found);
    if (found == PYTHON_UNSUPPORTED && before != found)
        message("no-python-stacks", "Python %s is not known to this version", python_version());
}

static inline uint64_t mix(uint64_t hash, uint64_t value) {
    hash = (hash ^ value) * 0xff51afd7ed558ccdu;
    return hash ^ (hash >> 32);
}

static uint32_t define_place(struct writer *writer, uint8_t language, const char *function, const char *file,
                             uint64_t line) {
    if (!writer_room(writer, PLACE_NBYTES)) return 0;
    uint8_t *at = writer->at + 1;
    *at++ = language;
    at = put_text(at, function, TEXT_NBYTES);
    at = put_text(at, file, TEXT_NBYTES);
    at = put_number(at, line);
    commit(writer, RECORD_PLACE, at);
    return ++writer->places;
}

static uint32_t python_place_number(struct writer *writer, const struct python_frame *frame) {
    uint64_t key = mix(mix((uint64_t)(uintptr_t)frame->code, frame->instruction), python_code_stamp(frame->code));
    uint32_t *number = table_value(&writer->place_numbers, key);
    if (!number) return 0;
    if (!*number) {
        struct python_place place;
        if (!python_describe(frame, &place)) return 0;
        *number = define_place(writer, 0, place.function, place.file, (uint64_t)(place.line < 0 ? 0 : place.line));
    }
    return *number;
}

static uint64_t mix_text(uint64_t hash, const char *text) {
    for (size_t length = strlen(text), at = 0; at <= length; at += 8) {
        uint64_t word = 0;
        memcpy(&word, text + at, length - at < 8 ? length - at : 8);
        hash = mix(hash, word + length);
    }
    return hash;
}

/* Libraries whose files are needed for names and lines: which build it was is noted once in a section. Where there are
   more than fit, that is left to the time when the file was last changed. */
static _Atomic uint64_t libraries_noted[1024];

void stacks_forget_libraries(void) {
    for (size_t i = 0; i < sizeof libraries_noted / sizeof *libraries_noted; i++) atomic_store(&libraries_noted[i], 0);
}

static void note_library(const struct native_place *place, uint64_t key) {
    enum { MOST = sizeof libraries_noted / sizeof *libraries_noted };
    key |= 1;
    for (uint64_t i = 0; i < MOST; i++) {
        uint64_t there = 0;
        if (atomic_compare_exchange_strong(&libraries_noted[(key + i) % MOST], &there, key)) break;
        if (there == key || i == MOST - 1) return;
    }
    char text[sizeof place->library + sizeof place->build_id];
    size_t length = strlen(place->library) + 1;
    memcpy(text, place->library, length);
    memcpy(text + length, place->build_id, strlen(place->build_id));
    record_blob("library", text, length + strlen(place->build_id));
}

/* By what is there, not by the address: another library may be loaded where one was. */
static uint32_t library_place_number(struct writer *writer, const struct native_place *place) {
    uint64_t library = mix_text(mix_text(0x6e6174697665u, place->library), place->build_id);
    uint64_t key = mix(mix_text(library, place->symbol), place->offset);
    uint32_t *number = table_value(&writer->place_numbers, key);
    if (!number) return 0;
    if (!*number) {
        note_library(place, library);
        *number = define_place(writer, 1, place->symbol, place->library, place->offset);
    }
    return *number;
}

static uint32_t native_place_number(struct writer *writer, uintptr_t address) {
    uint32_t *number = table_value(&writer->address_numbers, (uint64_t)address);
    if (!number) return 0;
    if (!*number) {
        struct native_place place;
        if (!native_describe(address, &place)) return 0;
        *number = library_place_number(writer, &place);
    }
    return *number;
}

static uint32_t node_number(struct writer *writer, uint32_t parent, uint32_t place) {
    uint32_t *number = table_value(&writer->node_numbers, (uint64_t)parent << 32 | place);
    if (!number) return 0;
    if (!*number && writer_room(writer, EVENT_NBYTES)) {
        uint8_t *at = put_number(writer->at + 1, parent);
        at = put_number(at, place);
        commit(writer, RECORD_NODE, at);
        *number = ++writer->nodes;
    }
    return *number;
}

/* Native frames from the innermost up to where the interpreter begins, if it does. */
static int native_part(struct writer *writer, uintptr_t *addresses, bool below_python) {
    unsigned long long unloads;
    int count = native_walk(addresses, MAX_NATIVE, &unloads);
    if (unlikely(unloads != writer->unloads)) {
        table_release(&writer->address_numbers);
        table_release(&writer->stack_numbers);
        writer->unloads = unloads;
    }
    for (int i = 0; below_python && i < count; i++)
        if (native_is_python(addresses[i])) return i;
    return count;
}

uint32_t stack_number(struct writer *writer) {
    if (settings.stacks == STACKS_NONE) return 0;
    struct python_frame frames[MAX_FRAMES];
    uintptr_t addresses[MAX_NATIVE];
    int depth = 0, natives = 0;
    if (atomic_load_explicit(&python, memory_order_relaxed) == PYTHON_SUPPORTED)
        depth = python_walk(frames, MAX_FRAMES);
    if (depth == 0 || settings.stacks == STACKS_NATIVE) natives = native_part(writer, addresses, depth > 0);

    uint64_t hash = 0x7672616d;
    for (int i = 0; i < depth; i++)
        hash = mix(hash, ((uint64_t)(uintptr_t)frames[i].code << 8) ^ frames[i].instruction ^
                             python_code_stamp(frames[i].code));
    for (int i = 0; i < natives; i++) hash = mix(hash, (uint64_t)addresses[i] + 1);
    uint32_t *known = table_value(&writer->stack_numbers, hash);
    if (!known || *known) return known ? *known : 0;

    share_subscription(); /* new code runs: perhaps a library with a profiler was loaded */
    uint32_t node = 0;
    for (int i = depth - 1; i >= 0; i--) {
        uint32_t place = python_place_number(writer, &frames[i]);
        if (place) node = node_number(writer, node, place);
    }
    for (int i = natives - 1; i >= 0; i--) {
        uint32_t place = native_place_number(writer, addresses[i]);
        if (place) node = node_number(writer, node, place);
    }
    /* The table may have grown, and moved, meanwhile. */
    known = table_value(&writer->stack_numbers, hash);
    if (known) *known = node;
    return node;
}
