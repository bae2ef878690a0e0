/* A writer: one thread's place in the file, and what it has defined there (places, stacks). */
#pragma once

#include "section.h"

/* Numbers by a 64-bit key; grows; 0 is "not there". */
struct table {
    uint64_t *keys;
    uint32_t *values;
    uint32_t mask;
    uint32_t used;
};

/* Where the value for *key* is (0 when new), or NULL without memory. */
uint32_t *table_value(struct table *table, uint64_t key);
void table_release(struct table *table);

struct writer {
    struct section *section;
    uint8_t *chunk, *at, *end;
    uint64_t time, address; /* of the previous record in this chunk */
    uint32_t number, sequence, thread;
    /* the latest WHERE, looked for first */
    void *context;
    uint64_t stream;
    int device;
    uint32_t epoch, where;
    uint32_t wheres, places, nodes; /* defined so far */
    struct table where_numbers, place_numbers, node_numbers;
    /* What was found at native addresses, and in stacks; both may be forgotten at any time, and are found again. */
    struct table address_numbers, stack_numbers;
    unsigned long long unloads; /* the loader's count when they were made */
    _Atomic uint64_t events;
    _Atomic bool busy; /* a thread is writing: its chunk must stay mapped */
    struct writer *next_of_all, *next_idle;
};

/* Before a call whose time is taken now and recorded later: gives the thread its writer. Were it given only when
   the record is written, it could be the one of a thread that has ended meanwhile, with later records in it. */
void writer_prepare(void);

/* The calling thread's writer, for one event; NULL where nothing can be recorded. Followed by writer_done(). */
struct writer *writer_begin(void);
void writer_done(struct writer *writer);

/* Room for a record of at most *nbytes*; false: recording has ended. */
bool writer_room(struct writer *writer, size_t nbytes);

/* The longest records, in bytes. */
enum { EVENT_NBYTES = 80, TEXT_NBYTES = 1024, PLACE_NBYTES = 2 * TEXT_NBYTES + 40 };

/* The number of this (context, device, stream) in the writer; 0 without memory or room. */
uint32_t writer_where(struct writer *writer, void *context, int device, uint64_t stream);

/* Recording begins or has ended: threads take new writers, and those of before are released. */
void writers_new_generation(void);
/* In a forked child: the writers of the parent are forgotten. */
void writers_forked(void);
uint64_t writers_events(void);

/* ---- records ---- */

static inline uint8_t *put_number(uint8_t *at, uint64_t value) {
    while (value >= 0x80) {
        *at++ = (uint8_t)(value | 0x80);
        value >>= 7;
    }
    *at++ = (uint8_t)value;
    return at;
}

static inline uint8_t *put_signed(uint8_t *at, int64_t value) {
    return put_number(at, ((uint64_t)value << 1) ^ (uint64_t)(value >> 63));
}

uint8_t *put_text(uint8_t *at, const char *text, size_t most);

static inline uint8_t *put_time(struct writer *writer, uint8_t *at, uint64_t time) {
    at = put_signed(at, (int64_t)(time - writer->time));
    writer->time = time;
    return at;
}

static inline uint8_t *put_address(struct writer *writer, uint8_t *at, uint64_t address) {
    at = put_signed(at, (int64_t)(address - writer->address));
    writer->address = address;
    return at;
}

/* The record from writer->at to *end* is whole: its type, written last, makes it count. */
static inline void commit(struct writer *writer, uint8_t type, uint8_t *end) {
    __atomic_store_n(writer->at, type, __ATOMIC_RELEASE);
    writer->at = end;
}

/* ---- stacks.c ---- */

/* The number of the calling thread's stack in the writer; 0 where there is none. */
uint32_t stack_number(struct writer *writer);
/* Looks for a Python again: it may have been loaded since. */
void stacks_find_python(void);
/* A new section begins: libraries have to be noted again. */
void stacks_forget_libraries(void);
