// Line tables (6.2): the names of files, and the program whose rows say which line an address has.
#include "dwarf.h"

#include <stdlib.h>

enum { MAX_NAMES = 1 << 20, CONTENT_PATH = 1, CONTENT_FOLDER = 2 };

struct name_list {
    struct file_name *files;
    uint64_t count, capacity;
};

static bool add_name(struct name_list *list, const char *name, uint64_t folder) {
    if (list->count == list->capacity) {
        uint64_t more = list->capacity ? list->capacity * 2 : 16;
        struct file_name *files = realloc(list->files, more * sizeof *files);
        if (!files) return false;
        list->files = files;
        list->capacity = more;
    }
    list->files[list->count++] = (struct file_name){.name = name, .folder = folder};
    return true;
}

// Version 5: a description of the columns, then the rows.
static bool read_names(const struct unit *unit, struct cursor *cursor, struct name_list *list) {
    struct {
        uint64_t content;
        struct attribute_spec spec;
    } columns[16];
    uint64_t column_count = read_number(cursor, 1);
    if (column_count > sizeof columns / sizeof *columns) return false;
    for (uint64_t each = 0; each < column_count; each++) {
        columns[each].content = read_uleb(cursor);
        uint64_t form = read_uleb(cursor);
        if (form == FORM_IMPLICIT_CONST || form > UINT16_MAX) return false;
        columns[each].spec = (struct attribute_spec){.form = (uint16_t)form};
    }
    uint64_t count = read_uleb(cursor);
    if (count > MAX_NAMES || (count && !column_count)) return false;
    for (uint64_t row = 0; row < count && !cursor->failed; row++) {
        const char *name = NULL;
        uint64_t folder = 0;
        for (uint64_t each = 0; each < column_count; each++) {
            struct value value = read_value(unit, &columns[each].spec, cursor);
            if (columns[each].content == CONTENT_PATH) name = read_string(unit, &value);
            if (columns[each].content == CONTENT_FOLDER) folder = value.number;
        }
        if (!add_name(list, name, folder)) return false;
    }
    return !cursor->failed;
}

// Up to version 4: names that end with an empty one. Folder 0 is the unit's own; files count from 1.
static bool read_old_names(struct cursor *cursor, struct name_list *list, bool are_files) {
    while (!cursor->failed && list->count < MAX_NAMES) {
        const char *name = read_text(cursor);
        if (!name || !*name) break;
        uint64_t folder = 0;
        if (are_files) {
            folder = read_uleb(cursor);
            read_uleb(cursor); // when it was changed
            read_uleb(cursor); // its size
        }
        if (!add_name(list, name, folder)) return false;
    }
    return !cursor->failed;
}

static bool read_all_names(const struct unit *unit, struct cursor *cursor, struct line_table *table) {
    struct name_list folders = {0}, files = {0};
    bool is_read;
    if (table->version >= 5)
        is_read = read_names(unit, cursor, &folders) && read_names(unit, cursor, &files);
    else
        is_read = add_name(&folders, unit->folder, 0) && read_old_names(cursor, &folders, false) &&
                  add_name(&files, NULL, 0) && read_old_names(cursor, &files, true);
    table->files = files.files;
    table->file_count = files.count;
    table->folders = is_read ? calloc(folders.count + 1, sizeof *table->folders) : NULL;
    for (uint64_t each = 0; table->folders && each < folders.count; each++)
        table->folders[each] = folders.files[each].name;
    table->folder_count = table->folders ? folders.count : 0;
    free(folders.files);
    return table->folders != NULL;
}

bool read_line_table(const struct unit *unit, struct line_table *table) {
    struct cursor cursor = cursor_at(unit->file->sections[LINES_LINE], unit->stmt_list);
    *table = (struct line_table){.unit_folder = unit->folder, .offset_nbytes = 4};
    uint64_t nbytes = read_number(&cursor, 4);
    if (nbytes == 0xffffffff) {
        nbytes = read_number(&cursor, 8);
        table->offset_nbytes = 8;
    }
    if (cursor.failed || nbytes > bytes_left(&cursor)) return false;
    cursor.end = cursor.at + nbytes;
    table->version = (uint16_t)read_number(&cursor, 2);
    if (table->version < 2 || table->version > 5) return false;
    if (table->version >= 5 && (read_number(&cursor, 1) != 8 || read_number(&cursor, 1) != 0)) return false;
    uint64_t header_nbytes = read_number(&cursor, table->offset_nbytes);
    if (cursor.failed || header_nbytes > bytes_left(&cursor)) return false;
    table->program = (struct cursor){cursor.at + header_nbytes, cursor.end, false};
    cursor.end = table->program.at;
    table->smallest_instruction = (uint8_t)read_number(&cursor, 1);
    table->operations = table->version >= 4 ? (uint8_t)read_number(&cursor, 1) : 1;
    skip_bytes(&cursor, 1); // is_stmt: every row counts here
    table->line_base = (int8_t)read_number(&cursor, 1);
    table->line_range = (uint8_t)read_number(&cursor, 1);
    table->opcode_base = (uint8_t)read_number(&cursor, 1);
    table->opcode_lengths = cursor.at;
    if (!table->line_range || !table->operations || !table->opcode_base) return false;
    skip_bytes(&cursor, table->opcode_base - 1u);
    // Forms in it have this table's size of offsets, which may be another than the unit's.
    struct unit named = *unit;
    named.offset_nbytes = table->offset_nbytes;
    return !cursor.failed && read_all_names(&named, &cursor, table);
}

void release_line_table(struct line_table *table) {
    free(table->folders);
    free(table->files);
    *table = (struct line_table){0};
}

// ---- the program (6.2.2 to 6.2.5) ----

struct row {
    uint64_t address, operation, file, line;
};

// The addresses from one row to the next have the line of the first.
static void give_lines(const struct row *row, uint64_t end, struct wanted *wanted, uint64_t count) {
    for (uint64_t at = first_from(wanted, count, row->address); at < count && wanted[at].address < end; at++) {
        if (wanted[at].has_line) continue;
        wanted[at].has_line = true;
        wanted[at].file = row->file;
        wanted[at].line = row->line;
    }
}

static void advance(const struct line_table *table, struct row *row, uint64_t operations) {
    if (table->operations == 1) {
        row->address += table->smallest_instruction * operations;
        return;
    }
    uint64_t sum = row->operation + operations;
    row->address += table->smallest_instruction * (sum / table->operations);
    row->operation = sum % table->operations;
}

void run_line_program(struct line_table *table, struct wanted *wanted, uint64_t count) {
    enum {
        EXTENDED,
        COPY,
        ADVANCE_PC,
        ADVANCE_LINE,
        SET_FILE,
        SET_COLUMN,
        NEGATE_STATEMENT,
        BASIC_BLOCK,
        CONST_ADD_PC,
        FIXED_ADVANCE_PC,
        END_SEQUENCE = 1,
        SET_ADDRESS = 2,
    };
    const struct row start = {.file = 1, .line = 1};
    struct cursor cursor = table->program;
    struct row row = start, before = start;
    bool has_before = false;
    while (cursor.at < cursor.end && !cursor.failed) {
        uint8_t opcode = *cursor.at++;
        bool is_row = false, is_end = false;
        if (opcode >= table->opcode_base) {
            uint8_t special = (uint8_t)(opcode - table->opcode_base);
            advance(table, &row, special / table->line_range);
            row.line += (uint64_t)(int64_t)(table->line_base + special % table->line_range);
            is_row = true;
        } else {
            switch (opcode) {
            case EXTENDED: {
                uint64_t nbytes = read_uleb(&cursor);
                const uint8_t *begin = cursor.at;
                if (cursor.failed || !nbytes || nbytes > bytes_left(&cursor)) return;
                uint8_t extended = (uint8_t)read_number(&cursor, 1);
                if (extended == END_SEQUENCE) is_row = is_end = true;
                if (extended == SET_ADDRESS && nbytes == 9) {
                    row.address = read_number(&cursor, 8);
                    row.operation = 0;
                }
                cursor.at = begin + nbytes;
                break;
            }
            case COPY: is_row = true; break;
            case ADVANCE_PC: advance(table, &row, read_uleb(&cursor)); break;
            case ADVANCE_LINE: row.line += (uint64_t)read_sleb(&cursor); break;
            case SET_FILE: row.file = read_uleb(&cursor); break;
            case NEGATE_STATEMENT:
            case BASIC_BLOCK: break;
            case CONST_ADD_PC: advance(table, &row, (uint8_t)(255 - table->opcode_base) / table->line_range); break;
            case FIXED_ADVANCE_PC:
                row.address += read_number(&cursor, 2);
                row.operation = 0;
                break;
            default: // with operands that are not needed
                for (uint8_t left = table->opcode_lengths[opcode - 1]; left; left--) read_uleb(&cursor);
            }
        }
        if (!is_row || cursor.failed) continue;
        // A sequence at address 0 is of a function that the linker left out.
        if (has_before && before.address && before.address < row.address)
            give_lines(&before, row.address, wanted, count);
        before = row;
        has_before = !is_end;
        if (is_end) row = start;
    }
}
