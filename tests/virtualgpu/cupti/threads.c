/* Eight threads allocate and free while a subscriber is told of it.
 *
 *   threads LIBCUPTI steady    nothing changes meanwhile: every call must be told
 *   threads LIBCUPTI switch    callbacks are turned on and off, and the subscriber comes and goes
 *   threads LIBCUPTI fork      the process forks meanwhile; each child calls, unsubscribes and ends
 *
 * Prints the calls made and the entries and exits told. Ends with 1 where a callback was told something wrong. */
#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { THREADS = 8, ROUNDS = 2000, CHANGES = 4000, FORKS = 30, DOMAIN_DRIVER = 1, ALLOC = 243, FREE = 245 };

struct callback_data {
    int site;
    const char *function;
    const void *parameters;
    const int *result;
    const char *symbol;
    void *context;
    uint32_t context_uid;
    uint64_t *correlation_data;
    uint32_t correlation_id;
};

struct alloc_parameters {
    uint64_t *address;
    size_t nbytes;
};

static int (*subscribe)(void **, void *, void *), (*unsubscribe)(void *), (*enable)(uint32_t, void *, int, uint32_t);
static int (*cu_init)(unsigned), (*cu_retain)(void **, int), (*cu_set)(void *), (*cu_get)(void **);
static int (*cu_alloc)(uint64_t *, size_t), (*cu_free)(uint64_t);

static void *context;
static _Atomic uint64_t entries, exits, calls, wrong;
static _Atomic int finished, go_on; /* threads that have done their rounds; whether they go on nevertheless */
/* What this thread asked for, and what its entry wrote down for its exit. */
static _Thread_local size_t asked;
static _Thread_local uint64_t address, noted;

static void expect(int right) {
    if (!right) atomic_fetch_add(&wrong, 1);
}

static void callback(void *userdata, int domain, uint32_t id, const void *told) {
    const struct callback_data *data = told;
    void *current = NULL;
    expect(userdata == &calls && domain == DOMAIN_DRIVER && (id == ALLOC || id == FREE));
    expect(strcmp(data->function, id == ALLOC ? "cuMemAlloc_v2" : "cuMemFree_v2") == 0);
    expect(data->context == context && data->context_uid == 1);
    expect(cu_get(&current) == 0 && current == context);
    if (id == ALLOC) {
        const struct alloc_parameters *parameters = data->parameters;
        expect(parameters->address == &address && parameters->nbytes == asked);
    } else {
        expect(*(const uint64_t *)data->parameters == address);
    }
    if (data->site == 0) {
        atomic_fetch_add(&entries, 1);
        noted = ((uint64_t)asked << 32) | data->correlation_id;
        *data->correlation_data = noted;
    } else {
        atomic_fetch_add(&exits, 1);
        expect(*data->result == 0);
        expect(*data->correlation_data == noted && (uint32_t)noted == data->correlation_id);
    }
}

static void *work(void *argument) {
    size_t number = (size_t)argument;
    expect(cu_set(context) == 0);
    for (int i = 0; i < ROUNDS || go_on; i++) {
        asked = 512 * (number + 1);
        expect(cu_alloc(&address, asked) == 0);
        expect(cu_free(address) == 0);
        atomic_fetch_add(&calls, 2);
        if (i == ROUNDS - 1) atomic_fetch_add(&finished, 1);
    }
    return NULL;
}

static void *begin(void) {
    void *subscriber = NULL;
    expect(subscribe(&subscriber, (void *)callback, &calls) == 0);
    expect(enable(1, subscriber, DOMAIN_DRIVER, ALLOC) == 0);
    expect(enable(1, subscriber, DOMAIN_DRIVER, FREE) == 0);
    return subscriber;
}

static void change(void *subscriber) {
    for (int i = 0; i < CHANGES || finished < THREADS; i++) {
        expect(enable(i & 1, subscriber, DOMAIN_DRIVER, i & 2 ? ALLOC : FREE) == 0);
        if (i % 16 != 15) continue;
        expect(unsubscribe(subscriber) == 0);
        subscriber = begin();
    }
    go_on = 0;
}

static void fork_until_done(void *subscriber) {
    for (int i = 0; i < FORKS || finished < THREADS; i++) {
        int status;
        pid_t child = fork();
        if (child == 0) {
            uint64_t place;
            int refused = cu_alloc(&place, 512) == 3; /* NOT_INITIALIZED */
            _exit(refused && unsubscribe(subscriber) == 0 ? 0 : 1);
        }
        expect(waitpid(child, &status, 0) == child && status == 0);
    }
}

#define TAKE(place, library, name) (place = (__typeof__(place))dlsym(library, name))

int main(int argc, char **argv) {
    pthread_t threads[THREADS];
    if (argc != 3) return 2;
    void *cupti = dlopen(argv[1], RTLD_NOW), *cuda = dlopen("libcuda.so.1", RTLD_NOW);
    if (!cupti || !cuda) return 2;
    TAKE(subscribe, cupti, "cuptiSubscribe");
    TAKE(unsubscribe, cupti, "cuptiUnsubscribe");
    TAKE(enable, cupti, "cuptiEnableCallback");
    TAKE(cu_init, cuda, "cuInit");
    TAKE(cu_retain, cuda, "cuDevicePrimaryCtxRetain");
    TAKE(cu_set, cuda, "cuCtxSetCurrent");
    TAKE(cu_get, cuda, "cuCtxGetCurrent");
    TAKE(cu_alloc, cuda, "cuMemAlloc_v2");
    TAKE(cu_free, cuda, "cuMemFree_v2");
    if (cu_init(0) || cu_retain(&context, 0)) return 2;
    void *subscriber = begin();
    go_on = strcmp(argv[2], "switch") == 0;
    for (size_t i = 0; i < THREADS; i++) pthread_create(&threads[i], NULL, work, (void *)i);
    if (strcmp(argv[2], "switch") == 0) change(subscriber);
    if (strcmp(argv[2], "fork") == 0) fork_until_done(subscriber);
    for (int i = 0; i < THREADS; i++) pthread_join(threads[i], NULL);
    printf("[%lu, %lu, %lu, %lu]\n", calls, entries, exits, wrong);
    return wrong ? 1 : 0;
}
