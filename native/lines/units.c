// Units of .debug_info: their headers, abbreviations, the values of attributes, and the code that they cover.
#include "dwarf.h"

#include <stdlib.h>

enum { MAX_ATTRIBUTES = 1 << 20, UNIT_SKELETON = 4, UNIT_SPLIT = 5, UNIT_TYPE = 2, UNIT_SPLIT_TYPE = 6 };

// ---- abbreviations (7.5.3) ----

// The size of a value whose size its form tells; 0 where it must be read, or takes no bytes.
static uint32_t fixed_nbytes(uint16_t form, uint16_t version, uint8_t offset_nbytes, bool *is_fixed) {
    *is_fixed = true;
    switch (form) {
    case FORM_FLAG_PRESENT:
    case FORM_IMPLICIT_CONST: return 0;
    case FORM_DATA1:
    case FORM_FLAG:
    case FORM_REF1:
    case FORM_STRX1:
    case FORM_ADDRX1: return 1;
    case FORM_DATA2:
    case FORM_REF2:
    case FORM_STRX2:
    case FORM_ADDRX2: return 2;
    case FORM_STRX3:
    case FORM_ADDRX3: return 3;
    case FORM_DATA4:
    case FORM_REF4:
    case FORM_STRX4:
    case FORM_ADDRX4:
    case FORM_REF_SUP4: return 4;
    case FORM_ADDR:
    case FORM_DATA8:
    case FORM_REF8:
    case FORM_REF_SIG8:
    case FORM_REF_SUP8: return 8;
    case FORM_DATA16: return 16;
    case FORM_REF_ADDR: return version == 2 ? 8 : offset_nbytes;
    case FORM_STRP:
    case FORM_LINE_STRP:
    case FORM_SEC_OFFSET:
    case FORM_STRP_SUP:
    case FORM_GNU_REF_ALT:
    case FORM_GNU_STRP_ALT: return offset_nbytes;
    default: *is_fixed = false; return 0;
    }
}

static bool next_abbreviation(struct cursor *cursor, struct abbreviation *item) {
    item->code = read_uleb(cursor);
    if (!item->code || cursor->failed) return false;
    item->tag = (uint16_t)read_uleb(cursor);
    item->has_children = read_number(cursor, 1) != 0;
    return !cursor->failed;
}

static bool next_attribute(struct cursor *cursor, struct attribute_spec *attribute) {
    uint64_t name = read_uleb(cursor), form = read_uleb(cursor);
    attribute->constant = form == FORM_IMPLICIT_CONST ? read_sleb(cursor) : 0;
    if (cursor->failed || (!name && !form) || form > UINT16_MAX) return false;
    attribute->name = name > UINT16_MAX ? UINT16_MAX : (uint16_t)name; // none of ours
    attribute->form = (uint16_t)form;
    return true;
}

static bool grow(void **items, uint64_t *capacity, uint64_t count, size_t nbytes) {
    if (count < *capacity) return true;
    uint64_t more = *capacity ? *capacity * 2 : 64;
    void *grown = realloc(*items, more * nbytes);
    if (!grown) return false;
    *items = grown;
    *capacity = more;
    return true;
}

static bool parse_abbreviations(struct abbreviations *table, struct cursor cursor) {
    uint64_t item_capacity = 0, attribute_capacity = 0;
    struct abbreviation item;
    while (table->attribute_count < MAX_ATTRIBUTES && next_abbreviation(&cursor, &item)) {
        item.first = (uint32_t)table->attribute_count;
        item.fixed_nbytes = 0;
        item.has_sibling = false;
        bool all_fixed = true;
        struct attribute_spec attribute;
        while (next_attribute(&cursor, &attribute)) {
            if (!grow((void **)&table->attributes, &attribute_capacity, table->attribute_count, sizeof attribute))
                return false;
            table->attributes[table->attribute_count++] = attribute;
            bool is_fixed;
            uint32_t nbytes = fixed_nbytes(attribute.form, table->version, table->offset_nbytes, &is_fixed);
            all_fixed &= is_fixed;
            if (item.fixed_nbytes < UINT32_MAX / 2) item.fixed_nbytes += nbytes;
            item.has_sibling |= attribute.name == AT_SIBLING;
            if (table->attribute_count >= MAX_ATTRIBUTES) break;
        }
        item.count = (uint32_t)(table->attribute_count - item.first);
        if (!all_fixed) item.fixed_nbytes = 0;
        if (!grow((void **)&table->items, &item_capacity, table->count, sizeof item)) return false;
        table->items[table->count++] = item;
    }
    return true;
}

bool load_abbreviations(struct lines *lines, struct unit *unit) {
    if (unit->abbreviations) return true;
    const uint8_t *section = unit->file->sections[LINES_ABBREV].bytes;
    struct abbreviations **bucket = &lines->known[(unit->abbreviations_offset * 0x9e3779b97f4a7c15u) >> 54];
    for (struct abbreviations *each = *bucket; each; each = each->next) {
        if (each->offset == unit->abbreviations_offset && each->section == section &&
            each->offset_nbytes == unit->offset_nbytes && each->version == unit->version) {
            unit->abbreviations = each;
            return true;
        }
    }
    struct abbreviations *table = calloc(1, sizeof *table);
    if (!table) return false;
    *table = (struct abbreviations){.next = *bucket,
                                    .offset = unit->abbreviations_offset,
                                    .offset_nbytes = unit->offset_nbytes,
                                    .version = unit->version,
                                    .section = section};
    *bucket = table;
    unit->abbreviations = table;
    return parse_abbreviations(table, cursor_at(unit->file->sections[LINES_ABBREV], table->offset));
}

void release_abbreviations(struct lines *lines) {
    for (int bucket = 0; bucket < ABBREVIATION_BUCKETS; bucket++) {
        for (struct abbreviations *each = lines->known[bucket], *next; each; each = next) {
            next = each->next;
            free(each->items);
            free(each->attributes);
            free(each);
        }
    }
}

static const struct abbreviation *find_abbreviation(const struct abbreviations *table, uint64_t code) {
    // Compilers count from 1.
    if (code - 1 < table->count && table->items[code - 1].code == code) return &table->items[code - 1];
    for (uint64_t each = 0; each < table->count; each++)
        if (table->items[each].code == code) return &table->items[each];
    return NULL;
}

// ---- values (7.5.6) ----

struct value read_value(const struct unit *unit, const struct attribute_spec *attribute, struct cursor *cursor) {
    uint16_t form = attribute->form;
    for (int turn = 0; form == FORM_INDIRECT; turn++) {
        uint64_t real = read_uleb(cursor);
        if (turn == 4 || real > UINT16_MAX || real == FORM_IMPLICIT_CONST || cursor->failed) {
            fail_cursor(cursor);
            return (struct value){0};
        }
        form = (uint16_t)real;
    }
    struct value value = {.form = form};
    switch (form) {
    case FORM_FLAG_PRESENT: value.number = 1; break;
    case FORM_IMPLICIT_CONST: value.number = (uint64_t)attribute->constant; break;
    case FORM_STRING: value.text = read_text(cursor); break;
    case FORM_BLOCK:
    case FORM_EXPRLOC: skip_bytes(cursor, read_uleb(cursor)); break;
    case FORM_BLOCK1: skip_bytes(cursor, read_number(cursor, 1)); break;
    case FORM_BLOCK2: skip_bytes(cursor, read_number(cursor, 2)); break;
    case FORM_BLOCK4: skip_bytes(cursor, read_number(cursor, 4)); break;
    case FORM_DATA16: skip_bytes(cursor, 16); break;
    case FORM_SDATA: value.number = (uint64_t)read_sleb(cursor); break;
    case FORM_UDATA:
    case FORM_REF_UDATA:
    case FORM_STRX:
    case FORM_ADDRX:
    case FORM_LOCLISTX:
    case FORM_RNGLISTX:
    case FORM_GNU_ADDR_INDEX:
    case FORM_GNU_STR_INDEX: value.number = read_uleb(cursor); break;
    default: {
        bool is_fixed;
        uint32_t nbytes = fixed_nbytes(form, unit->version, unit->offset_nbytes, &is_fixed);
        if (is_fixed)
            value.number = read_number(cursor, nbytes);
        else
            fail_cursor(cursor); // a form of a later version: nothing after it can be read
    }
    }
    return value;
}

// A number of *nbytes* at base + index * nbytes of a section.
static bool read_indexed(struct lines_bytes section, uint64_t base, uint64_t index, unsigned nbytes, uint64_t *number) {
    uint64_t offset;
    if (__builtin_mul_overflow(index, nbytes, &offset) || __builtin_add_overflow(offset, base, &offset)) return false;
    struct cursor cursor = cursor_at(section, offset);
    *number = read_number(&cursor, nbytes);
    return !cursor.failed;
}

static bool is_address_index(uint16_t form) {
    return form == FORM_ADDRX || form == FORM_GNU_ADDR_INDEX || (form >= FORM_ADDRX1 && form <= FORM_ADDRX4);
}

// .debug_addr is in the linked file, also for split units.
static bool indexed_address(const struct unit *unit, uint64_t index, uint64_t *address) {
    const struct unit *owner = unit->skeleton ? unit->skeleton : unit;
    return read_indexed(owner->file->sections[LINES_ADDR], owner->addr_base, index, 8, address);
}

bool read_address(const struct unit *unit, const struct value *value, uint64_t *address) {
    *address = value->number;
    return value->form == FORM_ADDR || (is_address_index(value->form) && indexed_address(unit, value->number, address));
}

static const char *text_at(struct lines_bytes section, uint64_t offset) {
    struct cursor cursor = cursor_at(section, offset);
    return read_text(&cursor);
}

const char *read_string(const struct unit *unit, const struct value *value) {
    const struct lines_bytes *sections = unit->file->sections;
    uint64_t offset;
    switch (value->form) {
    case FORM_STRING: return value->text;
    case FORM_STRP: return text_at(sections[LINES_STR], value->number);
    case FORM_LINE_STRP: return text_at(sections[LINES_LINE_STR], value->number);
    case FORM_STRX:
    case FORM_STRX1:
    case FORM_STRX2:
    case FORM_STRX3:
    case FORM_STRX4:
    case FORM_GNU_STR_INDEX:
        return read_indexed(sections[LINES_STR_OFFSETS], unit->str_offsets_base, value->number, unit->offset_nbytes,
                            &offset)
                   ? text_at(sections[LINES_STR], offset)
                   : NULL;
    default: return NULL; // in a supplementary file, which is not read
    }
}

// ---- entries ----

bool read_entry(const struct unit *unit, uint64_t offset, struct entry *entry) {
    struct lines_bytes info = unit->file->sections[LINES_INFO];
    if (offset < unit->first_die || offset >= unit->end || !unit->abbreviations) return false;
    struct cursor cursor = {info.bytes + offset, info.bytes + unit->end, false};
    uint64_t code = read_uleb(&cursor);
    entry->values = cursor.at;
    entry->abbreviation = NULL;
    if (cursor.failed) return false;
    if (!code) { // the end of a list of children
        entry->next = cursor.at;
        return true;
    }
    const struct abbreviation *found = entry->abbreviation = find_abbreviation(unit->abbreviations, code);
    if (!found) return false;
    if (found->fixed_nbytes) {
        skip_bytes(&cursor, found->fixed_nbytes);
    } else {
        const struct attribute_spec *attributes = unit->abbreviations->attributes + found->first;
        for (uint32_t each = 0; each < found->count && !cursor.failed; each++)
            read_value(unit, &attributes[each], &cursor);
    }
    entry->next = cursor.at;
    return !cursor.failed;
}

struct unit *unit_at(struct debug_file *file, uint64_t offset) {
    uint64_t low = 0, high = file->unit_count;
    while (low < high) {
        uint64_t middle = low + (high - low) / 2;
        if (file->units[middle].end <= offset)
            low = middle + 1;
        else
            high = middle;
    }
    return low < file->unit_count && file->units[low].begin <= offset ? &file->units[low] : NULL;
}

// ---- ranges of code (2.17.3, 7.25; version 4: .debug_ranges) ----

static void visit_old_ranges(const struct unit *unit, uint64_t offset, range_visitor visit, void *data) {
    const struct unit *owner = unit->skeleton ? unit->skeleton : unit;
    if (unit->skeleton && __builtin_add_overflow(offset, owner->ranges_base, &offset)) return;
    struct cursor cursor = cursor_at(owner->file->sections[LINES_RANGES], offset);
    uint64_t base = owner->low_pc;
    while (!cursor.failed) {
        uint64_t begin = read_number(&cursor, 8), end = read_number(&cursor, 8);
        if (cursor.failed || (!begin && !end)) return;
        if (begin == UINT64_MAX)
            base = end;
        else
            visit(data, base + begin, base + end);
    }
}

static void visit_range_list(const struct unit *unit, uint64_t offset, range_visitor visit, void *data) {
    enum { END, BASE_INDEX, INDICES, INDEX_LENGTH, OFFSETS, BASE, ADDRESSES, ADDRESS_LENGTH };
    struct cursor cursor = cursor_at(unit->file->sections[LINES_RNGLISTS], offset);
    uint64_t base = unit->skeleton ? unit->skeleton->low_pc : unit->low_pc, begin = 0, end = 0;
    while (!cursor.failed) {
        bool is_known = true;
        switch (read_number(&cursor, 1)) {
        case BASE_INDEX:
            if (!indexed_address(unit, read_uleb(&cursor), &base)) return;
            continue;
        case BASE: base = read_number(&cursor, 8); continue;
        case INDICES:
            is_known = indexed_address(unit, read_uleb(&cursor), &begin);
            is_known &= indexed_address(unit, read_uleb(&cursor), &end);
            break;
        case INDEX_LENGTH:
            is_known = indexed_address(unit, read_uleb(&cursor), &begin);
            end = begin + read_uleb(&cursor);
            break;
        case OFFSETS:
            begin = base + read_uleb(&cursor);
            end = base + read_uleb(&cursor);
            break;
        case ADDRESSES:
            begin = read_number(&cursor, 8);
            end = read_number(&cursor, 8);
            break;
        case ADDRESS_LENGTH:
            begin = read_number(&cursor, 8);
            end = begin + read_uleb(&cursor);
            break;
        default: return; // END, and what later versions have
        }
        if (is_known && !cursor.failed) visit(data, begin, end);
    }
}

void visit_ranges(const struct unit *unit, const struct code_range *range, range_visitor visit, void *data) {
    uint64_t begin, end, offset;
    if (range->ranges.form) {
        if (unit->version < 5) {
            visit_old_ranges(unit, range->ranges.number, visit, data);
        } else if (range->ranges.form == FORM_RNGLISTX) {
            if (read_indexed(unit->file->sections[LINES_RNGLISTS], unit->rnglists_base, range->ranges.number,
                             unit->offset_nbytes, &offset) &&
                !__builtin_add_overflow(offset, unit->rnglists_base, &offset))
                visit_range_list(unit, offset, visit, data);
        } else {
            visit_range_list(unit, range->ranges.number, visit, data);
        }
    } else if (range->low.form && range->high.form && read_address(unit, &range->low, &begin)) {
        // From version 4 on it is usually a length.
        if (!read_address(unit, &range->high, &end)) end = begin + range->high.number;
        visit(data, begin, end);
    }
}

// ---- units (7.5.1) ----

static bool read_header(struct debug_file *file, uint64_t offset, struct unit *unit) {
    struct cursor cursor = cursor_at(file->sections[LINES_INFO], offset);
    uint64_t nbytes = read_number(&cursor, 4);
    *unit = (struct unit){.file = file, .begin = offset, .offset_nbytes = 4};
    if (nbytes == 0xffffffff) {
        nbytes = read_number(&cursor, 8);
        unit->offset_nbytes = 8;
    }
    if (cursor.failed || !nbytes || nbytes > bytes_left(&cursor)) return false;
    const uint8_t *base = file->sections[LINES_INFO].bytes;
    cursor.end = cursor.at + nbytes;
    unit->end = (uint64_t)(cursor.end - base);
    unit->version = (uint16_t)read_number(&cursor, 2);
    uint64_t type = 0, address_nbytes;
    if (unit->version >= 5) {
        type = read_number(&cursor, 1);
        address_nbytes = read_number(&cursor, 1);
        unit->abbreviations_offset = read_number(&cursor, unit->offset_nbytes);
        if (type == UNIT_SKELETON || type == UNIT_SPLIT) unit->dwo_id = read_number(&cursor, 8);
    } else {
        unit->abbreviations_offset = read_number(&cursor, unit->offset_nbytes);
        address_nbytes = read_number(&cursor, 1);
    }
    // Units of types, of other versions and of other machines have no code that could be asked for.
    unit->has_code = !cursor.failed && unit->version >= 2 && unit->version <= 5 && address_nbytes == 8 &&
                     type != UNIT_TYPE && type != UNIT_SPLIT_TYPE;
    unit->first_die = (uint64_t)(cursor.at - base);
    return true;
}

// The abbreviation of a unit's first entry, without reading the others: a file has thousands of units.
static bool read_root(struct unit *unit, struct code_range *range) {
    struct lines_bytes info = unit->file->sections[LINES_INFO];
    struct cursor cursor = {info.bytes + unit->first_die, info.bytes + unit->end, false};
    uint64_t code = read_uleb(&cursor);
    struct cursor specs = cursor_at(unit->file->sections[LINES_ABBREV], unit->abbreviations_offset);
    struct abbreviation item;
    struct attribute_spec attribute;
    while (next_abbreviation(&specs, &item) && item.code != code)
        while (next_attribute(&specs, &attribute)) {
        }
    if (specs.failed || cursor.failed || item.code != code || !code) return false;
    struct value folder = {0}, dwo_name = {0};
    while (next_attribute(&specs, &attribute) && !cursor.failed) {
        struct value value = read_value(unit, &attribute, &cursor);
        switch (attribute.name) {
        case AT_LOW_PC: range->low = value; break;
        case AT_HIGH_PC: range->high = value; break;
        case AT_RANGES: range->ranges = value; break;
        case AT_COMP_DIR: folder = value; break;
        case AT_DWO_NAME:
        case AT_GNU_DWO_NAME: dwo_name = value; break;
        case AT_GNU_DWO_ID: unit->dwo_id = value.number; break;
        case AT_STMT_LIST:
            unit->stmt_list = value.number;
            unit->has_lines = true;
            break;
        case AT_STR_OFFSETS_BASE: unit->str_offsets_base = value.number; break;
        case AT_ADDR_BASE:
        case AT_GNU_ADDR_BASE: unit->addr_base = value.number; break;
        case AT_RNGLISTS_BASE: unit->rnglists_base = value.number; break;
        case AT_GNU_RANGES_BASE: unit->ranges_base = value.number; break;
        default: break;
        }
    }
    if (cursor.failed) return false;
    // Now that the bases are known, what is relative to them.
    unit->folder = read_string(unit, &folder);
    unit->dwo_name = read_string(unit, &dwo_name);
    if (range->low.form && !read_address(unit, &range->low, &unit->low_pc)) unit->low_pc = 0;
    return true;
}

struct match {
    struct lines *lines;
    struct unit *unit;
};

static void match_addresses(void *data, uint64_t begin, uint64_t end) {
    struct match *match = data;
    struct wanted *wanted = match->lines->wanted;
    uint64_t count = match->lines->wanted_count;
    if (begin >= end) return;
    for (uint64_t at = first_from(wanted, count, begin); at < count && wanted[at].address < end; at++)
        if (!wanted[at].unit) wanted[at].unit = match->unit;
}

bool find_units(struct lines *lines, struct debug_file *file, const struct unit *skeleton) {
    uint64_t capacity = 0, offset = 0;
    struct unit unit;
    while (offset < file->sections[LINES_INFO].nbytes && read_header(file, offset, &unit)) {
        if (!grow((void **)&file->units, &capacity, file->unit_count, sizeof unit)) return false;
        if (skeleton) { // bases that split units do not name: after the header of their section
            unit.skeleton = skeleton;
            bool is_long = unit.offset_nbytes == 8;
            unit.str_offsets_base = unit.version >= 5 ? (is_long ? 16 : 8) : 0;
            unit.rnglists_base = is_long ? 20 : 12;
        }
        file->units[file->unit_count++] = unit;
        offset = unit.end;
    }
    for (uint64_t each = 0; each < file->unit_count; each++) {
        struct code_range range = {0};
        struct unit *found = &file->units[each];
        found->has_code = found->has_code && read_root(found, &range);
        if (found->has_code && !skeleton) visit_ranges(found, &range, match_addresses, &(struct match){lines, found});
    }
    return true;
}
