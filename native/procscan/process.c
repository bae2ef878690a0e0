/* One process: which of its descriptors match, and what the kernel reports about them. */
#include "walk.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

/* Descriptor numbers tried one by one beyond the count, before the folder is listed. */
#define SPARSE_ALLOWANCE 16
#define MAX_INFO (64 * 1024) /* fifty times what a kernel writes */
#define STAT_NBYTES 1024

/* What is known of the process that is being scanned. */
struct subject {
    int32_t pid;
    int32_t thread; /* the one whose fd folder it is */
    int folder;     /* its fd folder: it stays this very process's, even if the pid is reused */
    bool denied, identified;
    uint64_t started_at;
    uint32_t files;      /* how many of its descriptors were recorded */
    uint32_t limit;      /* and how many may be; known with the first */
    struct share *share; /* its user's; NULL for root */
    size_t last;         /* where the last of them lies */
    bool cut;            /* it has more than its limit: the rest need not be read */
};

static char *write_number(char *end, unsigned number) {
    *--end = '\0';
    do *--end = (char)('0' + number % 10);
    while (number /= 10);
    return end;
}

static bool matches(const char *prefixes, const char *link, size_t length) {
    if (length == 0 || link[0] != '/') /* sockets, pipes and anonymous inodes: most of them */
        return false;
    for (const char *prefix = prefixes; *prefix; prefix += strlen(prefix) + 1) {
        size_t wanted = strlen(prefix);
        if (length >= wanted && memcmp(link, prefix, wanted) == 0) return true;
    }
    return false;
}

/* Reads a stat file into *stat*, which has room for STAT_NBYTES; an empty text where that fails. */
static void read_stat(int folder, const char *name, char *stat) {
    stat[0] = '\0';
    int file = openat(folder, name, O_RDONLY | O_CLOEXEC);
    if (file < 0) return;
    ssize_t length = read(file, stat, STAT_NBYTES - 1);
    stat[length > 0 ? length : 0] = '\0';
    close(file);
}

/* The name in field 2 may hold spaces and brackets: the last bracket ends it. */
static const char *field_of(const char *stat, int wanted) {
    const char *at = strrchr(stat, ')');
    for (int field = 2; at && field < wanted; field++) at = strchr(at + 1, ' ');
    return at ? at + 1 : NULL;
}

static uint64_t number_of(const char *stat, int wanted) {
    const char *field = field_of(stat, wanted);
    return field ? strtoull(field, NULL, 10) : UINT64_MAX;
}

static bool is_zombie(const char *stat) {
    const char *state = field_of(stat, 3);
    return state && *state == 'Z';
}

static void identify(struct subject *subject) {
    char stat[STAT_NBYTES];
    read_stat(subject->folder, "../stat", stat);
    subject->identified = true;
    subject->started_at = number_of(stat, 22);
}

static size_t padded(size_t length) {
    return (length + 7) & ~(size_t)7;
}

/* Reads the fdinfo of *fd* into *info*: its length, or -errno. */
static ssize_t read_info(const struct subject *subject, const char *fd, uint8_t *info) {
    char name[32] = "../fdinfo/";
    memcpy(name + strlen(name), fd, strlen(fd) + 1);
    int file = openat(subject->folder, name, O_RDONLY | O_CLOEXEC);
    if (file < 0) return -errno;
    ssize_t used = 0, got;
    while (used < MAX_INFO && (got = read(file, info + used, (size_t)(MAX_INFO - used))) != 0) {
        if (got < 0) {
            used = -errno;
            break;
        }
        used += got;
    }
    close(file);
    return used;
}

static bool wants_info(const struct walk *walk, const char *link, size_t length, const struct stat *about) {
    /* A plain file with a device's name has no fdinfo of a driver. */
    return walk->info_prefixes && matches(walk->info_prefixes, link, length) && (!about || S_ISCHR(about->st_mode));
}

/* That of *uid*; the users after the first thousand share one. */
static struct share *share_of(struct walk *walk, uint32_t uid) {
    for (unsigned at = 0; at < walk->users_seen; at++)
        if (walk->shares[at].uid == uid) return &walk->shares[at];
    if (walk->users_seen < MAX_USERS) walk->shares[walk->users_seen++] = (struct share){.uid = uid};
    return &walk->shares[walk->users_seen - 1];
}

/* Finds out how many descriptors of the process may be recorded: one where its user has had his share. The
 * folder above is the user's also where the process may not be dumped, and its other folders are root's. */
static void set_limit(struct walk *walk, struct subject *subject) {
    struct stat about;
    subject->limit = walk->limits.of_process;
    if (fstatat(subject->folder, subject->thread == subject->pid ? ".." : "../../..", &about, 0) != 0 || !about.st_uid)
        return;
    pthread_mutex_lock(&walk->lock);
    subject->share = share_of(walk, about.st_uid);
    bool over = subject->share->files >= walk->limits.of_user || walk->files_of_users >= walk->limits.of_users;
    pthread_mutex_unlock(&walk->lock);
    if (over && subject->limit > 1) subject->limit = 1;
}

/* Whether one more may be recorded; if not, that is noted. */
static bool has_room(struct worker *worker, struct subject *subject) {
    struct walk *walk = worker->walk;
    if (!subject->files) set_limit(walk, subject);
    if (subject->files == subject->limit) {
        subject->cut = true;
        if (subject->files) {
            pthread_mutex_lock(&walk->lock);
            ((struct vramscan_file *)(void *)(worker->files.bytes + subject->last))->cut = 1;
            pthread_mutex_unlock(&walk->lock);
        }
        return false;
    }
    if (atomic_fetch_add(&walk->found, 1) >= walk->limits.in_all) {
        walk->full = true;
        return false;
    }
    return true;
}

static void record(struct worker *worker, struct subject *subject, unsigned fd, const char *name, const char *link,
                   size_t length) {
    if (!has_room(worker, subject)) return;
    struct stat about;
    bool asked = fstatat(subject->folder, name, &about, 0) == 0;
    if (!subject->identified) identify(subject);
    uint8_t info[MAX_INFO];
    bool wanted = wants_info(worker->walk, link, length, asked ? &about : NULL);
    ssize_t info_length = wanted ? read_info(subject, name, info) : -1;
    size_t nbytes = padded(length) + (info_length > 0 ? padded((size_t)info_length) : 0);
    pthread_mutex_lock(&worker->walk->lock);
    struct vramscan_file *file = grow(&worker->files, sizeof *file + nbytes);
    if (!file) {
        worker->exhausted = true;
        pthread_mutex_unlock(&worker->walk->lock);
        return;
    }
    subject->files++;
    if (subject->share) {
        subject->share->files++;
        worker->walk->files_of_users++;
    }
    subject->last = (size_t)((uint8_t *)file - worker->files.bytes);
    *file = (struct vramscan_file){
        .pid = subject->pid,
        .fd = (int32_t)fd,
        .thread = subject->thread,
        .started_at = subject->started_at,
        .device = asked ? about.st_rdev : 0,
        .inode = asked ? about.st_ino : 0,
        .size = asked ? about.st_size : 0,
        .mode = asked ? about.st_mode : 0,
        .length = (uint32_t)length,
        .info_length = info_length < 0 ? VRAMSCAN_NO_INFO : (uint32_t)info_length,
        .error = wanted && info_length < 0 ? (uint32_t)-info_length : 0,
    };
    memset(file + 1, 0, nbytes);
    memcpy(file + 1, link, length);
    if (info_length > 0) memcpy((uint8_t *)(file + 1) + padded(length), info, (size_t)info_length);
    pthread_mutex_unlock(&worker->walk->lock);
}

/* Returns whether descriptor *fd* was there. */
static bool read_descriptor(struct worker *worker, struct subject *subject, unsigned fd) {
    char number[12], link[PATH_MAX];
    const char *name = write_number(number + sizeof number, fd);
    ssize_t length = readlinkat(subject->folder, name, link, sizeof link);
    if (length < 0) {
        subject->denied |= errno == EACCES || errno == EPERM;
        return false;
    }
    if (matches(worker->walk->prefixes, link, (size_t)length)) record(worker, subject, fd, name, link, (size_t)length);
    return true;
}

struct listed { /* what getdents64 writes */
    uint64_t inode;
    int64_t offset;
    unsigned short length;
    unsigned char type;
    char name[];
};

/* Looks at the descriptors from *first* on, by the folder's own list; returns how many there are. */
static unsigned read_listed(struct worker *worker, struct subject *subject, unsigned first) {
    char list[16384] __attribute__((aligned(8)));
    unsigned found = 0;
    long filled;
    while ((filled = syscall(SYS_getdents64, subject->folder, list, sizeof list)) > 0)
        for (long at = 0; at < filled && !subject->denied && !subject->cut;) {
            struct listed *entry = (struct listed *)(list + at);
            at += entry->length;
            if (entry->name[0] < '0' || entry->name[0] > '9') continue;
            unsigned fd = (unsigned)strtoul(entry->name, NULL, 10);
            if (fd >= first) read_descriptor(worker, subject, fd);
            found++;
        }
    return found;
}

/* Since Linux 6.2 the size of /proc/PID/fd is the number of descriptors, and they are
 * mostly the lowest numbers: trying those spares the listing. Measured on two cores (Linux
 * 6.18) over 10,000 processes with 31 descriptors each, entries already in the kernel's
 * cache: 0.95 s so, of which reading the links is nearly all; listing costs 0.3 s more of
 * one core; one thread instead of two takes 1.6 s; fuser took 3.0 s. The first scan after
 * the processes were made takes about 1.6 times as long, for everybody who reads links.
 */
static void read_counted(struct worker *worker, struct subject *subject, unsigned count) {
    unsigned found = 0, fd = 0;
    for (; found < count && fd < count + SPARSE_ALLOWANCE && !subject->denied && !subject->cut; fd++)
        found += read_descriptor(worker, subject, fd);
    if (found < count && !subject->denied && !subject->cut) read_listed(worker, subject, fd);
}

static void note_denied(struct worker *worker, const char *pid) {
    struct stat about;
    if (fstatat(worker->walk->proc, pid, &about, 0) != 0) return; /* it has ended */
    pthread_mutex_lock(&worker->walk->lock);
    uint32_t *uid = grow(&worker->denied, sizeof *uid);
    if (uid)
        *uid = about.st_uid;
    else
        worker->exhausted = true;
    pthread_mutex_unlock(&worker->walk->lock);
}

enum found { NOTHING, FOUND, DENIED };

/* Looks at every descriptor in the folder *name*. */
static enum found read_folder(struct worker *worker, struct subject *subject, int proc, const char *name) {
    struct stat about;
    subject->folder = openat(proc, name, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (subject->folder < 0) return errno == EACCES || errno == EPERM ? DENIED : NOTHING;
    bool counted = worker->walk->counted && fstat(subject->folder, &about) == 0;
    bool empty = counted && about.st_size == 0; /* kernel threads and zombies have none */
    if (!counted)
        empty = read_listed(worker, subject, 0) == 0;
    else if (!empty)
        read_counted(worker, subject, (unsigned)about.st_size);
    close(subject->folder);
    return subject->denied ? DENIED : empty ? NOTHING : FOUND;
}

/* The other threads share one table of descriptors: the first readable one has them all. */
static enum found read_threads(struct worker *worker, struct subject *subject, int process) {
    int tasks = openat(process, "task", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *list = tasks < 0 ? NULL : fdopendir(tasks);
    if (!list) {
        if (tasks >= 0) close(tasks);
        return NOTHING;
    }
    enum found found = NOTHING;
    struct dirent *entry;
    while (found != FOUND && (entry = readdir(list))) {
        subject->thread = (int32_t)strtol(entry->d_name, NULL, 10);
        if (subject->thread <= 0 || subject->thread == subject->pid) continue;
        char name[32];
        snprintf(name, sizeof name, "%d/fd", subject->thread);
        subject->denied = false;
        enum found here = read_folder(worker, subject, tasks, name);
        found = here == NOTHING ? found : here;
    }
    closedir(list);
    return found;
}

/* A process lives on after its first thread has ended. That one is a zombie with an empty fd folder,
 * closed to all but root, and only its stat distinguishes it from a process that has ended. */
static enum found read_without_leader(struct worker *worker, struct subject *subject, const char *pid,
                                      enum found before) {
    int process = openat(worker->walk->proc, pid, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (process < 0) return NOTHING;
    char stat[STAT_NBYTES];
    read_stat(process, "stat", stat);
    enum found found = before;
    if (is_zombie(stat)) {
        subject->started_at = number_of(stat, 22);
        subject->identified = true;
        found = number_of(stat, 20) > 1 ? read_threads(worker, subject, process) : NOTHING;
    }
    close(process);
    return found;
}

static bool is_ours(const struct worker *worker, const char *pid) {
    struct stat about;
    return fstatat(worker->walk->proc, pid, &about, 0) == 0 && about.st_uid == geteuid();
}

void scan_process(struct worker *worker, int32_t pid) {
    char text[16] = {0};
    char *end = text + sizeof text - 3;
    char *name = write_number(end, (unsigned)pid);
    memcpy(end - 1, "/fd", 4);
    struct subject subject = {.pid = pid, .thread = pid};
    enum found found = read_folder(worker, &subject, worker->walk->proc, name);
    end[-1] = '\0';
    if (found == NOTHING || (found == DENIED && is_ours(worker, name)))
        found = read_without_leader(worker, &subject, name, found);
    if (found == DENIED) note_denied(worker, name);
}
