// What the tests call of the stack walkers, through ctypes, in Pythons of every version.
#define _GNU_SOURCE
#include "../../native/tracer/call_frames.h"
#include "../../native/tracer/native_stack.h"
#include "../../native/tracer/python_stack.h"
#include "native_chain.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stddef.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define EXPORTED __attribute__((visibility("default")))
enum { MOST = 4096 };

EXPORTED int harness_find(void) {
    return python_find();
}

EXPORTED const char *harness_version(void) {
    return python_version();
}

EXPORTED int harness_count(int most) {
    struct python_frame frames[MOST];
    return python_walk(frames, most < MOST ? most : MOST);
}

// A thread that waits in C code, without the GIL, and walks when another one says so.
static atomic_int phase; // 1: it waits, 2: it shall walk, 3: it has
static int told_count = -1;

EXPORTED void harness_walk_when_told(void) {
    phase = 1;
    while (phase != 2) usleep(100);
    told_count = harness_count(MOST);
    phase = 3;
    for (;;) pause();
}

EXPORTED int harness_is_walker_ready(void) {
    return phase == 1;
}

EXPORTED int harness_let_walk(void) {
    phase = 2;
    while (phase != 3) usleep(100);
    return told_count;
}

// The calling thread's frames, described; -1 where one of them cannot be.
EXPORTED int harness_walk(struct python_place *places, int most) {
    struct python_frame frames[MOST];
    int count = python_walk(frames, most < MOST ? most : MOST);
    for (int each = 0; each < count; each++)
        if (!python_describe(&frames[each], &places[each])) return -1;
    return count;
}

EXPORTED int harness_describe(const void *code, uint32_t instruction, struct python_place *place) {
    return python_describe(&(struct python_frame){code, instruction}, place);
}

// The line of every instruction of a code object, two bytes each.
EXPORTED void harness_lines(const void *code, int *lines, int count) {
    struct python_place place;
    for (int each = 0; each < count; each++)
        lines[each] = harness_describe(code, (uint32_t)each * 2, &place) ? place.line : -2;
}

EXPORTED uint64_t harness_stamp(const void *code) {
    return python_code_stamp(code);
}

// Calls Python, which calls back: C code between two Python frames.
EXPORTED void harness_call(void (*function)(void)) {
    function();
}

static void *walk_alone(void *count) {
    *(int *)count = harness_count(MOST);
    return NULL;
}

// The frames that a thread finds which Python does not know.
EXPORTED int harness_foreign(void) {
    int count = -1;
    pthread_t thread;
    if (pthread_create(&thread, NULL, walk_alone, &count)) return -2;
    pthread_join(thread, NULL);
    return count;
}

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec * 1e9 + (double)time.tv_nsec;
}

// Nanoseconds that a walk takes here, and a walk with the stamps of its code objects: the best of several rounds.
EXPORTED double harness_time(int most, int rounds, int stamps) {
    struct python_frame frames[MOST];
    double best = 1e18;
    volatile uint64_t sink = 0;
    for (int round = 0; round < 20; round++) {
        double begin = now();
        for (int each = 0; each < rounds; each++) {
            int count = python_walk(frames, most);
            for (int frame = 0; stamps && frame < count; frame++) sink ^= python_code_stamp(frames[frame].code);
        }
        double took = (now() - begin) / rounds;
        if (took < best) best = took;
    }
    return best;
}

// As above, for native frames: by libgcc alone, or as native_walk finds them.
EXPORTED double harness_native_time(int most, int rounds, int by_libgcc) {
    uintptr_t addresses[MOST];
    unsigned long long unloads;
    double best = 1e18;
    for (int round = 0; round < 10; round++) {
        double begin = now();
        for (int each = 0; each < rounds; each++)
            by_libgcc ? native_walk_by_libgcc(addresses, most) : native_walk(addresses, most, &unloads);
        double took = (now() - begin) / rounds;
        if (took < best) best = took;
    }
    return best;
}

// The end of a chain of calls.
EXPORTED int harness_native_walk(struct chain *chain) {
    unsigned long long unloads;
    chain->count = native_walk(chain->addresses, chain->most, &unloads);
    // libgcc's unwinder finds the same.
    uintptr_t addresses[MOST];
    int most = chain->most < MOST ? chain->most : MOST;
    int count = native_walk_by_libgcc(addresses, most);
    // The innermost frame is this function, at two places: it is left out.
    if (count != chain->count || memcmp(addresses, chain->addresses, sizeof *addresses * (size_t)count))
        chain->count = -2;
    return 0;
}

EXPORTED int harness_native_count(int most) {
    uintptr_t addresses[MOST];
    unsigned long long unloads;
    return native_walk(addresses, most, &unloads);
}

// Packs what call_frames.h reads of an address: kind, whether the base pointer is saved, size and places.
EXPORTED void harness_rule(uintptr_t address, int *numbers) {
    struct frame_rule rule = frame_rule_read(address);
    numbers[0] = rule.kind;
    numbers[1] = rule.saves_base_pointer;
    numbers[2] = rule.size;
    numbers[3] = rule.base_pointer;
    numbers[4] = rule.return_address;
}

EXPORTED int harness_native_describe(uintptr_t address, struct native_place *place) {
    return native_describe(address, place);
}

EXPORTED int harness_native_is_python(uintptr_t address) {
    return native_is_python(address);
}
