/* Admission: one at a time changes who holds what, across all processes of the folder.
 *
 * The lock file also keeps the folder's only counter, so that serials and object numbers
 * are never used twice, whoever dies in between.
 */
#define _GNU_SOURCE
#include "holding.h"
#include "inside.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

static pthread_mutex_t threads = PTHREAD_MUTEX_INITIALIZER;
static pthread_once_t fork_handlers = PTHREAD_ONCE_INIT;
static _Thread_local int depth;
static int lock_fd = -1;

static void before_fork(void) {
    /* A fork between enter and leave would hand the lock to a child that never returns it. */
    if (depth == 0) pthread_mutex_lock(&threads);
}

static void after_fork(void) {
    if (depth == 0) pthread_mutex_unlock(&threads);
}

static void watch_forks(void) {
    pthread_atfork(before_fork, after_fork, after_fork);
}

static int open_lock_file(void) {
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
    struct flock whole = {.l_type = F_UNLCK, .l_whence = SEEK_SET};
    if (--depth > 0) return;
    /* Closing would not do where a child made without fork handlers has a copy. */
    fcntl(lock_fd, F_OFD_SETLK, &whole);
    close(lock_fd);
    lock_fd = -1;
    pthread_mutex_unlock(&threads);
}

uint64_t store_next_number(void) {
    uint64_t number = 0;
    if (pread(lock_fd, &number, sizeof number, 0) != sizeof number) number = 0;
    number++;
    if (pwrite(lock_fd, &number, sizeof number, 0) != sizeof number) return 0;
    return number;
}
