/* Functions and lines of addresses, from the DWARF of an ELF file: what src/vram/trace/line_worker.py calls.
 *
 * The caller reads the file: it hands over the sections' bytes (decompressed), which must stay until lines_close.
 * Split units (.dwo, .dwp) are named by lines_split and handed over one by one.
 */
#pragma once

#include <stdint.h>

#define EXPORT __attribute__((visibility("default")))

enum lines_section {
    LINES_INFO,
    LINES_ABBREV,
    LINES_LINE,
    LINES_STR,
    LINES_LINE_STR,
    LINES_STR_OFFSETS,
    LINES_ADDR,
    LINES_RANGES,
    LINES_RNGLISTS,
    LINES_SECTIONS,
};

enum { LINES_MAX_SPLIT = 1024 };

struct lines_bytes {
    const uint8_t *bytes;
    uint64_t nbytes;
};

struct lines_frame {
    uint32_t address;        // which of those asked for; its frames follow each other, innermost first
    uint32_t line;           // 0 where it is unknown
    uint64_t function, file; // where their texts begin; 0: unknown
};

struct lines_split_unit {
    uint64_t unit, dwo_id;
    const char *name, *folder;
};

struct lines;

// NULL where there is no memory for it.
EXPORT struct lines *lines_open(const struct lines_bytes sections[LINES_SECTIONS], const uint64_t *addresses,
                                uint64_t count);

// The split units that have some of the addresses, from *unit* on; false after the last.
EXPORT int lines_next_split(struct lines *lines, uint64_t unit, struct lines_split_unit *found);

// The sections of a split unit's file. Where it is not that unit's, nothing happens.
EXPORT void lines_add_split(struct lines *lines, uint64_t unit, const struct lines_bytes sections[LINES_SECTIONS]);

// Find everything; the number of frames.
EXPORT uint64_t lines_find(struct lines *lines);
EXPORT const struct lines_frame *lines_frames(const struct lines *lines);
EXPORT const char *lines_texts(const struct lines *lines, uint64_t *nbytes);
EXPORT void lines_close(struct lines *lines);
