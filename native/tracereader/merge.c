/* The writers' records in the order of time: a heap of writers, each with its next event.
 *
 * A chunk is read when its time has come, so that only writers that are active at the same time have one in
 * memory.
 */
#include "internal.h"

#include <stdatomic.h>
#include <string.h>

/* ---- the heap ---- */

static void sift_down(struct vramreader *reader, uint64_t at) {
    struct heap_entry *heap = reader->heap, moving = heap[at];
    for (;;) {
        uint64_t child = 2 * at + 1;
        if (child >= reader->heap_count) break;
        if (child + 1 < reader->heap_count &&
            (heap[child + 1].key < heap[child].key ||
             (heap[child + 1].key == heap[child].key && heap[child + 1].writer < heap[child].writer)))
            child++;
        if (moving.key < heap[child].key || (moving.key == heap[child].key && moving.writer < heap[child].writer))
            break;
        heap[at] = heap[child];
        at = child;
    }
    heap[at] = moving;
}

static void sift_up(struct vramreader *reader, uint64_t at) {
    struct heap_entry *heap = reader->heap, moving = heap[at];
    while (at) {
        uint64_t parent = (at - 1) / 2;
        if (heap[parent].key < moving.key || (heap[parent].key == moving.key && heap[parent].writer <= moving.writer))
            break;
        heap[at] = heap[parent];
        at = parent;
    }
    heap[at] = moving;
}

static bool add_to_heap(struct vramreader *reader, uint32_t writer, uint64_t key) {
    if (reader->heap_count == reader->heap_capacity) {
        uint64_t capacity = reader->heap_capacity ? reader->heap_capacity * 2 : 64;
        struct heap_entry *heap = take_memory(reader, capacity * sizeof *heap);
        if (!heap) return false;
        if (reader->heap_count) memcpy(heap, reader->heap, reader->heap_count * sizeof *heap);
        release_memory(reader, reader->heap, reader->heap_capacity * sizeof *heap);
        reader->heap = heap;
        reader->heap_capacity = capacity;
    }
    reader->heap[reader->heap_count] = (struct heap_entry){key, writer};
    sift_up(reader, reader->heap_count++);
    WRITER(reader, writer)->in_heap = true;
    return true;
}

/* ---- chunks ---- */

static uint64_t time_of_chunk(const struct vramreader *reader, const struct writer *writer, uint32_t index) {
    const struct section *section = SECTION(reader, writer->section);
    return relative_time(section, AT(writer->chunks, struct chunk, index).base);
}

static uint8_t *take_buffer(struct vramreader *reader) {
    if (reader->buffers.count) return AT(reader->buffers, uint8_t *, --reader->buffers.count);
    return take_memory(reader, CHUNK_NBYTES + PADDING);
}

static void return_buffer(struct vramreader *reader, uint8_t **buffer) {
    if (!*buffer) return;
    uint8_t **kept = push(reader, &reader->buffers, sizeof *kept);
    if (kept)
        *kept = *buffer;
    else
        release_memory(reader, *buffer, CHUNK_NBYTES + PADDING);
    *buffer = NULL;
}

void close_chunk(struct vramreader *reader, struct writer *writer) {
    return_buffer(reader, &writer->buffer);
    return_buffer(reader, &writer->earlier);
}

/* Skips what is there twice, counts what is not there. False: there is no next chunk. */
static bool check_order(struct vramreader *reader, struct writer *writer) {
    while (writer->next < writer->chunks.count) {
        const struct chunk *chunk = &AT(writer->chunks, struct chunk, writer->next);
        if (writer->begun || chunk->number == writer->expected) return true;
        if (chunk->number > writer->expected) {
            struct row_section *row = &SECTION(reader, writer->section)->row;
            uint32_t missing = chunk->number - writer->expected;
            if (__builtin_add_overflow(row->missing_chunks, missing, &row->missing_chunks))
                row->missing_chunks = UINT32_MAX;
            damaged(reader, DAMAGE_MISSING, writer->section, chunk->file, chunk->offset, missing);
            writer->broken = true;
            writer->expected = chunk->number;
            return true;
        }
        damaged(reader, DAMAGE_DUPLICATE, writer->section, chunk->file, chunk->offset, 1);
        writer->next++;
    }
    return false;
}

static void begin_chunk(struct vramreader *reader, struct writer *writer) {
    const struct chunk *chunk = &AT(writer->chunks, struct chunk, writer->next);
    writer->position = CHUNK_HEADER_NBYTES;
    writer->time = chunk->base;
    writer->address = 0;
    writer->thread = chunk->thread;
    uint64_t base = time_of_chunk(reader, writer, writer->next);
    if (base > writer->floor) writer->floor = base;
    writer->begun = true;
}

static void read_chunk(struct vramreader *reader, struct writer *writer) {
    const struct chunk *chunk = &AT(writer->chunks, struct chunk, writer->next);
    const struct file *file = &AT(reader->files, struct file, chunk->file);
    if (!(writer->buffer = take_buffer(reader))) return;
    if (!writer->begun) begin_chunk(reader, writer);
    uint32_t from = writer->position, nbytes = chunk->nbytes - from;
    if (reader->growing) {
        /* Mostly there is nothing new. */
        if (!read_bytes(reader, file, chunk->offset + from, writer->buffer + from, 1) || !writer->buffer[from]) {
            writer->limit = from;
            return;
        }
        if (!(writer->earlier = take_buffer(reader))) return;
        read_bytes(reader, file, chunk->offset + from, writer->earlier + from, nbytes);
        /* aarch64 may otherwise read the rest of a record before the type that says that it is whole. */
        atomic_thread_fence(memory_order_acquire);
    }
    uint64_t got = read_bytes(reader, file, chunk->offset + from, writer->buffer + from, nbytes);
    if (got < nbytes && !reader->error)
        damaged(reader, DAMAGE_READ, writer->section, chunk->file, chunk->offset + from + got, nbytes - got);
    memset(writer->buffer + chunk->nbytes, 0, CHUNK_NBYTES + PADDING - chunk->nbytes);
    writer->limit = chunk->nbytes;
    writer->ceiling = UINT64_MAX;
    if (writer->next + 1 < writer->chunks.count) {
        uint64_t next = time_of_chunk(reader, writer, writer->next + 1);
        if (next >= time_of_chunk(reader, writer, writer->next)) writer->ceiling = next;
    }
}

/* The writer's next event, or the time of its next chunk, as a key of the heap; false: it has no more. */
static bool advance(struct vramreader *reader, struct writer *writer, uint64_t *key) {
    if (!writer->buffer) {
        if (!check_order(reader, writer)) return false;
        read_chunk(reader, writer);
        if (reader->error) return false;
    }
    if (decode(reader, writer) == DECODED_EVENT) {
        writer->has_event = true;
        *key = writer->event.time * 2 + (writer->event.type == RECORD_ALLOC);
        return true;
    }
    close_chunk(reader, writer);
    if (writer->next + 1 >= writer->chunks.count) {
        /* Where the file grows, it goes on here later. */
        if (!reader->growing) writer->next++;
        return false;
    }
    writer->next++;
    writer->expected = AT(writer->chunks, struct chunk, writer->next - 1).number + 1;
    writer->begun = false;
    if (!check_order(reader, writer)) return false;
    uint64_t base = time_of_chunk(reader, writer, writer->next);
    *key = (base > writer->floor ? base : writer->floor) * 2;
    return true;
}

/* ---- the order ---- */

void wake_writers(struct vramreader *reader) {
    for (uint32_t at = 0; at < reader->writers.count && !reader->error; at++) {
        struct writer *writer = WRITER(reader, at);
        if (writer->in_heap || writer->next >= writer->chunks.count) continue;
        uint64_t base = time_of_chunk(reader, writer, writer->next);
        add_to_heap(reader, at, (base > writer->floor ? base : writer->floor) * 2);
    }
}

struct writer *next_event(struct vramreader *reader, uint64_t until) {
    while (reader->heap_count && !reader->error) {
        struct heap_entry *top = reader->heap;
        struct writer *writer = WRITER(reader, top->writer);
        if (top->key / 2 > until) return NULL;
        if (writer->has_event) {
            writer->has_event = false;
            if (writer->event.time > reader->now) reader->now = writer->event.time;
            return writer;
        }
        uint64_t key;
        if (advance(reader, writer, &key)) {
            top->key = key;
        } else {
            writer->in_heap = false;
            *top = reader->heap[--reader->heap_count];
        }
        if (reader->heap_count) sift_down(reader, 0);
    }
    return NULL;
}
