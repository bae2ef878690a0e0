// The functions that have an address: the one that was compiled, and those that are inlined into it (3.3.8).
#include "dwarf.h"

#include <stdlib.h>

enum { MAX_INLININGS = 1 << 22, MAX_HOPS = 16 };

struct pass {
    struct lines *lines;
    struct wanted *wanted;
    uint64_t count;
    struct inlining inlining; // what a range that is visited belongs to
    bool is_function;         // and not inlined into one
    bool found, no_memory;
};

static void add_inlining(struct pass *pass, struct wanted *wanted) {
    struct lines *lines = pass->lines;
    if (lines->inlining_count == lines->inlining_capacity) {
        uint64_t more = lines->inlining_capacity ? lines->inlining_capacity * 2 : 1024;
        struct inlining *grown = more <= MAX_INLININGS ? realloc(lines->inlinings, more * sizeof *grown) : NULL;
        if (!grown) {
            pass->no_memory = true;
            return;
        }
        lines->inlinings = grown;
        lines->inlining_capacity = more;
    }
    lines->inlinings[lines->inlining_count] = pass->inlining;
    uint32_t number = (uint32_t)++lines->inlining_count;
    if (pass->is_function || !wanted->first)
        wanted->first = number; // a function inside another one's entry is not part of it
    else
        lines->inlinings[wanted->last - 1].next = number;
    wanted->last = number;
}

static void visit_code(void *data, uint64_t begin, uint64_t end) {
    struct pass *pass = data;
    if (begin >= end) return;
    uint64_t at = first_from(pass->wanted, pass->count, begin);
    for (; at < pass->count && pass->wanted[at].address < end && !pass->no_memory; at++) {
        // What is inlined belongs to a function that has the address.
        if (!pass->is_function && !pass->wanted[at].first) continue;
        pass->found = true;
        add_inlining(pass, &pass->wanted[at]);
    }
}

struct function_values {
    struct code_range range;
    uint64_t sibling;
    bool has_code;
};

static void read_function(const struct unit *unit, const struct entry *entry, struct function_values *values,
                          struct inlining *inlining) {
    struct lines_bytes info = unit->file->sections[LINES_INFO];
    const struct attribute_spec *attributes = unit->abbreviations->attributes + entry->abbreviation->first;
    struct cursor cursor = {entry->values, info.bytes + unit->end, false};
    for (uint32_t each = 0; each < entry->abbreviation->count && !cursor.failed; each++) {
        struct value value = read_value(unit, &attributes[each], &cursor);
        switch (attributes[each].name) {
        case AT_LOW_PC: values->range.low = value; break;
        case AT_HIGH_PC: values->range.high = value; break;
        case AT_RANGES: values->range.ranges = value; break;
        case AT_SIBLING: values->sibling = value.number; break;
        case AT_CALL_FILE: inlining->call_file = value.number; break;
        case AT_CALL_LINE: inlining->call_line = value.number; break;
        default: break;
        }
    }
    values->has_code = values->range.ranges.form || (values->range.low.form && values->range.high.form);
}

static uint64_t read_sibling(const struct unit *unit, const struct entry *entry) {
    struct function_values values = {0};
    struct inlining unused = {0};
    read_function(unit, entry, &values, &unused);
    return values.sibling;
}

// Types have declarations of functions only.
static bool is_type(uint16_t tag) {
    return tag == TAG_CLASS_TYPE || tag == TAG_STRUCTURE_TYPE || tag == TAG_UNION_TYPE || tag == TAG_ARRAY_TYPE ||
           tag == TAG_ENUMERATION_TYPE || tag == TAG_SUBROUTINE_TYPE;
}

/* One way through all entries of a unit. Types, and functions that have none of the addresses, are passed over with all that
   is in them, unless *thorough*: a few languages put one function into another's entry. */
static bool pass_through(struct unit *unit, struct pass *pass, bool thorough) {
    struct lines_bytes info = unit->file->sections[LINES_INFO];
    uint64_t offset = unit->first_die, skipped_depth = 0;
    uint64_t depth = 0;
    struct entry entry;
    while (offset < unit->end && read_entry(unit, offset, &entry) && !pass->no_memory) {
        uint64_t next = (uint64_t)(entry.next - info.bytes);
        const struct abbreviation *found = entry.abbreviation;
        if (!found) {
            if (depth-- <= 1) break; // after the unit's own entry
            if (skipped_depth && depth < skipped_depth) skipped_depth = 0;
            offset = next;
            continue;
        }
        bool is_skipped = skipped_depth != 0;
        uint64_t sibling = 0;
        if (!is_skipped && (found->tag == TAG_SUBPROGRAM || found->tag == TAG_INLINED)) {
            struct function_values values = {0};
            pass->inlining = (struct inlining){.entry = offset};
            pass->is_function = found->tag == TAG_SUBPROGRAM;
            pass->found = false;
            read_function(unit, &entry, &values, &pass->inlining);
            if (values.has_code) visit_ranges(unit, &values.range, visit_code, pass);
            if (!pass->found && !thorough && found->has_children) {
                is_skipped = true;
                sibling = values.sibling;
            }
        } else if (found->has_children && (is_skipped || (!thorough && is_type(found->tag)))) {
            is_skipped = true;
            if (found->has_sibling) sibling = read_sibling(unit, &entry);
        }
        if (is_skipped && sibling) {
            // Relative to the unit; only forward, so that this ends.
            uint64_t target;
            if (!__builtin_add_overflow(unit->begin, sibling, &target) && target >= next && target < unit->end) {
                offset = target;
                continue;
            }
        }
        if (found->has_children) {
            depth++;
            if (is_skipped && !skipped_depth) skipped_depth = depth;
        } else if (!depth) {
            break; // a unit without children
        }
        offset = next;
    }
    return !pass->no_memory;
}

bool find_functions(struct lines *lines, struct unit *unit, struct wanted *wanted, uint64_t count) {
    if (!load_abbreviations(lines, unit)) return false;
    struct pass pass = {.lines = lines, .wanted = wanted, .count = count};
    if (!pass_through(unit, &pass, false)) return false;
    for (uint64_t each = 0; each < count; each++)
        if (!wanted[each].first) {
            for (uint64_t again = 0; again < count; again++) wanted[again].first = wanted[again].last = 0;
            return pass_through(unit, &pass, true);
        }
    return true;
}

// ---- names ----

static bool is_local_reference(uint16_t form) {
    return (form >= FORM_REF1 && form <= FORM_REF_UDATA);
}

/* The name that the linker knows, which says in which class and namespace it is; else the plain one. Both may be at
   the entry that this one is an instance of, or a definition of. */
const char *function_name(struct lines *lines, struct unit *unit, uint64_t offset) {
    const char *plain = NULL;
    for (int hop = 0; hop < MAX_HOPS && unit; hop++) {
        struct entry entry;
        if (!load_abbreviations(lines, unit) || !read_entry(unit, offset, &entry) || !entry.abbreviation) break;
        const struct attribute_spec *attributes = unit->abbreviations->attributes + entry.abbreviation->first;
        struct cursor cursor = {entry.values, unit->file->sections[LINES_INFO].bytes + unit->end, false};
        struct value linkage = {0}, name = {0}, origin = {0};
        for (uint32_t each = 0; each < entry.abbreviation->count && !cursor.failed; each++) {
            struct value value = read_value(unit, &attributes[each], &cursor);
            switch (attributes[each].name) {
            case AT_LINKAGE_NAME:
            case AT_MIPS_LINKAGE_NAME: linkage = value; break;
            case AT_NAME: name = value; break;
            case AT_ABSTRACT_ORIGIN:
            case AT_SPECIFICATION: origin = value; break;
            default: break;
            }
        }
        if (linkage.form) {
            const char *text = read_string(unit, &linkage);
            if (text && *text) return text;
        }
        if (name.form && !plain) plain = read_string(unit, &name);
        if (is_local_reference(origin.form)) {
            if (__builtin_add_overflow(unit->begin, origin.number, &offset)) break;
        } else if (origin.form == FORM_REF_ADDR) {
            offset = origin.number;
            unit = unit_at(unit->file, offset);
        } else {
            break; // none, or in a file that is not read
        }
    }
    return plain;
}
