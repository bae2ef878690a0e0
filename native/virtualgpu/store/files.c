/* The folder's files: names in dev/ and memory/, the lock that marks a live file, and admission.
 *
 * Admission: one process at a time changes who holds what. Its lock file also has the folder's only
 * counter, so that serials and object numbers are never used twice, whoever dies in between, and after it
 * each GPU's reserve for managed memory.
 */
#define _GNU_SOURCE
#include "files.h"
#include "client.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static bool scan_whole(const char *name, const char *format, uint32_t *a, uint32_t *b) {
    int used = 0;
    int wanted = b ? 2 : 1;
    int got = b ? sscanf(name, format, a, b, &used) : sscanf(name, format, a, &used);
    return got == wanted && used > 0 && name[used] == '\0';
}

enum dev_kind dev_kind(const char *name, uint32_t *gpu, uint32_t *serial) {
    if (scan_whole(name, "nvidia%u.%u%n", gpu, serial)) return *gpu < STORE_MAX_GPUS ? DEV_CLIENT : DEV_OTHER;
    if (scan_whole(name, "nvidiactl.%u%n", serial, NULL)) return DEV_EXPORT;
    if (scan_whole(name, "dmabuf.%u%n", serial, NULL)) return DEV_DMABUF;
    return DEV_OTHER;
}

static int path_in(char *path, size_t size, const char *place, const char *name) {
    const char *folder = store_folder();
    if (!folder) return -ENODEV;
    int written = snprintf(path, size, "%s/%s/%s", folder, place, name);
    return written > 0 && (size_t)written < size ? 0 : -ENAMETOOLONG;
}

static int open_at(const char *path, int flags) {
    int fd = open(path, flags | O_CLOEXEC, 0666);
    if (fd < 0) return -errno;
    /* The folder's own mode is the gate: a umask must not shut out who may enter it. */
    if (flags & O_CREAT) (void)!fchmod(fd, 0666);
    return fd;
}

int dev_path(char *path, size_t size, const char *name) {
    return path_in(path, size, "dev", name);
}

int dev_open(const char *name, int flags) {
    char path[PATH_MAX];
    int error = dev_path(path, sizeof path, name);
    return error ? error : open_at(path, flags);
}

int memory_path(char *path, size_t size, const char *name) {
    return path_in(path, size, "memory", name);
}

static void make_memory_folder(void) {
    char path[PATH_MAX];
    if (memory_path(path, sizeof path, "") == 0 && mkdir(path, 0777) == 0) (void)!chmod(path, 0777);
}

int memory_open(const char *name, int flags) {
    char path[PATH_MAX];
    int error = memory_path(path, sizeof path, name);
    if (error) return error;
    if (flags & O_CREAT) make_memory_folder();
    return open_at(path, flags);
}

void dev_remove(const char *name) {
    char path[PATH_MAX];
    if (dev_path(path, sizeof path, name) == 0) unlink(path);
}

void memory_remove(const char *name) {
    char path[PATH_MAX];
    if (memory_path(path, sizeof path, name) == 0) unlink(path);
}

int dev_create_locked(const char *name) {
    struct flock whole = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
    int fd = dev_open(name, O_RDWR | O_CREAT | O_EXCL);
    if (fd < 0) return fd;
    if (store_step_fails("step.client_lock"))
        errno = ENOLCK;
    else if (fcntl(fd, F_OFD_SETLK, &whole) == 0)
        return fd;
    int error = -errno;
    dev_remove(name);
    close(fd);
    return error;
}

bool dev_locked(int fd) {
    struct flock probe = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
    /* A lock whose state cannot be read counts as held: live memory must never be reported as free. */
    return fcntl(fd, F_OFD_GETLK, &probe) != 0 || probe.l_type != F_UNLCK;
}

/* ---- admission ---- */

static pthread_mutex_t threads = PTHREAD_MUTEX_INITIALIZER;
static pthread_once_t fork_handlers = PTHREAD_ONCE_INIT;
static _Thread_local int depth;
static int lock_fd = -1;

static void before_fork(void) {
    /* A child forked between enter and leave would inherit the lock and never release it. */
    if (depth == 0) pthread_mutex_lock(&threads);
}

static void after_fork(void) {
    if (depth == 0) pthread_mutex_unlock(&threads);
}

static _Atomic int lock_fd_alone = -1; /* of the driver's thread */

static void after_fork_in_child(void) {
    after_fork();
    /* That thread is not here. Were its process killed now, the child's copy would keep the lock for ever. */
    if (lock_fd_alone >= 0) close(lock_fd_alone);
    lock_fd_alone = -1;
}

static void watch_forks(void) {
    pthread_atfork(before_fork, after_fork, after_fork_in_child);
}

int open_lock_file(void) {
    char path[PATH_MAX];
    if (!store_folder()) return -ENODEV;
    snprintf(path, sizeof path, "%s/admission.lock", store_folder());
    int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    if (fd < 0) return -errno;
    (void)!fchmod(fd, 0666);
    return fd;
}

static int wait_for_lock(int fd) {
    struct flock whole = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
    while (fcntl(fd, F_OFD_SETLKW, &whole) != 0)
        if (errno != EINTR) return -errno;
    return 0;
}

static void release_lock(int fd) {
    struct flock whole = {.l_type = F_UNLCK, .l_whence = SEEK_SET};
    /* Closing is not enough: a child made without fork handlers may have a copy. */
    fcntl(fd, F_OFD_SETLK, &whole);
}

static int take_folder_lock(void) {
    int fd = open_lock_file();
    if (fd < 0) return fd;
    int error = wait_for_lock(fd);
    if (error)
        close(fd);
    else
        lock_fd = fd;
    return error;
}

int store_enter(void) {
    if (depth++ > 0) return 0;
    pthread_once(&fork_handlers, watch_forks);
    pthread_mutex_lock(&threads);
    int error = take_folder_lock();
    if (!error) return 0;
    depth = 0;
    pthread_mutex_unlock(&threads);
    return error;
}

void store_leave(void) {
    if (--depth > 0) return;
    release_lock(lock_fd);
    close(lock_fd);
    lock_fd = -1;
    pthread_mutex_unlock(&threads);
}

int admission_fd(void) {
    return lock_fd;
}

/* A description of its own excludes the other threads of the process as well as other processes. */
int store_enter_alone(void) {
    int fd = open_lock_file();
    if (fd < 0) return fd;
    lock_fd_alone = fd;
    int error = wait_for_lock(fd);
    if (!error) return fd;
    lock_fd_alone = -1;
    close(fd);
    return error;
}

void store_leave_alone(int admission) {
    release_lock(admission);
    lock_fd_alone = -1;
    close(admission);
}

uint64_t store_next_number(void) {
    uint64_t number = 0;
    if (pread(lock_fd, &number, sizeof number, 0) != sizeof number) number = 0;
    number++;
    if (pwrite(lock_fd, &number, sizeof number, 0) != sizeof number) return 0;
    return number;
}

static off_t reserve_place(uint32_t gpu) {
    return (off_t)((1 + gpu) * sizeof(uint64_t));
}

uint64_t reserve_read(int lock_file, uint32_t gpu) {
    uint64_t nbytes = 0;
    return pread(lock_file, &nbytes, sizeof nbytes, reserve_place(gpu)) == sizeof nbytes ? nbytes : 0;
}

void reserve_write(int lock_file, uint32_t gpu, uint64_t nbytes) {
    (void)!pwrite(lock_file, &nbytes, sizeof nbytes, reserve_place(gpu));
}

uint64_t store_managed_reserve(uint32_t gpu) {
    return reserve_read(lock_fd, gpu);
}

void store_set_managed_reserve(uint32_t gpu, uint64_t nbytes) {
    reserve_write(lock_fd, gpu, nbytes);
}
