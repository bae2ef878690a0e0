/* Writes a trace of many events, like that of a program with a caching allocator.
 *
 *     trace_events FILE EVENTS [leaking]
 *
 * Eight threads; 500 stacks of 20 frames each that share their outer ones; sizes of a few usual ones; addresses
 * by 64 MiB, given out again soon after they were freed, partly by another thread. With "leaking" nothing is
 * freed. The format is native/FORMAT.md's.
 */
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { PAGE = 4096, CHUNK = 65536, THREADS = 8, STACKS = 500, FRAMES = 20, LIVE = 20000 };

static uint64_t clock_ns = 5000000000000u;
static uint64_t random_state = 88172645463325252u;
static int file;
static uint64_t chunks; /* written */

static uint64_t random_number(void) {
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    return random_state ^= random_state << 17;
}

struct writer {
    uint8_t bytes[CHUNK];
    uint32_t used, number, chunk;
    uint64_t time, address;
    uint32_t stacks[STACKS + 1];
    uint32_t nodes, places;
} writers[THREADS + 1];

static void check(int wrong, const char *what) {
    if (!wrong) return;
    perror(what);
    exit(1);
}

static void flush(struct writer *writer) {
    if (!writer->used) return;
    off_t offset = PAGE + (off_t)chunks++ * CHUNK;
    check(pwrite(file, writer->bytes, CHUNK, offset) != CHUNK, "write");
}

static void begin(struct writer *writer) {
    flush(writer);
    memset(writer->bytes, 0, CHUNK);
    uint32_t thread = 1000 + writer->number;
    memcpy(writer->bytes, "VRAMCHNK", 8);
    memcpy(writer->bytes + 8, &writer->number, 4);
    memcpy(writer->bytes + 12, &writer->chunk, 4);
    memcpy(writer->bytes + 16, &clock_ns, 8);
    memcpy(writer->bytes + 24, &thread, 4);
    writer->chunk++;
    writer->used = 64;
    writer->time = clock_ns;
    writer->address = 0;
}

static void room(struct writer *writer, uint32_t nbytes) {
    if (!writer->used || writer->used + nbytes > CHUNK) begin(writer);
}

static void put(struct writer *writer, uint64_t value) {
    while (value >= 0x80) {
        writer->bytes[writer->used++] = (uint8_t)(value | 0x80);
        value >>= 7;
    }
    writer->bytes[writer->used++] = (uint8_t)value;
}

static void put_signed(struct writer *writer, int64_t value) {
    put(writer, (uint64_t)value << 1 ^ (uint64_t)(value >> 63));
}

static void put_text(struct writer *writer, const char *text) {
    size_t nbytes = strlen(text);
    put(writer, nbytes);
    memcpy(writer->bytes + writer->used, text, nbytes);
    writer->used += (uint32_t)nbytes;
}

/* The frames of stack *number*: the inner half is its own, the outer half is shared by ten. */
static uint32_t define_stack(struct writer *writer, uint32_t number) {
    uint32_t parent = 0;
    for (uint32_t depth = 0; depth < FRAMES; depth++) {
        char function[64], path[96];
        uint32_t which = depth < FRAMES / 2 ? number / 10 : number;
        snprintf(function, sizeof function, "function_%u_%u", depth, which);
        snprintf(path, sizeof path, "/usr/lib/python3/site-packages/package_%u/module_%u.py", depth % 5, which % 40);
        room(writer, 300);
        writer->bytes[writer->used++] = 4;
        writer->bytes[writer->used++] = 0;
        put_text(writer, function);
        put_text(writer, path);
        put(writer, 10 + depth);
        writer->bytes[writer->used++] = 5;
        put(writer, parent);
        put(writer, ++writer->places);
        parent = ++writer->nodes;
    }
    return parent;
}

static void stamp(struct writer *writer) {
    clock_ns += 100 + random_number() % 800;
    put_signed(writer, (int64_t)(clock_ns - writer->time));
    writer->time = clock_ns;
    put(writer, 1 + random_number() % 2);
}

static void put_address(struct writer *writer, uint64_t address) {
    put_signed(writer, (int64_t)(address - writer->address));
    writer->address = address;
}

static void allocate(struct writer *writer, uint64_t address, uint64_t nbytes) {
    uint32_t number = (uint32_t)(random_number() % STACKS);
    if (!writer->stacks[number]) writer->stacks[number] = define_stack(writer, number);
    room(writer, 80);
    writer->bytes[writer->used++] = 0x40;
    stamp(writer);
    put_address(writer, address);
    put(writer, nbytes);
    put(writer, writer->stacks[number]);
}

static void release(struct writer *writer, uint64_t address) {
    room(writer, 80);
    writer->bytes[writer->used++] = 0x60;
    stamp(writer);
    put_address(writer, address);
}

int main(int count, char **words) {
    if (count != 3 && count != 4) return 2;
    int leaks = count == 4;
    uint64_t events = strtoull(words[2], NULL, 10);
    file = open(words[1], O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    check(file < 0, words[1]);
    uint8_t header[PAGE] = "VRAMTRAC";
    uint32_t numbers[] = {1, PAGE, CHUNK, 4242};
    memcpy(header + 8, numbers, sizeof numbers);
    uint64_t times[] = {1700000000000000000u, clock_ns, 1};
    memcpy(header + 24, times, sizeof times);
    uint32_t how[] = {1, 1, 1, 0};
    memcpy(header + 48, how, sizeof how);
    check(pwrite(file, header, PAGE, 0) != PAGE, "write");

    static const uint64_t sizes[] = {2 << 20, 20 << 20, 2 << 20, 2 << 20, 64 << 20, 512, 4096, 1 << 20};
    static uint64_t live[LIVE], unused[LIVE];
    uint64_t live_count = 0, unused_count = LIVE;
    for (uint64_t at = 0; at < LIVE; at++) unused[at] = 0x7f0000000000u + (LIVE - at) * (64u << 20);
    for (uint32_t at = 0; at < THREADS; at++) {
        struct writer *writer = &writers[at];
        writer->number = at + 1;
        begin(writer);
        for (int device = 0; device < 2; device++) {
            writer->bytes[writer->used++] = 3;
            put(writer, 0x5500c0de0000u);
            put(writer, 1 + (uint64_t)device);
            put(writer, 0x7000);
        }
    }
    for (uint64_t at = 0; at < events; at++) {
        struct writer *writer = &writers[random_number() % THREADS];
        if (leaks) {
            allocate(writer, 0x7f0000000000u + at * 512, 512);
            continue;
        }
        /* Grows to some thousand live allocations, then takes and frees in turns. */
        int takes = !live_count || (unused_count && random_number() % 1000 < (live_count < 5000 ? 700 : 500));
        if (takes) {
            uint64_t address = unused[--unused_count];
            allocate(writer, address, sizes[random_number() % 8]);
            live[live_count++] = address;
        } else {
            uint64_t which = random_number() % 4 ? live_count - 1 - random_number() % (live_count < 8 ? live_count : 8)
                                                 : random_number() % live_count;
            release(writer, live[which]);
            unused[unused_count++] = live[which];
            live[which] = live[--live_count];
        }
    }
    room(&writers[0], 80);
    writers[0].bytes[writers[0].used++] = 0x0a;
    writers[0].bytes[writers[0].used++] = 1;
    put_signed(&writers[0], (int64_t)(clock_ns - writers[0].time));
    put(&writers[0], 0);
    put(&writers[0], 0);
    for (uint32_t at = 0; at < THREADS; at++) flush(&writers[at]);
    check(close(file), "close");
    return 0;
}
