#define _GNU_SOURCE
#include "program.h"

#include <dlfcn.h>
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

static atomic_ulong wrong, rounds, sent, received;
static const char *_Atomic first_wrong = "";

void went_wrong(const char *what) {
    if (!atomic_fetch_add(&wrong, 1)) first_wrong = what;
}

void count_round(void) {
    atomic_fetch_add(&rounds, 1);
}

/* ---- work ---- */

void *work(void *unused) {
    for (unsigned seed = 1;; seed++) {
        double sum = 0;
        uint32_t total = 0, expected = 0;
        size_t count = 64 + seed % 512;
        uint32_t *numbers = malloc(count * sizeof *numbers);
        for (size_t i = 0; i < count; i++) numbers[i] = (uint32_t)(i * seed);
        for (size_t i = 0; i < count; i++) total += numbers[i];
        for (size_t i = 0; i < count; i++) expected += (uint32_t)(i * seed);
        for (int i = 1; i <= 100; i++) sum += i * 0.5;
        if (total != expected || sum != 2525.0) went_wrong("sum");
        free(numbers);
        count_round();
    }
    return unused;
}

/* ---- waits ---- */

struct rest {
    const char *name;
    ssize_t (*wait)(int end, char *got); /* 1 where a byte came */
    int ends[2];                         /* read here, written there */
};

static ssize_t rest_in_read(int end, char *got) {
    return read(end, got, 1);
}

static ssize_t rest_in_recv(int end, char *got) {
    return recv(end, got, 1, 0);
}

static ssize_t rest_in_poll(int end, char *got) {
    struct pollfd each = {.fd = end, .events = POLLIN};
    return poll(&each, 1, -1) == 1 ? read(end, got, 1) : -1;
}

static ssize_t rest_in_select(int end, char *got) {
    fd_set set;
    FD_ZERO(&set);
    FD_SET(end, &set);
    return select(end + 1, &set, NULL, NULL, NULL) == 1 ? read(end, got, 1) : -1;
}

static ssize_t rest_in_epoll(int end, char *got) {
    static int epoll = -1;
    struct epoll_event event = {.events = EPOLLIN};
    if (epoll < 0) {
        epoll = epoll_create1(EPOLL_CLOEXEC);
        epoll_ctl(epoll, EPOLL_CTL_ADD, end, &event);
    }
    return epoll_wait(epoll, &event, 1, -1) == 1 ? read(end, got, 1) : -1;
}

static struct rest rests[] = {
    {"read", rest_in_read, {0}},     {"recv", rest_in_recv, {0}},   {"poll", rest_in_poll, {0}},
    {"select", rest_in_select, {0}}, {"epoll", rest_in_epoll, {0}},
};
enum { RESTS = sizeof rests / sizeof *rests };

static void *rest(void *given) {
    struct rest *own = given;
    for (;;) {
        char got = 0;
        ssize_t count = own->wait(own->ends[0], &got);
        if (count != 1 || got != 'w') went_wrong(errno == EINTR ? "EINTR" : own->name);
        atomic_fetch_add(&received, 1);
    }
    return NULL;
}

static void *wake(void *unused) {
    for (;;) {
        for (int i = 0; i < RESTS; i++)
            if (write(rests[i].ends[1], "w", 1) == 1) atomic_fetch_add(&sent, 1);
        usleep(700);
    }
    return unused;
}

void start_resting(void) {
    pthread_t thread;
    for (int i = 0; i < RESTS; i++) {
        if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, rests[i].ends)) abort();
        pthread_create(&thread, NULL, rest, &rests[i]);
    }
    pthread_create(&thread, NULL, wake, NULL);
}

/* ---- CUDA, by the driver that is found ---- */

static void require(int code) {
    if (!code) return;
    fprintf(stderr, "the driver answered %d\n", code);
    exit(3);
}

void start_cuda(uint64_t nbytes) {
    if (!nbytes) return;
    void *cuda = dlopen("libcuda.so.1", RTLD_NOW), *context, *pool;
    uint64_t keeps = UINT64_MAX, address;
    if (!cuda) exit(3);
    int (*init)(unsigned) = (int (*)(unsigned))dlsym(cuda, "cuInit");
    int (*retain)(void **, int) = (int (*)(void **, int))dlsym(cuda, "cuDevicePrimaryCtxRetain");
    int (*enter)(void *) = (int (*)(void *))dlsym(cuda, "cuCtxSetCurrent");
    int (*find)(void **, int) = (int (*)(void **, int))dlsym(cuda, "cuDeviceGetDefaultMemPool");
    int (*set)(void *, int, void *) = (int (*)(void *, int, void *))dlsym(cuda, "cuMemPoolSetAttribute");
    int (*take)(uint64_t *, size_t, void *) = (int (*)(uint64_t *, size_t, void *))dlsym(cuda, "cuMemAllocAsync");
    int (*give)(uint64_t, void *) = (int (*)(uint64_t, void *))dlsym(cuda, "cuMemFreeAsync");
    require(init(0));
    require(retain(&context, 0));
    require(enter(context));
    require(find(&pool, 0));
    require(set(pool, 4, &keeps)); /* the release threshold: it keeps everything */
    require(take(&address, nbytes, NULL));
    require(give(address, NULL));
}

/* ---- what it is asked ---- */

int answer_lines(void) {
    char line[64];
    unsigned alive = 0;
    printf("{\"alive\": 0}\n");
    fflush(stdout);
    for (;;) {
        ssize_t count = read(0, line, sizeof line);
        if (count < 0 && errno == EINTR) continue;
        if (count <= 0 || line[0] == 'q') return 0;
        /* Every wake-up that was sent arrives, in a moment. */
        unsigned long until = atomic_load(&sent);
        for (int i = 0; i < 20000 && atomic_load(&received) < until; i++) usleep(1000);
        if (atomic_load(&received) < until) went_wrong("wake-up");
        printf("{\"alive\": %u, \"wrong\": %lu, \"first\": \"%s\", \"rounds\": %lu, \"woken\": %lu}\n", ++alive,
               atomic_load(&wrong), first_wrong, atomic_load(&rounds), atomic_load(&received));
        fflush(stdout);
    }
}
