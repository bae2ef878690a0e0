/* Finding the client files of one process, for whoever wants to stop or restore it. */
#define _GNU_SOURCE
#include "holding.h"
#include "inside.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <unistd.h>

struct search {
    uint32_t pid;
    struct store_found *found;
    int count, room;
};

static void consider(struct search *search, int dev, const char *name) {
    struct store_client client;
    size_t fixed = offsetof(struct store_client, shared);
    uint32_t gpu, serial;
    if (dev_kind(name, &gpu, &serial) != DEV_CLIENT || search->count == search->room) return;
    int fd = openat(dev, name, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return;
    bool live = dev_locked(fd) && pread(fd, &client, fixed, 0) == (ssize_t)fixed;
    close(fd);
    if (live && process_visible_pid(client.pid, client.pid_namespace, client.started_at) == search->pid)
        search->found[search->count++] = (struct store_found){gpu, serial};
}

static int search_dev(struct search *search) {
    char path[PATH_MAX];
    int error = dev_path(path, sizeof path, ".");
    if (error) return error;
    DIR *dev = opendir(path);
    if (!dev) return -errno;
    for (struct dirent *entry; (entry = readdir(dev));) consider(search, dirfd(dev), entry->d_name);
    closedir(dev);
    return search->count;
}

int store_clients_of(uint32_t pid, struct store_found *found, int room) {
    struct search search = {.pid = pid, .found = found, .room = room};
    int error = store_enter();
    if (error) return error;
    int count = search_dev(&search);
    store_leave();
    return count;
}
