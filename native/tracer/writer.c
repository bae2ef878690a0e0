/* Writers: each thread has one, so that no thread waits for another.
 *
 * A writer whose thread has ended is taken over by the next thread that begins: a program that starts a
 * thread per request needs as many writers as threads that live at once.
 */
#define _GNU_SOURCE
#include "writer.h"

#include <errno.h>
#include <pthread.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* of the lists: taken when a thread begins or ends */
static pthread_once_t once = PTHREAD_ONCE_INIT;
static pthread_key_t thread_ends;
static struct writer *all, *idle, *retired, *unused;
static uint32_t writers;
static _Atomic uint32_t generation = 1;
static __thread struct writer *mine;
static __thread uint32_t my_generation; /* of *mine*: another thread may have the writer when this is old */

/* ---- tables: memory of their own, since the program's malloc may be what is running ---- */

static uint64_t scatter(uint64_t key) {
    key *= 0x9e3779b97f4a7c15u;
    return key ^ (key >> 32);
}

void table_release(struct table *table) {
    if (table->keys) munmap(table->keys, ((size_t)table->mask + 1) * 12);
    memset(table, 0, sizeof *table);
}

static bool table_grow(struct table *table) {
    size_t room = table->keys ? ((size_t)table->mask + 1) * 2 : 1024;
    if (room > 1u << 26) return false;
    uint8_t *memory = mmap(NULL, room * 12, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) return false;
    struct table larger = {(uint64_t *)(void *)memory, (uint32_t *)(void *)(memory + room * 8), (uint32_t)room - 1,
                           table->used};
    for (size_t i = 0; table->keys && i <= table->mask; i++) {
        if (!table->keys[i]) continue;
        size_t slot = scatter(table->keys[i]) & larger.mask;
        while (larger.keys[slot]) slot = (slot + 1) & larger.mask;
        larger.keys[slot] = table->keys[i];
        larger.values[slot] = table->values[i];
    }
    table_release(table);
    *table = larger;
    return true;
}

uint32_t *table_value(struct table *table, uint64_t key) {
    if (!key) key = 1;
    if (unlikely(!table->keys || table->used * 4 >= (table->mask + 1) * 3u) && !table_grow(table)) return NULL;
    size_t slot = scatter(key) & table->mask;
    while (table->keys[slot] != key) {
        if (!table->keys[slot]) {
            table->keys[slot] = key;
            table->values[slot] = 0;
            table->used++;
            break;
        }
        slot = (slot + 1) & table->mask;
    }
    return &table->values[slot];
}

/* ---- threads come and go ---- */

static void thread_ended(void *writer) {
    struct writer *its = writer;
    mine = NULL;
    pthread_mutex_lock(&lock);
    if (my_generation == atomic_load(&generation)) {
        its->next_idle = idle;
        idle = its;
    }
    pthread_mutex_unlock(&lock);
}

static void make_key(void) {
    pthread_key_create(&thread_ends, thread_ended);
}

static bool next_chunk(struct writer *writer) {
    uint64_t time = now_ns();
    uint8_t *chunk = section_chunk(writer->section, writer->number, writer->sequence, writer->thread, time);
    if (!chunk) return false;
    if (writer->chunk) section_unmap_chunk(writer->chunk);
    writer->chunk = chunk;
    writer->at = chunk + CHUNK_HEADER_NBYTES;
    writer->end = chunk + CHUNK_NBYTES;
    writer->time = time;
    writer->address = 0;
    writer->sequence++;
    return true;
}

bool writer_room(struct writer *writer, size_t nbytes) {
    /* One byte stays zero: it ends the chunk's data. */
    if (likely((size_t)(writer->end - writer->at) > nbytes)) return true;
    stacks_find_python();
    return next_chunk(writer);
}

/* With the lock held: a writer that nobody has, or NULL without memory. */
static struct writer *find_writer(void) {
    struct writer *writer = idle;
    if (writer) {
        idle = writer->next_idle;
        return writer;
    }
    writer = unused;
    if (writer) {
        unused = writer->next_idle;
    } else {
        writer = mmap(NULL, sizeof *writer, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (writer == MAP_FAILED) return NULL;
    }
    writer->section = section_hold();
    if (!writer->section) { /* recording has just stopped */
        writer->next_idle = unused;
        unused = writer;
        return NULL;
    }
    writer->number = ++writers;
    writer->next_of_all = all;
    all = writer;
    return writer;
}

static struct writer *take(void) {
    pthread_once(&once, make_key);
    if (!section_is_open()) {
        int error = section_begin(false);
        if (error) {
            if (error != ECANCELED && atomic_exchange(&recording, NOT_RECORDING) == RECORDING)
                message("output", "%s: %s", settings.output, strerror(error));
            return NULL;
        }
    }
    pthread_mutex_lock(&lock);
    struct writer *writer = find_writer();
    my_generation = atomic_load(&generation);
    if (writer) atomic_store(&writer->busy, true);
    pthread_mutex_unlock(&lock);
    if (!writer) return NULL;
    mine = writer;
    pthread_setspecific(thread_ends, writer);

    writer->thread = (uint32_t)syscall(SYS_gettid);
    char name[17] = "";
    prctl(PR_GET_NAME, name);
    bool room = writer->chunk ? writer_room(writer, EVENT_NBYTES + TEXT_NBYTES) : next_chunk(writer);
    if (room) {
        uint8_t *at = put_number(writer->at + 1, writer->thread);
        at = put_text(at, name, 16);
        commit(writer, RECORD_THREAD, at);
    }
    atomic_store_explicit(&writer->busy, false, memory_order_release);
    return room ? writer : NULL;
}

static bool is_current(void) {
    return mine && my_generation == atomic_load(&generation);
}

void writer_prepare(void) {
    if (unlikely(!*not_forked)) tracer_forked();
    if (unlikely(!is_current()) && atomic_load_explicit(&recording, memory_order_relaxed) == RECORDING) take();
}

struct writer *writer_begin(void) {
    if (unlikely(!*not_forked)) tracer_forked();
    if (unlikely(atomic_load_explicit(&recording, memory_order_relaxed) != RECORDING)) return NULL;
    if (unlikely(!is_current()) && !take()) return NULL;
    struct writer *writer = mine;
    /* A signal handler or a callback in a callback: the record that is being written comes first. */
    if (unlikely(atomic_exchange(&writer->busy, true))) return NULL;
    /* Who releases writers raises the generation first and then looks who is busy. */
    if (likely(is_current()) && likely(writer_room(writer, EVENT_NBYTES))) return writer;
    atomic_store(&writer->busy, false);
    atomic_fetch_add(&section_lost, 1);
    return NULL;
}

void writer_done(struct writer *writer) {
    atomic_store_explicit(&writer->events, atomic_load_explicit(&writer->events, memory_order_relaxed) + 1,
                          memory_order_relaxed);
    atomic_store_explicit(&writer->busy, false, memory_order_release);
}

static void release(struct writer *writer) {
    if (writer->chunk) section_unmap_chunk(writer->chunk);
    section_drop(writer->section);
    table_release(&writer->where_numbers);
    table_release(&writer->place_numbers);
    table_release(&writer->node_numbers);
    table_release(&writer->address_numbers);
    table_release(&writer->stack_numbers);
    /* The structure itself is used again: a thread may still point to it. */
    memset(writer, 0, sizeof *writer);
    writer->next_idle = unused;
    unused = writer;
}

/* What earlier recordings had mapped is released, but for writers whose threads are in the middle of a record. */
void writers_new_generation(void) {
    pthread_mutex_lock(&lock);
    atomic_fetch_add(&generation, 1);
    struct writer **last = &retired;
    while (*last) last = &(*last)->next_of_all;
    *last = all;
    for (struct writer **link = &retired; *link;) {
        struct writer *writer = *link;
        if (atomic_load(&writer->busy)) {
            link = &writer->next_of_all;
        } else {
            *link = writer->next_of_all;
            release(writer);
        }
    }
    all = idle = NULL;
    writers = 0;
    pthread_mutex_unlock(&lock);
}

void writers_forked(void) {
    /* Chunks are not mapped in the child, and the lock may be held by a thread that does not exist here. */
    pthread_mutex_init(&lock, NULL);
    all = idle = retired = unused = NULL;
    writers = 0;
    mine = NULL;
    atomic_fetch_add(&generation, 1);
}

uint64_t writers_events(void) {
    pthread_mutex_lock(&lock);
    uint64_t events = 0;
    for (struct writer *writer = all; writer; writer = writer->next_of_all) events += atomic_load(&writer->events);
    pthread_mutex_unlock(&lock);
    return events;
}

/* ---- texts, and where a call was made ---- */

uint8_t *put_text(uint8_t *at, const char *text, size_t most) {
    size_t length = strnlen(text, most);
    at = put_number(at, length);
    memcpy(at, text, length);
    return at + length;
}

uint32_t writer_where(struct writer *writer, void *context, int device, uint64_t stream) {
    uint64_t key =
        scatter((uint64_t)(uintptr_t)context) ^ scatter(stream + 1) * 31 ^ scatter((uint64_t)device + 7) * 17;
    uint32_t *number = table_value(&writer->where_numbers, key);
    if (!number) return 0;
    if (!*number && writer_room(writer, EVENT_NBYTES)) {
        uint8_t *at = put_number(writer->at + 1, (uint64_t)(uintptr_t)context);
        at = put_number(at, (uint64_t)(device + 1));
        at = put_number(at, stream);
        commit(writer, RECORD_WHERE, at);
        *number = ++writer->wheres;
    }
    return *number;
}
