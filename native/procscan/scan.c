/* The scan of all processes: threads that share the work, a deadline, and the result. */
#include "walk.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define PROCESSES_PER_TURN 32

static uint64_t now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static void take_turns(struct worker *worker) {
    struct walk *walk = worker->walk;
    /* A thread that hangs loses the other processes of its turn. */
    size_t turn = walk->info_prefixes ? 1 : PROCESSES_PER_TURN;
    for (;;) {
        size_t first = atomic_fetch_add(&walk->next, turn);
        if (first >= walk->count || worker->exhausted || walk->full) return;
        for (size_t at = first; at < walk->count && at < first + turn; at++) {
            if (now_ns() >= walk->deadline_ns) {
                walk->late = true;
                return;
            }
            scan_process(worker, walk->pids[at]);
        }
    }
}

static void leave(struct walk *walk) {
    pthread_mutex_lock(&walk->lock);
    bool last = --walk->users == 0;
    pthread_mutex_unlock(&walk->lock);
    if (!last) return;
    for (unsigned at = 0; at < walk->threads; at++) {
        free(walk->workers[at].files.bytes);
        free(walk->workers[at].denied.bytes);
    }
    close(walk->proc);
    free(walk->prefixes);
    free(walk->info_prefixes);
    free(walk->pids);
    pthread_mutex_destroy(&walk->lock);
    pthread_cond_destroy(&walk->left);
    free(walk);
}

static void *work(void *argument) {
    struct worker *worker = argument;
    struct walk *walk = worker->walk;
    take_turns(worker);
    pthread_mutex_lock(&walk->lock);
    walk->busy--;
    pthread_cond_signal(&walk->left);
    pthread_mutex_unlock(&walk->lock);
    leave(walk);
    return NULL;
}

static int list_processes(const char *proc, struct buffer *pids) {
    DIR *folder = opendir(proc);
    if (!folder) return -errno;
    int error = 0;
    struct dirent *entry;
    while ((entry = readdir(folder))) {
        if (entry->d_name[0] < '1' || entry->d_name[0] > '9') continue;
        int32_t *pid = grow(pids, sizeof *pid);
        if (!pid) {
            error = -ENOMEM;
            break;
        }
        *pid = (int32_t)strtol(entry->d_name, NULL, 10);
    }
    closedir(folder);
    return error;
}

static bool kernel_counts_descriptors(int proc) {
    struct stat about;
    struct stat self;
    /* A folder of plain files (a test's) has a size too: only procfs answers "self". */
    return fstatat(proc, "self/fd", &about, 0) == 0 && fstatat(proc, "self/stat", &self, 0) == 0 && about.st_size > 0 &&
           self.st_size == 0 && about.st_size < 1024 * 1024;
}

/* The walk is bound by the kernel's work for each link, and that runs in parallel (1.6 s
 * on one core, 0.95 s on two). Few processes are not worth a thread. */
static unsigned threads_for(size_t processes) {
    long cores = sysconf(_SC_NPROCESSORS_ONLN);
    unsigned wanted = (unsigned)(processes / 128) + 1;
    unsigned most = cores < 1 ? 1 : cores > MAX_THREADS ? MAX_THREADS : (unsigned)cores;
    return wanted < most ? wanted : most;
}

static bool start(struct walk *walk, struct worker *worker) {
    pthread_t thread;
    pthread_mutex_lock(&walk->lock);
    walk->busy++;
    walk->users++;
    pthread_mutex_unlock(&walk->lock);
    bool started = pthread_create(&thread, NULL, work, worker) == 0;
    if (started) {
        pthread_detach(thread);
    } else {
        pthread_mutex_lock(&walk->lock);
        walk->busy--;
        walk->users--;
        pthread_mutex_unlock(&walk->lock);
    }
    return started;
}

/* Waits for the workers; where one of them may hang, until a little after the deadline. */
static void wait_for_workers(struct walk *walk) {
    uint64_t end;
    if (__builtin_add_overflow(walk->deadline_ns, 50 * 1000000u, &end)) end = UINT64_MAX;
    struct timespec until = {(time_t)(end / 1000000000u), (long)(end % 1000000000u)};
    pthread_mutex_lock(&walk->lock);
    while (walk->busy) {
        if (!walk->info_prefixes)
            pthread_cond_wait(&walk->left, &walk->lock);
        else if (pthread_cond_timedwait(&walk->left, &walk->lock, &until) == ETIMEDOUT)
            break;
    }
    if (walk->busy) walk->late = true;
    pthread_mutex_unlock(&walk->lock);
}

static int collect(struct walk *walk, struct vramscan_result *result) {
    struct buffer files = {0}, denied = {0};
    int error = 0;
    pthread_mutex_lock(&walk->lock);
    for (unsigned at = 0; at < walk->threads; at++) {
        struct worker *worker = &walk->workers[at];
        if (worker->exhausted || append(&files, &worker->files) || append(&denied, &worker->denied)) error = -ENOMEM;
    }
    pthread_mutex_unlock(&walk->lock);
    result->files = files.bytes;
    result->files_nbytes = files.used;
    result->denied_uids = (uint32_t *)denied.bytes;
    result->denied = denied.used / sizeof(uint32_t);
    result->processes = walk->count;
    result->late = walk->late;
    result->full = walk->full;
    return error;
}

static int run(struct walk *walk, struct vramscan_result *result) {
    unsigned wanted = threads_for(walk->count);
    /* Where a thread may hang, a second one does the rest, even for few processes. */
    if (walk->info_prefixes && wanted < 2) wanted = 2;
    unsigned first = walk->info_prefixes ? 0 : 1;
    walk->threads = first;
    walk->workers[0].walk = walk;
    while (walk->threads < wanted) {
        walk->workers[walk->threads].walk = walk;
        if (!start(walk, &walk->workers[walk->threads])) break;
        walk->threads++;
    }
    if (first || !walk->threads) {
        take_turns(&walk->workers[0]);
        walk->threads += !walk->threads;
    }
    wait_for_workers(walk);
    return collect(walk, result);
}

/* A list of texts, each ended by NUL, the list by an empty one. */
static char *copied(const char *texts) {
    const char *end = texts;
    while (*end) end += strlen(end) + 1;
    size_t nbytes = (size_t)(end - texts) + 1;
    char *copy = malloc(nbytes);
    return copy ? memcpy(copy, texts, nbytes) : NULL;
}

static struct walk *prepared(int folder, const char *prefixes, const char *info_prefixes, uint64_t deadline_ns) {
    struct walk *walk = calloc(1, sizeof *walk);
    if (!walk) {
        close(folder);
        return NULL;
    }
    pthread_condattr_t clock;
    pthread_condattr_init(&clock);
    pthread_condattr_setclock(&clock, CLOCK_MONOTONIC);
    pthread_cond_init(&walk->left, &clock);
    pthread_condattr_destroy(&clock);
    pthread_mutex_init(&walk->lock, NULL);
    walk->proc = folder;
    walk->counted = kernel_counts_descriptors(folder);
    walk->deadline_ns = deadline_ns;
    walk->users = 1;
    walk->prefixes = copied(prefixes);
    walk->info_prefixes = info_prefixes ? copied(info_prefixes) : NULL;
    if (walk->prefixes && (!info_prefixes || walk->info_prefixes)) return walk;
    leave(walk);
    return NULL;
}

static int choose(struct walk *walk, const char *proc, const int32_t *pids, uint64_t count) {
    struct buffer chosen = {0};
    int error = 0;
    if (count == 0) {
        error = list_processes(proc, &chosen);
    } else {
        struct buffer given = {(uint8_t *)(uintptr_t)pids, 0, 0};
        bool fits = !__builtin_mul_overflow(count, sizeof *pids, &given.used);
        error = fits ? append(&chosen, &given) : -ENOMEM;
    }
    walk->pids = (int32_t *)chosen.bytes;
    walk->count = chosen.used / sizeof(int32_t);
    return error;
}

int vramscan_scan(const char *proc, const char *prefixes, const char *info_prefixes, const int32_t *pids,
                  uint64_t count, uint64_t deadline_ns, const struct vramscan_limits *limits,
                  struct vramscan_result *result) {
    memset(result, 0, sizeof *result);
    int folder = open(proc, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (folder < 0) return -errno;
    struct walk *walk = prepared(folder, prefixes, info_prefixes, deadline_ns);
    if (!walk) return -ENOMEM;
    walk->limits = *limits;
    int error = choose(walk, proc, pids, count);
    if (!error) error = run(walk, result);
    if (error) vramscan_release(result);
    leave(walk);
    return error;
}

void vramscan_release(struct vramscan_result *result) {
    free(result->files);
    free(result->denied_uids);
    memset(result, 0, sizeof *result);
}

/* ---- a growing buffer ---- */

void *grow(struct buffer *buffer, size_t nbytes) {
    if (buffer->room - buffer->used < nbytes) {
        size_t room;
        if (__builtin_add_overflow(buffer->room, nbytes, &room) || __builtin_mul_overflow(room, 2, &room) ||
            __builtin_add_overflow(room, 4096, &room))
            return NULL;
        uint8_t *bytes = realloc(buffer->bytes, room);
        if (!bytes) return NULL;
        buffer->bytes = bytes;
        buffer->room = room;
    }
    void *place = buffer->bytes + buffer->used;
    buffer->used += nbytes;
    return place;
}

int append(struct buffer *to, const struct buffer *from) {
    if (from->used == 0) return 0;
    void *place = grow(to, from->used);
    if (!place) return -ENOMEM;
    memcpy(place, from->bytes, from->used);
    return 0;
}
