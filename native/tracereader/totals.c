/* Sums by GPU and by site, what was live at each GPU's peak, lifetimes, and the timeline; all in one pass.
 *
 * What was live at the peak is what is live at the end and older than the peak, and what was freed since the
 * latest peak and is older than that: the list of the latter is never longer than the set itself.
 */
#include "internal.h"

#include <stdlib.h>
#include <string.h>

/* ---- GPUs ---- */

static const struct device *described(const struct section *section, uint32_t device) {
    for (uint64_t at = 0; at < section->devices.count; at++)
        if (AT(section->devices, struct device, at).number == device) return &AT(section->devices, struct device, at);
    return NULL;
}

static int32_t free_number(const struct vramreader *reader, int32_t wanted) {
    bool taken[MAX_GPUS + 1] = {0};
    for (uint64_t at = 0; at < reader->gpus.count; at++) {
        int32_t number = GPU(reader, at)->row.number;
        if (number >= 0 && number <= MAX_GPUS) taken[number] = true;
    }
    if (!taken[wanted]) return wanted;
    for (int32_t number = 0; number <= MAX_GPUS; number++)
        if (!taken[number]) return number;
    return wanted;
}

/* A device's number is the process's own (CUDA_VISIBLE_DEVICES): its PCI address tells which GPU it is. */
uint32_t gpu_of(struct vramreader *reader, uint32_t section_number, uint32_t device_plus_1) {
    const struct section *section = SECTION(reader, section_number);
    const struct device *device = device_plus_1 ? described(section, device_plus_1 - 1) : NULL;
    uint64_t identity = (uint64_t)section->row.cluster << 40;
    if (!device_plus_1)
        identity = UINT64_MAX;
    else if (device && device->pci && AT(reader->strings, struct row_string, device->pci - 1).nbytes)
        identity |= (uint64_t)1 << 39 | device->pci;
    else
        identity |= device_plus_1;
    for (uint32_t at = 0; at < reader->gpus.count; at++)
        if (GPU(reader, at)->identity == identity) return at;
    if (reader->gpus.count > MAX_GPUS) return 0;
    struct point *points = take_memory(reader, reader->points_wanted * sizeof *points);
    if (!points) return 0;
    int32_t number = device_plus_1 ? free_number(reader, (int32_t)device_plus_1 - 1) : -1;
    struct gpu *gpu = push(reader, &reader->gpus, sizeof *gpu);
    if (!gpu) {
        release_memory(reader, points, reader->points_wanted * sizeof *points);
        return 0;
    }
    gpu->identity = identity;
    gpu->points = points;
    gpu->row.number = number;
    gpu->row.cluster = section->row.cluster;
    if (device) {
        gpu->row.name = device->name;
        gpu->row.pci = device->pci;
        gpu->row.total_nbytes = device->nbytes;
    }
    return (uint32_t)reader->gpus.count - 1;
}

/* ---- sites ---- */

uint32_t site_of(struct vramreader *reader, uint32_t stack, uint32_t kind, uint32_t gpu, uint32_t section) {
    if (!lookup_room(reader, &reader->site_lookup)) return NONE;
    uint64_t parts[2] = {(uint64_t)stack << 32 | kind, (uint64_t)gpu << 32 | section};
    uint32_t hash = (uint32_t)hash_bytes(reader, parts, sizeof parts);
    struct lookup *lookup = &reader->site_lookup;
    for (uint64_t at = hash & lookup->mask; lookup->slots[at].number; at = (at + 1) & lookup->mask) {
        if (lookup->slots[at].hash != hash) continue;
        const struct row_site *row = &SITE(reader, lookup->slots[at].number - 1)->row;
        if (row->stack == stack && row->kind == kind && row->gpu == (int32_t)gpu && row->process == section)
            return lookup->slots[at].number - 1;
    }
    struct site *site = push(reader, &reader->sites, sizeof *site);
    if (!site) return NONE;
    site->row.stack = stack;
    site->row.kind = kind;
    site->row.gpu = (int32_t)gpu;
    site->row.process = section;
    lookup_add(lookup, hash, (uint32_t)reader->sites.count);
    return (uint32_t)reader->sites.count - 1;
}

/* ---- lifetimes ---- */

enum { FEW = 16, BUCKETS = 256 };

/* Four buckets for each power of two. */
static uint32_t bucket_of(uint64_t life) {
    if (life < 4) return (uint32_t)life;
    uint32_t power = 63 - (uint32_t)__builtin_clzll(life);
    return power * 4 + (uint32_t)(life >> (power - 2) & 3);
}

static uint64_t middle_of(uint32_t bucket) {
    if (bucket < 4) return bucket;
    uint64_t power = bucket / 4, width = (uint64_t)1 << (power - 2);
    return (4 + bucket % 4) * width + width / 2;
}

static void add_life(struct vramreader *reader, struct site *site, uint64_t life) {
    if (!site->lives && !(site->lives = take_memory(reader, FEW * sizeof *site->lives))) return;
    if (!site->is_histogram && site->few < FEW) {
        site->lives[site->few++] = life;
        return;
    }
    if (!site->is_histogram) {
        uint32_t *buckets = take_memory(reader, BUCKETS * sizeof *buckets);
        if (!buckets) return;
        for (uint32_t at = 0; at < FEW; at++) buckets[bucket_of(site->lives[at])]++;
        release_memory(reader, site->lives, FEW * sizeof *site->lives);
        site->lives = (uint64_t *)buckets;
        site->is_histogram = 1;
    }
    uint32_t *bucket = (uint32_t *)site->lives + bucket_of(life);
    if (*bucket < UINT32_MAX) ++*bucket;
}

static int by_value(const void *left, const void *right) {
    uint64_t a = *(const uint64_t *)left, b = *(const uint64_t *)right;
    return a < b ? -1 : a > b;
}

uint64_t median_life(const struct site *site) {
    if (!site->lives) return 0;
    if (!site->is_histogram) {
        uint64_t sorted[FEW];
        memcpy(sorted, site->lives, sizeof sorted);
        qsort(sorted, site->few, sizeof *sorted, by_value);
        return sorted[site->few / 2];
    }
    const uint32_t *buckets = (const uint32_t *)site->lives;
    uint64_t sum = 0, so_far = 0;
    for (uint32_t at = 0; at < BUCKETS; at++) sum += buckets[at];
    for (uint32_t at = 0; at < BUCKETS; at++)
        if ((so_far += buckets[at]) > sum / 2) return middle_of(at);
    return 0;
}

void release_totals(struct vramreader *reader) {
    for (uint64_t at = 0; at < reader->sites.count; at++) {
        struct site *site = SITE(reader, at);
        uint64_t nbytes = site->is_histogram ? BUCKETS * sizeof(uint32_t) : FEW * sizeof(uint64_t);
        release_memory(reader, site->lives, nbytes);
    }
    for (uint64_t at = 0; at < reader->gpus.count; at++) {
        struct gpu *gpu = GPU(reader, at);
        release_memory(reader, gpu->points, reader->points_wanted * sizeof *gpu->points);
        release_vector(reader, &gpu->gone, sizeof(struct gone));
        for (uint32_t layer = 0; layer < LAYERS; layer++)
            release_vector(reader, &gpu->layers[layer].gone, sizeof(struct gone_in_window));
    }
}

/* ---- the timeline ---- */

/* Twice as much time in each point, half as many points. */
static void halve(struct vramreader *reader) {
    uint32_t points = reader->points_wanted;
    reader->shift++;
    for (uint64_t number = 0; number < reader->gpus.count; number++) {
        struct point *all = GPU(reader, number)->points;
        for (uint32_t at = 0; at < (points + 1) / 2; at++) {
            struct point first = all[2 * at], second = {0};
            if (2 * at + 1 < points) second = all[2 * at + 1];
            if (first.used && second.used) {
                if (second.highest > first.highest) first.highest = second.highest;
                if (second.lowest < first.lowest) first.lowest = second.lowest;
                first.last = second.last;
            }
            all[at] = first.used ? first : second;
        }
        memset(all + (points + 1) / 2, 0, points / 2 * sizeof *all);
    }
}

static void add_point(struct vramreader *reader, struct gpu *gpu, uint64_t time, int64_t before, int64_t after) {
    while (unlikely(time >> reader->shift >= reader->points_wanted)) halve(reader);
    struct point *point = &gpu->points[time >> reader->shift];
    int64_t higher = before > after ? before : after, lower = before > after ? after : before;
    if (!point->used) *point = (struct point){higher, lower, after, true};
    if (higher > point->highest) point->highest = higher;
    if (lower < point->lowest) point->lowest = lower;
    point->last = after;
}

/* ---- sums ---- */

static bool is_host(uint32_t kind) {
    return kind == KIND_PINNED_HOST || kind == KIND_REGISTERED_HOST || kind == KIND_PHYSICAL_HOST;
}

static void add_to(int64_t *sum, uint64_t nbytes) {
    *sum = *sum > MAX_SUM - (int64_t)nbytes ? MAX_SUM : *sum + (int64_t)nbytes;
}

bool count_allocation(struct vramreader *reader, const struct allocation *allocation) {
    struct site *site = SITE(reader, allocation->site);
    struct gpu *gpu = GPU(reader, site->row.gpu);
    int64_t nbytes = (int64_t)allocation->nbytes;
    if (site->row.live_nbytes > MAX_SUM - nbytes || gpu->row.live_nbytes > MAX_SUM - nbytes ||
        reader->host_live > MAX_SUM - nbytes)
        return false;
    if (!site->row.count) site->row.first_ns = allocation->time;
    site->row.count++;
    add_to(&site->row.nbytes, allocation->nbytes);
    site->row.live_count++;
    site->row.live_nbytes += nbytes;
    window_allocation(reader, gpu, allocation);
    if (is_on_gpu(allocation->kind)) {
        int64_t before = gpu->row.live_nbytes;
        gpu->row.live_nbytes += nbytes;
        gpu->row.allocations++;
        add_to(&gpu->row.allocated_nbytes, allocation->nbytes);
        if (gpu->row.live_nbytes > gpu->row.peak_nbytes) {
            gpu->row.peak_nbytes = gpu->row.live_nbytes;
            gpu->row.peak_ns = allocation->time;
            gpu->row.peak_event = allocation->event;
            gpu->gone.count = 0;
        }
        add_point(reader, gpu, allocation->time, before, gpu->row.live_nbytes);
    } else if (is_host(allocation->kind)) {
        reader->host_live += nbytes;
        if (reader->host_live > reader->host_peak) reader->host_peak = reader->host_live;
    }
    return true;
}

void count_end(struct vramreader *reader, const struct allocation *allocation, uint64_t time, bool freed) {
    struct site *site = SITE(reader, allocation->site);
    struct gpu *gpu = GPU(reader, site->row.gpu);
    int64_t nbytes = (int64_t)allocation->nbytes;
    bool is_mapping = allocation->space == SPACE_MAPPING;
    if (allocation->event <= gpu->row.peak_event && (is_on_gpu(allocation->kind) || allocation->kind >= KIND_BLOCK)) {
        struct gone *gone = push(reader, &gpu->gone, sizeof *gone);
        if (gone)
            *gone = (struct gone){allocation->address,   allocation->nbytes, allocation->site,
                                  allocation->framework, is_mapping,         allocation->kind};
    }
    if (is_mapping) return;
    window_end(reader, gpu, allocation);
    site->row.live_count--;
    site->row.live_nbytes -= nbytes;
    if (freed) {
        site->row.freed++;
        add_life(reader, site, time > allocation->time ? time - allocation->time : 0);
    }
    if (is_on_gpu(allocation->kind)) {
        int64_t before = gpu->row.live_nbytes;
        gpu->row.live_nbytes -= nbytes;
        if (freed) gpu->row.frees++;
        add_point(reader, gpu, time, before, gpu->row.live_nbytes);
    } else if (is_host(allocation->kind)) {
        reader->host_live -= nbytes;
    }
}
