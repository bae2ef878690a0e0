/* A window of the trace, from a moment to the end: what was live when it began, its highest moment, what came of
 * each site in it, and the lowest of each of its quarters.
 *
 * A GPU has a layer for the driver's memory and one for each kind of framework's blocks, which lie inside it and are
 * never added to it. What was live at a layer's highest moment is found as at the peak (totals.c).
 */
#include "internal.h"

void set_window(struct vramreader *reader, uint64_t begin_ns, uint64_t end_ns) {
    uint64_t quarter = end_ns > begin_ns ? (end_ns - begin_ns) / 4 : 0;
    for (uint32_t at = 0; at < 4; at++) reader->window_bounds[at] = begin_ns + at * quarter;
}

static void begin_window(struct vramreader *reader) {
    for (uint64_t at = 0; at < reader->sites.count; at++) {
        struct row_site *row = &SITE(reader, at)->row;
        row->window = (struct row_site_window){.base_count = row->live_count,
                                               .base_nbytes = row->live_nbytes,
                                               .earlier_count = row->count,
                                               .earlier_nbytes = row->nbytes,
                                               .earlier_freed = row->freed};
    }
}

/* Before the first event at or after the next bound. */
void cross_window_bound(struct vramreader *reader) {
    uint32_t quarter = reader->window_quarter++;
    if (!quarter) begin_window(reader);
    reader->window_next = reader->window_quarter < 4 ? reader->window_bounds[reader->window_quarter] : UINT64_MAX;
    for (uint64_t number = 0; number < reader->gpus.count; number++) {
        for (uint32_t at = 0; at < LAYERS; at++) {
            struct layer *layer = &GPU(reader, number)->layers[at];
            layer->row.lowest[quarter] = layer->row.end_nbytes;
            if (quarter) continue;
            layer->row.base_nbytes = layer->row.highest_nbytes = layer->row.end_nbytes;
            layer->row.highest_ns = reader->window_bounds[0];
            layer->highest_event = reader->events;
        }
    }
}

static void add_highest(struct vramreader *reader, uint32_t site, uint64_t nbytes) {
    struct row_site_window *window = &SITE(reader, site)->row.window;
    window->highest_count++;
    window->highest_nbytes += (int64_t)nbytes;
}

void finish_window(struct vramreader *reader) {
    while (reader->window_quarter < 4) cross_window_bound(reader); /* it ended before the last quarter began */
    for (uint32_t at = 0; at < reader->allocation_count; at++) {
        const struct allocation *allocation = allocation_at(reader, at);
        bool is_live = allocation->state == STATE_LIVE || allocation->state == STATE_RELEASED;
        if (!is_live || allocation->space == SPACE_MAPPING) continue;
        const struct layer *layer = layer_of(GPU(reader, SITE(reader, allocation->site)->row.gpu), allocation->kind);
        if (layer && allocation->event <= layer->highest_event)
            add_highest(reader, allocation->site, allocation->nbytes);
    }
    /* What was held before has a window, also where nothing came of it. */
    for (uint64_t at = 0; at < reader->before.count; at++)
        GPU(reader, AT(reader->before, struct row_before, at).gpu)->layers[0].row.used = 1;
    for (uint32_t number = 0; number < reader->gpus.count; number++) {
        for (uint32_t at = 0; at < LAYERS && !reader->error; at++) {
            struct layer *layer = &GPU(reader, number)->layers[at];
            for (uint64_t gone = 0; gone < layer->gone.count; gone++) {
                const struct gone_in_window *row = &AT(layer->gone, struct gone_in_window, gone);
                add_highest(reader, row->site, row->nbytes);
            }
            if (!layer->row.used) continue;
            struct row_window *row = push(reader, &reader->windows, sizeof *row);
            if (!row) return;
            *row = layer->row;
            row->gpu = number;
            row->kind = at ? KIND_BLOCK + at - 1 : 0;
            row->begin_ns = reader->window_bounds[0];
            if (row->highest_ns < row->begin_ns) row->highest_ns = row->begin_ns; /* its GPU was used later */
        }
    }
}
