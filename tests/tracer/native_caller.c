// Functions that call the next of a chain, each in its own way: built several times, with different names.
// PREFIX begins the names of its functions.
#define _GNU_SOURCE
#include "native_chain.h"

#include <pthread.h>
#include <signal.h>
#include <stddef.h>

#define JOIN_NAMES(left, right) left##right
#define JOIN(left, right) JOIN_NAMES(left, right)
#define FUNCTION(name) __attribute__((visibility("default"), noinline)) int JOIN(PREFIX, name)

// The addition keeps the call from becoming a jump.
FUNCTION(_pass)(struct chain *chain) {
    return chain->functions[chain->at++](chain) + 1;
}

__attribute__((noinline)) static int hidden_function(struct chain *chain, volatile int *kept) {
    return chain->functions[chain->at++](chain) + *kept;
}

FUNCTION(_static)(struct chain *chain) {
    volatile int kept = 1;
    return hidden_function(chain, &kept) + kept;
}

// A frame whose size is known at run time only.
FUNCTION(_array)(struct chain *chain) {
    volatile int array[chain->at * 100 + 100];
    array[0] = 1;
    return hidden_function(chain, array) + array[0];
}

// A frame at an address that its caller did not align.
FUNCTION(_aligned)(struct chain *chain) {
    _Alignas(128) volatile int value[chain->at + 32];
    value[0] = 1;
    return hidden_function(chain, value) + value[0];
}

static struct chain *interrupted;

static void handle(int number) {
    volatile int kept = number;
    hidden_function(interrupted, &kept);
}

FUNCTION(_signal)(struct chain *chain) {
    interrupted = chain;
    struct sigaction action = {.sa_handler = handle}, before;
    sigaction(SIGUSR2, &action, &before);
    raise(SIGUSR2);
    sigaction(SIGUSR2, &before, NULL);
    return 1;
}

static void *run_thread(void *chain) {
    volatile int kept = 1;
    hidden_function(chain, &kept);
    return NULL;
}

FUNCTION(_thread)(struct chain *chain) {
    pthread_t thread;
    if (pthread_create(&thread, NULL, run_thread, chain)) return -1;
    pthread_join(thread, NULL);
    return 1;
}
