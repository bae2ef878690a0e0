/* The tables at the end: what is left and what its verdict depends on, what was live at the peaks, the sites. */
#include "internal.h"

/* ---- what is left ---- */

static struct row_left *left_row(struct vramreader *reader, const struct allocation *allocation) {
    struct row_site *site = &SITE(reader, allocation->site)->row;
    bool went_on = SECTION(reader, allocation->section)->last_active > allocation->event;
    if (allocation->framework) return &site->cache;
    return allocation->state == STATE_LEFT && went_on ? &site->leaked : &site->kept;
}

/* When the program's work ended: with its last allocation, where only its exit came after that. */
static uint64_t end_of_work(const struct row_section *section) {
    bool only_exit = section->last_ns - section->last_allocation_ns <= MAX_EXIT_NS;
    return only_exit ? section->last_allocation_ns : section->last_ns;
}

/* In which quarter of the time from the site's first allocation, freed or not, to the end this one was made. */
static uint32_t quarter_of(struct vramreader *reader, const struct allocation *allocation) {
    uint64_t first = SITE(reader, allocation->site)->row.first_ns;
    uint64_t last = end_of_work(&SECTION(reader, allocation->section)->row);
    if (last <= first || allocation->time <= first) return 0;
    uint64_t quarter = (allocation->time - first) / ((last - first) / 4 + 1);
    return quarter > 3 ? 3 : (uint32_t)quarter;
}

static void add_left(struct vramreader *reader, const struct allocation *allocation) {
    struct row_left *left = left_row(reader, allocation);
    if (!left->count || allocation->time < left->first_ns) left->first_ns = allocation->time;
    if (allocation->time > left->last_ns) left->last_ns = allocation->time;
    if (allocation->nbytes > left->largest) left->largest = allocation->nbytes;
    left->count++;
    /* Sums of what a context left behind may be larger than what was live at once. */
    if (__builtin_add_overflow(left->nbytes, (int64_t)allocation->nbytes, &left->nbytes)) left->nbytes = INT64_MAX;
    left->quarters |= 1u << quarter_of(reader, allocation);
}

/* ---- what was live at the peaks ---- */

static struct row_reserved *reserved_row(struct vramreader *reader, uint32_t gpu, uint32_t process, uint32_t kind) {
    uint64_t key = (uint64_t)process << 20 | gpu << 8 | kind;
    uint32_t *number = map_value(reader, &reader->reserved_rows, key);
    if (!number) return NULL;
    if (!*number) {
        struct row_reserved *row = push(reader, &reader->reserved, sizeof *row);
        if (!row) return NULL;
        *row = (struct row_reserved){.gpu = gpu, .process = process, .kind = kind};
        *number = (uint32_t)reader->reserved.count;
    }
    return &AT(reader->reserved, struct row_reserved, *number - 1);
}

static void add_peak(struct vramreader *reader, uint32_t site_number, uint64_t nbytes, uint8_t framework) {
    struct row_site *site = &SITE(reader, site_number)->row;
    site->peak_count++;
    site->peak_nbytes += (int64_t)nbytes;
    struct row_reserved *row = framework ? reserved_row(reader, (uint32_t)site->gpu, site->process, framework) : NULL;
    if (row) row->peak_nbytes += nbytes;
}

bool was_at_peak(const struct vramreader *reader, const struct allocation *allocation) {
    if (allocation->state != STATE_LIVE && allocation->state != STATE_RELEASED) return false;
    if (!is_on_gpu(allocation->kind) && allocation->kind < 16) return false;
    return allocation->event <= GPU(reader, SITE(reader, allocation->site)->row.gpu)->row.peak_event;
}

static void judge_allocations(struct vramreader *reader) {
    for (uint32_t at = 0; at < reader->allocation_count && !reader->error; at++) {
        const struct allocation *allocation = allocation_at(reader, at);
        if (allocation->state == STATE_FREE || allocation->space == SPACE_MAPPING) continue;
        add_left(reader, allocation);
        if (was_at_peak(reader, allocation))
            add_peak(reader, allocation->site, allocation->nbytes, allocation->framework);
        if (allocation->framework && allocation->state != STATE_LEFT) {
            const struct row_site *site = &SITE(reader, allocation->site)->row;
            struct row_reserved *row = reserved_row(reader, (uint32_t)site->gpu, site->process, allocation->framework);
            if (row) row->end_nbytes += allocation->nbytes;
        }
    }
    for (uint64_t number = 0; number < reader->gpus.count; number++) {
        const struct vector *gone = &GPU(reader, number)->gone;
        for (uint64_t at = 0; at < gone->count && !reader->error; at++) {
            const struct gone *row = &AT(*gone, struct gone, at);
            if (!row->mapping) add_peak(reader, row->site, row->nbytes, row->framework);
        }
    }
}

/* ---- sites ---- */

uint64_t select_largest(uint64_t *sizes, uint64_t count, uint64_t rank) {
    uint64_t first = 0, last = count - 1;
    while (first < last) {
        uint64_t pivot = sizes[first + (last - first) / 2], low = first, high = last;
        for (;;) {
            while (sizes[low] > pivot) low++;
            while (sizes[high] < pivot) high--;
            if (low >= high) break;
            uint64_t swapped = sizes[low];
            sizes[low++] = sizes[high];
            sizes[high--] = swapped;
        }
        if (rank <= high)
            last = high;
        else
            first = high + 1;
    }
    return sizes[rank];
}

static void add_left_of(struct row_left *sum, const struct row_left *left) {
    if (!left->count) return;
    if (!sum->count || left->first_ns < sum->first_ns) sum->first_ns = left->first_ns;
    if (left->last_ns > sum->last_ns) sum->last_ns = left->last_ns;
    if (left->largest > sum->largest) sum->largest = left->largest;
    sum->count += left->count;
    if (__builtin_add_overflow(sum->nbytes, left->nbytes, &sum->nbytes)) sum->nbytes = INT64_MAX;
}

static void add_site(struct row_site *sum, const struct row_site *row) {
    sum->count += row->count;
    sum->freed += row->freed;
    sum->nbytes = sum->nbytes > MAX_SUM - row->nbytes ? MAX_SUM : sum->nbytes + row->nbytes;
    sum->live_count += row->live_count;
    sum->live_nbytes += row->live_nbytes;
    sum->peak_count += row->peak_count;
    sum->peak_nbytes += row->peak_nbytes;
    sum->window.base_count += row->window.base_count;
    sum->window.base_nbytes += row->window.base_nbytes;
    sum->window.earlier_count += row->window.earlier_count;
    sum->window.earlier_nbytes = sum->window.earlier_nbytes > MAX_SUM - row->window.earlier_nbytes
                                     ? MAX_SUM
                                     : sum->window.earlier_nbytes + row->window.earlier_nbytes;
    sum->window.earlier_freed += row->window.earlier_freed;
    sum->window.highest_count += row->window.highest_count;
    sum->window.highest_nbytes += row->window.highest_nbytes;
    add_left_of(&sum->leaked, &row->leaked);
    add_left_of(&sum->kept, &row->kept);
    add_left_of(&sum->cache, &row->cache);
}

/* How many bytes a site must have allocated to have a row of its own. */
static int64_t least_of_a_row(struct vramreader *reader) {
    uint64_t count = reader->sites.count;
    if (count <= MAX_SITES) return -1;
    uint64_t *sizes = take_memory(reader, count * sizeof *sizes);
    if (!sizes) return INT64_MAX;
    for (uint64_t at = 0; at < count; at++) sizes[at] = (uint64_t)SITE(reader, at)->row.nbytes;
    uint64_t least = select_largest(sizes, count, MAX_SITES);
    release_memory(reader, sizes, count * sizeof *sizes);
    return (int64_t)least;
}

/* Of too many the smallest are one row, without a stack. */
void build_sites(struct vramreader *reader) {
    int64_t least = least_of_a_row(reader);
    uint64_t count = reader->sites.count, joined = 0;
    reader->site_rows.count = reader->site_places.count = 0;
    uint32_t *places = push_many(reader, &reader->site_places, sizeof *places, count);
    if (reader->error) return;
    struct map sums = {0};
    for (uint64_t at = 0; at < count && !reader->error; at++) {
        const struct row_site *site = &SITE(reader, at)->row;
        uint32_t *number = NULL;
        if (site->nbytes <= least) {
            /* A GPU has less than 9 bits, a kind 5. */
            number = map_value(reader, &sums, (uint64_t)site->process << 16 | (uint64_t)site->gpu << 5 | site->kind);
            if (!number) break;
            joined++;
        }
        if (number && *number) {
            add_site(&AT(reader->site_rows, struct row_site, *number - 1), site);
            places[at] = *number - 1;
            continue;
        }
        struct row_site *row = push(reader, &reader->site_rows, sizeof *row);
        if (!row) break;
        *row = *site;
        row->median_life_ns = median_life(SITE(reader, at));
        places[at] = (uint32_t)reader->site_rows.count - 1;
        if (!number) continue;
        row->stack = 0;
        row->leaked.quarters = row->kept.quarters = row->cache.quarters = 0; /* of many stacks: no growth of one */
        *number = (uint32_t)reader->site_rows.count;
    }
    release_map(reader, &sums);
    if (joined && !reader->too_many_sites) damaged(reader, DAMAGE_SITES, NONE, 0, 0, joined);
    reader->too_many_sites |= joined != 0;
}

/* ---- the timeline ---- */

void build_timeline(struct vramreader *reader) {
    reader->timeline.count = 0;
    for (uint32_t number = 0; number < reader->gpus.count; number++) {
        const struct gpu *gpu = GPU(reader, number);
        for (uint64_t at = 0; at < reader->points_wanted && !reader->error; at++) {
            const struct point *point = &gpu->points[at];
            if (!point->used) continue;
            struct row_timeline *row = push(reader, &reader->timeline, sizeof *row);
            if (row)
                *row =
                    (struct row_timeline){at << reader->shift, point->highest, point->lowest, point->last, number, 0};
        }
    }
}

void finish(struct vramreader *reader) {
    if (reader->finished) return;
    reader->finished = true;
    if (!reader->growing) release_lookup(reader, &reader->live); /* nothing is looked up any more */
    judge_allocations(reader);
    if (!reader->error) finish_window(reader);
    for (uint32_t gpu = 0; gpu < reader->gpus.count && !reader->error; gpu++) {
        find_holes(reader, gpu, false);
        find_holes(reader, gpu, true);
    }
}
