// Addresses in, frames out.
#include "dwarf.h"

#include <stdio.h>
#include <stdlib.h>

enum { MAX_TEXT = 4096 };

// ---- texts of the result ----

// Where the text begins that *parts* make, one after the other; 0 where there is no memory.
static uint64_t add_text(struct texts *texts, const char *const parts[], int count) {
    uint64_t begin = texts->nbytes, needed = begin + 1;
    uint64_t lengths[8];
    for (int each = 0; each < count; each++) needed += lengths[each] = strnlen(parts[each], MAX_TEXT);
    if (needed > texts->capacity) {
        uint64_t more = (needed > texts->capacity * 2 ? needed : texts->capacity * 2) + MAX_TEXT;
        char *grown = realloc(texts->bytes, more);
        if (!grown) return 0;
        texts->bytes = grown;
        texts->capacity = more;
    }
    for (int each = 0; each < count; each++) {
        memcpy(texts->bytes + texts->nbytes, parts[each], lengths[each]);
        texts->nbytes += lengths[each];
    }
    texts->bytes[texts->nbytes++] = '\0';
    return begin;
}

static uint64_t file_path(struct texts *texts, struct line_table *table, uint64_t number) {
    if (number >= table->file_count || !table->files[number].name) return 0;
    struct file_name *file = &table->files[number];
    if (file->path) return file->path;
    const char *folder = file->folder < table->folder_count ? table->folders[file->folder] : NULL;
    const char *parts[5];
    int count = 0;
    if (file->name[0] != '/') {
        if (folder && folder[0] != '/' && table->unit_folder && folder != table->unit_folder) {
            parts[count++] = table->unit_folder;
            parts[count++] = "/";
        }
        if (folder && *folder) {
            parts[count++] = folder;
            parts[count++] = "/";
        }
    }
    parts[count++] = file->name;
    return file->path = add_text(texts, parts, count);
}

// ---- frames ----

static bool add_frame(struct lines *lines, const struct lines_frame *frame) {
    if (lines->frame_count == lines->frame_capacity) {
        uint64_t more = lines->frame_capacity ? lines->frame_capacity * 2 : 1024;
        struct lines_frame *grown = realloc(lines->frames, more * sizeof *grown);
        if (!grown) return false;
        lines->frames = grown;
        lines->frame_capacity = more;
    }
    lines->frames[lines->frame_count++] = *frame;
    return true;
}

static uint32_t clip(uint64_t line) {
    return line > UINT32_MAX ? 0 : (uint32_t)line;
}

enum { MAX_INLINED = 512 };

// Innermost first. A frame's line is where the one inside it was called; the innermost has that of the address.
static bool add_frames(struct lines *lines, struct unit *owner, struct line_table *table, const struct wanted *wanted) {
    uint32_t chain[MAX_INLINED], depth = 0;
    for (uint32_t each = wanted->first; each && depth < MAX_INLINED; each = lines->inlinings[each - 1].next)
        chain[depth++] = each - 1;
    uint64_t file = wanted->has_line ? wanted->file : UINT64_MAX, line = wanted->has_line ? wanted->line : 0;
    if (!depth && wanted->has_line) {
        struct lines_frame frame = {wanted->number, clip(line), 0, file_path(&lines->texts, table, file)};
        return add_frame(lines, &frame);
    }
    while (depth--) {
        const struct inlining *function = &lines->inlinings[chain[depth]];
        const char *name = function_name(lines, owner, function->entry);
        uint64_t text = name && *name ? add_text(&lines->texts, &name, 1) : 0;
        struct lines_frame frame = {wanted->number, clip(line), text, file_path(&lines->texts, table, file)};
        if (!add_frame(lines, &frame)) return false;
        file = function->call_file;
        line = function->call_line;
    }
    return true;
}

static bool find_in_unit(struct lines *lines, struct unit *unit) {
    struct wanted *wanted = lines->wanted + unit->first_address;
    uint64_t count = unit->address_count;
    struct line_table table = {0};
    if (unit->has_lines && read_line_table(unit, &table)) run_line_program(&table, wanted, count);
    struct unit *owner = unit->split ? unit->split : unit;
    bool is_found = find_functions(lines, owner, wanted, count);
    for (uint64_t each = 0; is_found && each < count; each++)
        is_found = add_frames(lines, owner, &table, &wanted[each]);
    release_line_table(&table);
    return is_found;
}

// ---- what is exported ----

static int by_address(const void *a, const void *b) {
    uint64_t left = ((const struct wanted *)a)->address, right = ((const struct wanted *)b)->address;
    return left < right ? -1 : left > right;
}

static int by_unit(const void *a, const void *b) {
    const struct wanted *left = a, *right = b;
    uint64_t first = left->unit ? left->unit->begin : UINT64_MAX;
    uint64_t second = right->unit ? right->unit->begin : UINT64_MAX;
    if (first != second) return first < second ? -1 : 1;
    return by_address(a, b);
}

struct lines *lines_open(const struct lines_bytes sections[LINES_SECTIONS], const uint64_t *addresses, uint64_t count) {
    struct lines *lines = calloc(1, sizeof *lines);
    if (!lines) return NULL;
    memcpy(lines->main.sections, sections, sizeof lines->main.sections);
    lines->wanted = count < UINT32_MAX ? calloc(count + 1, sizeof *lines->wanted) : NULL;
    const char *nothing = "";
    add_text(&lines->texts, &nothing, 1); // 0 means unknown
    if (!lines->wanted || !lines->texts.bytes) {
        lines_close(lines);
        return NULL;
    }
    lines->wanted_count = count;
    for (uint64_t each = 0; each < count; each++)
        lines->wanted[each] = (struct wanted){.address = addresses[each], .number = (uint32_t)each};
    qsort(lines->wanted, count, sizeof *lines->wanted, by_address);
    if (!find_units(lines, &lines->main, NULL)) {
        lines_close(lines);
        return NULL;
    }
    qsort(lines->wanted, count, sizeof *lines->wanted, by_unit);
    for (uint64_t each = 0; each < count && lines->wanted[each].unit; each++) {
        struct unit *unit = lines->wanted[each].unit;
        if (!unit->address_count++) unit->first_address = each;
    }
    return lines;
}

int lines_next_split(struct lines *lines, uint64_t unit, struct lines_split_unit *found) {
    for (; unit < lines->main.unit_count; unit++) {
        const struct unit *each = &lines->main.units[unit];
        if (!each->address_count || !each->dwo_name || each->split) continue;
        *found = (struct lines_split_unit){unit, each->dwo_id, each->dwo_name, each->folder ? each->folder : ""};
        return 1;
    }
    return 0;
}

void lines_add_split(struct lines *lines, uint64_t number, const struct lines_bytes sections[LINES_SECTIONS]) {
    if (number >= lines->main.unit_count || lines->dwo_count == LINES_MAX_SPLIT) return;
    struct unit *skeleton = &lines->main.units[number];
    struct debug_file *file = calloc(1, sizeof *file);
    if (!file || skeleton->split) {
        free(file);
        return;
    }
    memcpy(file->sections, sections, sizeof file->sections);
    lines->dwos[lines->dwo_count++] = file;
    if (!find_units(lines, file, skeleton)) return;
    // Units of types may come first; the id says whether the file is of this build.
    for (uint64_t each = 0; each < file->unit_count; each++) {
        struct unit *unit = &file->units[each];
        if (!unit->has_code || unit->dwo_id != skeleton->dwo_id) continue;
        skeleton->split = unit;
        return;
    }
}

uint64_t lines_find(struct lines *lines) {
    for (uint64_t each = 0; each < lines->main.unit_count; each++)
        if (lines->main.units[each].address_count && !find_in_unit(lines, &lines->main.units[each])) break;
    return lines->frame_count;
}

const struct lines_frame *lines_frames(const struct lines *lines) {
    return lines->frames;
}

const char *lines_texts(const struct lines *lines, uint64_t *nbytes) {
    *nbytes = lines->texts.nbytes;
    return lines->texts.bytes;
}

void lines_close(struct lines *lines) {
    for (uint64_t each = 0; each < lines->dwo_count; each++) {
        free(lines->dwos[each]->units);
        free(lines->dwos[each]);
    }
    release_abbreviations(lines);
    free(lines->main.units);
    free(lines->wanted);
    free(lines->inlinings);
    free(lines->frames);
    free(lines->texts.bytes);
    free(lines);
}
