/* Lines and functions from DWARF 2 to 5: what the parts of this library share.
 *
 * Every byte comes from a file that anybody may have written: it is read through a cursor that knows its end, numbers
 * are checked before they are offsets, and what is wrong ends the unit it is in, not the others.
 * Source: DWARF Debugging Information Format, version 5 (dwarfstd.org), section numbers in the comments; for
 * version 4 split units, "DebugFission" of the GCC wiki.
 */
#pragma once

#include "lines.h"

#include <stdbool.h>
#include <string.h>

// ---- reading ----

struct cursor {
    const uint8_t *at, *end;
    bool failed; // asked for more than there is: everything read since is 0
};

static inline struct cursor cursor_at(struct lines_bytes section, uint64_t offset) {
    if (offset > section.nbytes) return (struct cursor){NULL, NULL, true};
    return (struct cursor){section.bytes + offset, section.bytes + section.nbytes, false};
}

static inline uint64_t bytes_left(const struct cursor *cursor) {
    return (uint64_t)(cursor->end - cursor->at);
}

static inline void fail_cursor(struct cursor *cursor) {
    cursor->at = cursor->end;
    cursor->failed = true;
}

static inline void skip_bytes(struct cursor *cursor, uint64_t nbytes) {
    if (nbytes > bytes_left(cursor))
        fail_cursor(cursor);
    else
        cursor->at += nbytes;
}

static inline uint64_t read_number(struct cursor *cursor, unsigned nbytes) {
    uint64_t number = 0;
    if (nbytes > 8 || nbytes > bytes_left(cursor)) {
        fail_cursor(cursor);
        return 0;
    }
    memcpy(&number, cursor->at, nbytes); // little-endian, as the machines are that vram runs on
    cursor->at += nbytes;
    return number;
}

static inline uint64_t read_uleb(struct cursor *cursor) {
    uint64_t number = 0;
    for (unsigned shift = 0; cursor->at < cursor->end; shift += 7) {
        uint8_t byte = *cursor->at++;
        if (shift < 64) number |= (uint64_t)(byte & 127) << shift;
        if (!(byte & 128)) return number;
    }
    fail_cursor(cursor);
    return 0;
}

static inline int64_t read_sleb(struct cursor *cursor) {
    uint64_t number = 0;
    for (unsigned shift = 0; cursor->at < cursor->end;) {
        uint8_t byte = *cursor->at++;
        if (shift < 64) number |= (uint64_t)(byte & 127) << shift;
        shift += 7;
        if (byte & 128) continue;
        if (shift < 64 && byte & 64) number |= ~(uint64_t)0 << shift;
        return (int64_t)number;
    }
    fail_cursor(cursor);
    return 0;
}

// A text up to its zero byte; NULL where it has none.
static inline const char *read_text(struct cursor *cursor) {
    const uint8_t *zero = bytes_left(cursor) ? memchr(cursor->at, 0, bytes_left(cursor)) : NULL;
    if (!zero) {
        fail_cursor(cursor);
        return NULL;
    }
    const char *text = (const char *)cursor->at;
    cursor->at = zero + 1;
    return text;
}

// ---- names of the format (7.5.3, 7.5.4, 7.5.6) ----

enum tag {
    TAG_ARRAY_TYPE = 0x01,
    TAG_CLASS_TYPE = 0x02,
    TAG_ENUMERATION_TYPE = 0x04,
    TAG_STRUCTURE_TYPE = 0x13,
    TAG_SUBROUTINE_TYPE = 0x15,
    TAG_UNION_TYPE = 0x17,
    TAG_INLINED = 0x1d,
    TAG_SUBPROGRAM = 0x2e,
};
enum attribute {
    AT_SIBLING = 0x01,
    AT_NAME = 0x03,
    AT_STMT_LIST = 0x10,
    AT_LOW_PC = 0x11,
    AT_HIGH_PC = 0x12,
    AT_COMP_DIR = 0x1b,
    AT_ABSTRACT_ORIGIN = 0x31,
    AT_SPECIFICATION = 0x47,
    AT_RANGES = 0x55,
    AT_CALL_FILE = 0x58,
    AT_CALL_LINE = 0x59,
    AT_LINKAGE_NAME = 0x6e,
    AT_STR_OFFSETS_BASE = 0x72,
    AT_ADDR_BASE = 0x73,
    AT_RNGLISTS_BASE = 0x74,
    AT_DWO_NAME = 0x76,
    AT_MIPS_LINKAGE_NAME = 0x2007,
    AT_GNU_DWO_NAME = 0x2130,
    AT_GNU_DWO_ID = 0x2131,
    AT_GNU_RANGES_BASE = 0x2132,
    AT_GNU_ADDR_BASE = 0x2133,
};
enum form {
    FORM_ADDR = 0x01,
    FORM_BLOCK2 = 0x03,
    FORM_BLOCK4,
    FORM_DATA2,
    FORM_DATA4,
    FORM_DATA8,
    FORM_STRING,
    FORM_BLOCK,
    FORM_BLOCK1,
    FORM_DATA1,
    FORM_FLAG,
    FORM_SDATA,
    FORM_STRP,
    FORM_UDATA,
    FORM_REF_ADDR,
    FORM_REF1,
    FORM_REF2,
    FORM_REF4,
    FORM_REF8,
    FORM_REF_UDATA,
    FORM_INDIRECT,
    FORM_SEC_OFFSET,
    FORM_EXPRLOC,
    FORM_FLAG_PRESENT,
    FORM_STRX,
    FORM_ADDRX,
    FORM_REF_SUP4,
    FORM_STRP_SUP,
    FORM_DATA16,
    FORM_LINE_STRP,
    FORM_REF_SIG8,
    FORM_IMPLICIT_CONST,
    FORM_LOCLISTX,
    FORM_RNGLISTX,
    FORM_REF_SUP8,
    FORM_STRX1,
    FORM_STRX2,
    FORM_STRX3,
    FORM_STRX4,
    FORM_ADDRX1,
    FORM_ADDRX2,
    FORM_ADDRX3,
    FORM_ADDRX4,
    FORM_GNU_ADDR_INDEX = 0x1f01,
    FORM_GNU_STR_INDEX = 0x1f02,
    FORM_GNU_REF_ALT = 0x1f20,
    FORM_GNU_STRP_ALT = 0x1f21,
};

// ---- units ----

struct attribute_spec {
    uint16_t name, form;
    int64_t constant; // of FORM_IMPLICIT_CONST
};

struct abbreviation {
    uint64_t code;
    uint32_t first, count; // of its attributes
    uint32_t fixed_nbytes; // of the values, where each has a size that is known; else 0
    uint16_t tag;
    bool has_children, has_sibling;
};

struct abbreviations {
    struct abbreviations *next; // in its bucket
    uint64_t offset;
    uint8_t offset_nbytes;
    uint16_t version;
    const uint8_t *section;
    struct abbreviation *items;
    struct attribute_spec *attributes;
    uint64_t count, attribute_count;
};

struct debug_file {
    struct lines_bytes sections[LINES_SECTIONS];
    struct unit *units;
    uint64_t unit_count;
};

struct unit {
    struct debug_file *file;
    uint64_t begin, first_die, end; // in .debug_info
    uint64_t abbreviations_offset;
    struct abbreviations *abbreviations; // once they are needed
    uint64_t dwo_id, stmt_list, low_pc;
    uint64_t str_offsets_base, addr_base, rnglists_base, ranges_base;
    const char *folder, *dwo_name;
    const struct unit *skeleton; // of a split unit
    uint16_t version;
    uint8_t offset_nbytes;
    bool has_lines, has_code;
    uint64_t first_address, address_count; // of those asked for, once they are matched
    struct unit *split;                    // the unit that has its contents, in a file of its own
};

struct value {
    uint16_t form;
    uint64_t number;  // constants, offsets, indices, addresses
    const char *text; // of FORM_STRING
};

struct code_range {
    struct value low, high, ranges; // form 0: absent
};

struct entry { // of the DIE tree
    const struct abbreviation *abbreviation;
    const uint8_t *values, *next; // next: after its values
};

// ---- line tables ----

struct file_name {
    const char *name;
    uint64_t folder;
    uint64_t path; // its place in the result's texts, once it is there
};

struct line_table {
    uint16_t version;
    uint64_t folder_count, file_count;
    const char **folders;
    struct file_name *files;
    const char *unit_folder;
    uint8_t smallest_instruction, operations, line_range, opcode_base, offset_nbytes;
    int8_t line_base;
    const uint8_t *opcode_lengths;
    struct cursor program;
};

// ---- what is asked and found ----

struct inlining { // a function that has an address: the outermost first, then what is inlined into it
    uint64_t entry;
    uint64_t call_file, call_line;
    uint32_t next, unused;
};

struct wanted {
    uint64_t address;
    struct unit *unit;
    uint64_t file, line;
    uint32_t first, last; // in inlinings, from 1
    uint32_t number;      // as it was asked for
    bool has_line;
};

struct texts {
    char *bytes;
    uint64_t nbytes, capacity;
};

enum { ABBREVIATION_BUCKETS = 1024 };

struct lines {
    struct debug_file main, *dwos[LINES_MAX_SPLIT];
    uint64_t dwo_count;
    struct wanted *wanted;
    uint64_t wanted_count;
    struct inlining *inlinings;
    uint64_t inlining_count, inlining_capacity;
    struct lines_frame *frames;
    uint64_t frame_count, frame_capacity;
    struct texts texts;
    struct abbreviations *known[ABBREVIATION_BUCKETS];
};

// Each returns false where there is no memory.
bool find_units(struct lines *lines, struct debug_file *file, const struct unit *skeleton);
bool load_abbreviations(struct lines *lines, struct unit *unit);
void release_abbreviations(struct lines *lines);

bool read_entry(const struct unit *unit, uint64_t offset, struct entry *entry);
struct value read_value(const struct unit *unit, const struct attribute_spec *attribute, struct cursor *cursor);
bool read_address(const struct unit *unit, const struct value *value, uint64_t *address);
const char *read_string(const struct unit *unit, const struct value *value);
struct unit *unit_at(struct debug_file *file, uint64_t offset);

typedef void (*range_visitor)(void *data, uint64_t begin, uint64_t end);
void visit_ranges(const struct unit *unit, const struct code_range *range, range_visitor visit, void *data);

bool read_line_table(const struct unit *unit, struct line_table *table);
void release_line_table(struct line_table *table);
void run_line_program(struct line_table *table, struct wanted *wanted, uint64_t count);

bool find_functions(struct lines *lines, struct unit *unit, struct wanted *wanted, uint64_t count);
const char *function_name(struct lines *lines, struct unit *unit, uint64_t offset);

// The first of *wanted*, in the order of addresses, that is not below *address*.
static inline uint64_t first_from(const struct wanted *wanted, uint64_t count, uint64_t address) {
    uint64_t low = 0, high = count;
    while (low < high) {
        uint64_t middle = low + (high - low) / 2;
        if (wanted[middle].address < address)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}
