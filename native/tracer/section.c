/* The file: its name, its header, its chunks; the control writer's records.
 *
 * A chunk's blocks are reserved before the chunk is mapped: a disk that is full is an error here, and not a
 * SIGBUS in the program later. Chunks are given out by an atomic counter, so threads do not wait for
 * each other.
 */
#define _GNU_SOURCE
#include "section.h"
#include "python_stack.h"
#include "writer.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/utsname.h>
#include <unistd.h>

struct section {
    int file;
    _Atomic uint32_t chunks; /* given out */
    _Atomic uint32_t begun;  /* with a header */
    _Atomic int users;       /* writers, and being the current one */
    char path[PATH_MAX];
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* of the control writer, and of *current* */
static struct writer control;
static _Atomic(struct section *) current;
static char last_path[PATH_MAX];
static bool forked;
_Atomic uint64_t section_lost;

const char *section_path(void) {
    return section_is_open() ? last_path : "";
}

bool section_is_open(void) {
    return atomic_load(&current) != NULL;
}

uint64_t section_nbytes(void) {
    pthread_mutex_lock(&lock);
    struct section *section = atomic_load(&current);
    uint64_t nbytes = section ? PAGE_NBYTES + (uint64_t)atomic_load(&section->chunks) * CHUNK_NBYTES : 0;
    pthread_mutex_unlock(&lock);
    return nbytes;
}

struct section *section_hold(void) {
    pthread_mutex_lock(&lock);
    struct section *section = atomic_load(&current);
    if (section) atomic_fetch_add(&section->users, 1);
    pthread_mutex_unlock(&lock);
    return section;
}

void section_drop(struct section *section) {
    if (!section || atomic_fetch_sub(&section->users, 1) != 1) return;
    close(section->file);
    munmap(section, sizeof *section);
}

/* Blocks for *nbytes* at *offset*, zeros. 0 or an errno; never a signal. */
static int reserve(int file, off_t offset, off_t nbytes) {
    struct rlimit limit;
    /* Beyond RLIMIT_FSIZE the kernel sends SIGXFSZ, which ends a program. */
    if (!getrlimit(RLIMIT_FSIZE, &limit) && limit.rlim_cur != RLIM_INFINITY &&
        (rlim_t)(offset + nbytes) > limit.rlim_cur)
        return EFBIG;
    int result;
    do result = fallocate(file, 0, offset, nbytes) ? errno : 0;
    while (result == EINTR);
    if (result != EOPNOTSUPP && result != ENOSYS) return result;
    static const uint8_t zeros[PAGE_NBYTES];
    for (off_t done = 0; done < nbytes;) {
        ssize_t got = pwrite(file, zeros, sizeof zeros, offset + done);
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) return errno;
        done += got;
    }
    return 0;
}

/* How far *offset*, in a file or in memory, is from the beginning of its page. Chunks begin at multiples of 4 KiB, and
 * pages of aarch64 may have 16 or 64. */
static size_t into_page(uint64_t offset) {
    return offset & ((uint64_t)sysconf(_SC_PAGESIZE) - 1);
}

static uint8_t *map(int file, off_t offset, size_t nbytes) {
    size_t before = into_page((uint64_t)offset);
    uint8_t *place = mmap(NULL, before + nbytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, offset - (off_t)before);
    if (place == MAP_FAILED) return NULL;
    /* A forked child must not write into this process's records. */
    madvise(place, before + nbytes, MADV_DONTFORK);
    return place + before;
}

void section_unmap_chunk(uint8_t *chunk) {
    size_t before = into_page((uintptr_t)chunk);
    munmap(chunk - before, before + CHUNK_NBYTES);
}

/* The next chunk of the file, reserved and mapped, with its header; NULL and *error*. */
static uint8_t *new_chunk(struct section *section, uint32_t writer, uint32_t sequence, uint32_t thread, uint64_t time,
                          int *error) {
    uint32_t index = atomic_fetch_add(&section->chunks, 1);
    off_t offset = PAGE_NBYTES + (off_t)index * CHUNK_NBYTES;
    *error = reserve(section->file, offset, CHUNK_NBYTES);
    uint8_t *chunk = *error ? NULL : map(section->file, offset, CHUNK_NBYTES);
    if (!chunk) {
        if (!*error) *error = errno;
        return NULL;
    }
    memcpy(chunk + 8, &writer, 4);
    memcpy(chunk + 12, &sequence, 4);
    memcpy(chunk + 16, &time, 8);
    memcpy(chunk + 24, &thread, 4);
    atomic_thread_fence(memory_order_release);
    memcpy(chunk, CHUNK_MAGIC, MAGIC_NBYTES);
    atomic_fetch_add(&section->begun, 1);
    return chunk;
}

/* ---- header ---- */

static uint64_t process_start(uint32_t *parent) {
    char text[1024];
    int stat = open("/proc/self/stat", O_RDONLY | O_CLOEXEC);
    ssize_t got = stat < 0 ? -1 : read(stat, text, sizeof text - 1);
    if (stat >= 0) close(stat);
    *parent = (uint32_t)getppid();
    if (got <= 0) return 0;
    text[got] = 0;
    char *field = strrchr(text, ')'); /* the name before it may hold anything */
    for (int skip = 0; field && skip < 20; skip++) field = strchr(field + 1, ' ');
    return field ? strtoull(field + 1, NULL, 10) : 0;
}

static uint8_t *put_header_text(uint8_t *at, const uint8_t *end, uint16_t key, const char *text, size_t length) {
    if (length > 2048) length = 2048;
    if (!length || at + 4 + length + 4 > end) return at;
    uint16_t length16 = (uint16_t)length;
    memcpy(at, &key, 2);
    memcpy(at + 2, &length16, 2);
    memcpy(at + 4, text, length);
    return at + 4 + length;
}

static void fill_header(uint8_t *page) {
    struct timespec wall;
    clock_gettime(CLOCK_REALTIME, &wall);
    uint32_t parent;
    uint64_t started = process_start(&parent);
    struct {
        char magic[MAGIC_NBYTES]; /* copied last: it makes the header count */
        uint16_t major, minor;
        uint32_t header, chunk, pid;
        uint64_t wall, monotonic, started;
        uint32_t parent, how, stacks, flags;
        uint8_t run[16];
    } header = {
        .major = FORMAT_MAJOR,
        .header = PAGE_NBYTES,
        .chunk = CHUNK_NBYTES,
        .pid = (uint32_t)getpid(),
        .wall = (uint64_t)wall.tv_sec * 1000000000u + (uint64_t)wall.tv_nsec,
        .monotonic = now_ns(),
        .started = started,
        .parent = parent,
        .how = settings.attached ? 2 : 1,
        .stacks = settings.stacks,
        .flags = forked,
    };
    memcpy(header.run, settings.run, sizeof header.run);

    uint8_t *at = page + FIXED_HEADER_NBYTES, *end = page + PAGE_NBYTES;
    char text[2048];
    int command = open("/proc/self/cmdline", O_RDONLY | O_CLOEXEC);
    ssize_t got = command < 0 ? -1 : read(command, text, sizeof text);
    if (command >= 0) close(command);
    if (got > 0) at = put_header_text(at, end, 1, text, (size_t)got);
    got = readlink("/proc/self/exe", text, 1024);
    if (got > 0) at = put_header_text(at, end, 2, text, (size_t)got);
    at = put_header_text(at, end, 3, python_version(), strlen(python_version()));
    at = put_header_text(at, end, 4, TRACER_VERSION, strlen(TRACER_VERSION));
    at = put_header_text(at, end, 5, cupti_path(), strnlen(cupti_path(), 512));
    struct utsname host;
    if (!uname(&host)) at = put_header_text(at, end, 6, host.nodename, strlen(host.nodename));
    int driver = 0;
    int (*driver_version)(int *) = driver_function("cuDriverGetVersion");
    if (driver_version) driver_version(&driver);
    int length = snprintf(text, sizeof text, "%u/%d", cupti_version(), driver);
    put_header_text(at, end, 7, text, (size_t)length);
    memcpy(page + MAGIC_NBYTES, (uint8_t *)&header + MAGIC_NBYTES, sizeof header - MAGIC_NBYTES);
    atomic_thread_fence(memory_order_release);
    memcpy(page, SECTION_MAGIC, MAGIC_NBYTES);
}

/* ---- the file ---- */

static int open_file(struct section *section) {
    /* Who attached named the file; a child of that process, like all of `vram run`, has one of its own. */
    bool in_place = settings.attached && !forked;
    for (int attempt = 1; attempt < 1000; attempt++) {
        char number[16] = "";
        if (attempt > 1) snprintf(number, sizeof number, "-%d", attempt);
        int length = in_place
                         ? snprintf(section->path, PATH_MAX, "%s", settings.output)
                         : snprintf(section->path, PATH_MAX, "%s.%d%s.part", settings.output, (int)getpid(), number);
        if (length < 0 || length >= PATH_MAX) return ENAMETOOLONG;
        /* Somebody else's file or link of this name is never opened. */
        section->file = open(section->path, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
        if (section->file >= 0) return 0;
        if (errno != EEXIST || in_place) return errno;
    }
    return EEXIST;
}

/* Descriptors 0 to 2 may be closed in a daemon: its writes to stderr must not end up in the trace. */
static int keep_off_standard_descriptors(struct section *section) {
    if (section->file > 2) return 0;
    int higher = fcntl(section->file, F_DUPFD_CLOEXEC, 3);
    int error = errno;
    close(section->file);
    section->file = higher;
    return higher < 0 ? error : 0;
}

static int begin(struct section *section) {
    int error = open_file(section);
    if (error) return error;
    error = keep_off_standard_descriptors(section);
    if (!error) error = reserve(section->file, 0, PAGE_NBYTES);
    uint8_t *header = error ? NULL : map(section->file, 0, PAGE_NBYTES);
    if (!error && !header) error = errno;
    uint64_t time = now_ns();
    uint8_t *first = error ? NULL : new_chunk(section, 0, 0, (uint32_t)syscall(SYS_gettid), time, &error);
    if (!error) fill_header(header);
    if (header) munmap(header, PAGE_NBYTES);
    if (error) {
        unlink(section->path);
        return error;
    }
    memset(&control, 0, sizeof control);
    control.chunk = first;
    control.time = time;
    control.at = first + CHUNK_HEADER_NBYTES;
    control.end = first + CHUNK_NBYTES - END_RESERVE;
    atomic_store(&section_lost, 0);
    return 0;
}

int section_begin(bool starting) {
    pthread_mutex_lock(&lock);
    int error = !starting && atomic_load(&recording) != RECORDING ? ECANCELED : 0;
    bool made = false;
    if (!error && !atomic_load(&current)) {
        struct section *section =
            mmap(NULL, sizeof *section, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (section == MAP_FAILED) {
            error = ENOMEM;
        } else {
            section->file = -1;
            atomic_store(&section->users, 1);
            error = begin(section);
            if (error) {
                section_drop(section);
            } else {
                memcpy(last_path, section->path, PATH_MAX);
                atomic_store(&current, section);
                made = true;
            }
        }
    }
    pthread_mutex_unlock(&lock);
    if (made) message("recording", "%s", last_path);
    return error;
}

static void end_of_control(const struct section *section, enum end_reason reason, int error, uint64_t time) {
    uint8_t *at = control.at + 1;
    *at++ = (uint8_t)reason;
    at = put_time(&control, at, time);
    at = put_number(at, (uint64_t)error);
    at = put_number(at, atomic_load(&section->begun));
    commit(&control, RECORD_END, at);
}

static void disk_failed(struct section *section, int error) {
    bool full = error == ENOSPC || error == EDQUOT || error == EFBIG;
    pthread_mutex_lock(&lock);
    bool first = section == atomic_load(&current) && atomic_exchange(&recording, NOT_RECORDING) == RECORDING;
    if (first) end_of_control(section, full ? END_DISK_FULL : END_WRITE_ERROR, error, now_ns());
    pthread_mutex_unlock(&lock);
    if (first) message(full ? "disk-full" : "output", "%s: %s", section->path, strerror(error));
}

uint8_t *section_chunk(struct section *section, uint32_t writer, uint32_t sequence, uint32_t thread, uint64_t time) {
    int error;
    uint8_t *chunk = new_chunk(section, writer, sequence, thread, time, &error);
    if (!chunk) disk_failed(section, error);
    return chunk;
}

void section_close(void) {
    pthread_mutex_lock(&lock);
    struct section *section = atomic_exchange(&current, NULL);
    if (section) section_unmap_chunk(control.chunk);
    pthread_mutex_unlock(&lock);
    section_drop(section);
}

void section_forget(void) {
    /* The lock may have been held by a thread that does not exist here; the chunks are not mapped here. */
    pthread_mutex_init(&lock, NULL);
    struct section *section = atomic_exchange(&current, NULL);
    if (section) close(section->file);
    forked = true;
}

/* ---- the control writer's records ---- */

/* With the lock held: room for *nbytes* in the control writer's chunk, or in a new one. */
static bool control_room(size_t nbytes) {
    struct section *section = atomic_load(&current);
    if (!section) return false;
    if ((size_t)(control.end - control.at) >= nbytes) return true;
    uint64_t time = now_ns();
    int error;
    uint8_t *chunk = new_chunk(section, 0, control.sequence + 1, (uint32_t)syscall(SYS_gettid), time, &error);
    if (!chunk) return false;
    control.sequence++;
    control.time = time;
    control.address = 0;
    section_unmap_chunk(control.chunk);
    control.chunk = chunk;
    control.at = chunk + CHUNK_HEADER_NBYTES;
    control.end = chunk + CHUNK_NBYTES - END_RESERVE;
    return true;
}

void record_end(enum end_reason reason, uint64_t time) {
    pthread_mutex_lock(&lock);
    const struct section *section = atomic_load(&current);
    if (section && control.at + 32 < control.chunk + CHUNK_NBYTES) end_of_control(section, reason, 0, time);
    pthread_mutex_unlock(&lock);
}

void record_gap(enum gap_reason reason, bool begins) {
    pthread_mutex_lock(&lock);
    if (control_room(EVENT_NBYTES)) {
        uint8_t *at = control.at + 1;
        *at++ = (uint8_t)reason;
        *at++ = begins ? 1 : 2;
        at = put_time(&control, at, now_ns());
        commit(&control, RECORD_GAP, at);
    }
    pthread_mutex_unlock(&lock);
}

int record_mark(const char *text) {
    pthread_mutex_lock(&lock);
    bool room = control_room(EVENT_NBYTES + TEXT_NBYTES);
    if (room) {
        uint8_t *at = put_time(&control, control.at + 1, now_ns());
        at = put_text(at, text, TEXT_NBYTES);
        commit(&control, RECORD_MARK, at);
    }
    pthread_mutex_unlock(&lock);
    return room ? 0 : 1;
}

int record_before(int device, uint64_t nbytes, const char *source) {
    pthread_mutex_lock(&lock);
    bool room = control_room(EVENT_NBYTES + TEXT_NBYTES);
    if (room) {
        uint8_t *at = put_time(&control, control.at + 1, now_ns());
        at = put_number(at, (uint64_t)(device < 0 ? 0 : device + 1));
        at = put_number(at, nbytes);
        at = put_text(at, source, TEXT_NBYTES);
        commit(&control, RECORD_BEFORE, at);
    }
    pthread_mutex_unlock(&lock);
    return room ? 0 : 1;
}

int record_device(int device, const char *pci, const char *name, uint64_t nbytes) {
    pthread_mutex_lock(&lock);
    bool room = control_room(EVENT_NBYTES + 2 * TEXT_NBYTES);
    if (room) {
        uint8_t *at = put_number(control.at + 1, (uint64_t)device);
        at = put_text(at, pci, TEXT_NBYTES);
        at = put_text(at, name, TEXT_NBYTES);
        at = put_number(at, nbytes);
        commit(&control, RECORD_DEVICE, at);
    }
    pthread_mutex_unlock(&lock);
    return room ? 0 : 1;
}

int record_blob(const char *name, const void *bytes, uint64_t nbytes) {
    enum { PART = 48 * 1024 };
    uint64_t parts = nbytes / PART + (nbytes % PART || !nbytes);
    for (uint64_t part = 0; part < parts; part++) {
        uint64_t from = part * PART;
        uint64_t length = nbytes - from < PART ? nbytes - from : PART;
        pthread_mutex_lock(&lock);
        bool room = control_room(EVENT_NBYTES + TEXT_NBYTES + length);
        if (room) {
            uint8_t *at = put_text(control.at + 1, name, 64);
            at = put_number(at, part);
            at = put_number(at, parts);
            at = put_number(at, length);
            memcpy(at, (const uint8_t *)bytes + from, length);
            commit(&control, RECORD_BLOB, at + length);
        }
        pthread_mutex_unlock(&lock);
        if (!room) return 1;
    }
    return 0;
}
