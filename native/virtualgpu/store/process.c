/* Processes: identity of the one that made a file, its pid in another namespace, and its client files. */
#define _GNU_SOURCE
#include "client.h"
#include "files.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define FIELDS_TO_SKIP 18 /* from the parent's pid, field 4, up to the start time, field 22 */

static uint64_t start_time_in(const char *field) {
    for (int skipped = 0; skipped < FIELDS_TO_SKIP && field; skipped++) field = strchr(field + 1, ' ');
    return field ? strtoull(field, NULL, 10) : 0;
}

static uint64_t started_at_of(const char *pid) {
    char path[64], line[1024];
    snprintf(path, sizeof path, "/proc/%.20s/stat", pid);
    FILE *file = fopen(path, "re");
    if (!file) return 0;
    size_t length = fread(line, 1, sizeof line - 1, file);
    fclose(file);
    line[length] = '\0';
    /* The command name may hold blanks and parentheses: count fields from its last one. */
    const char *rest = strrchr(line, ')');
    return rest && strlen(rest) > 3 ? start_time_in(rest + 3) : 0;
}

static uint64_t namespace_of(const char *pid) {
    char path[64];
    struct stat entry;
    snprintf(path, sizeof path, "/proc/%.20s/ns/pid", pid);
    return stat(path, &entry) == 0 ? entry.st_ino : 0;
}

/* The pid inside the process's own, innermost namespace: the last number after NSpid. */
static uint32_t innermost_pid_of(const char *pid) {
    char path[64], line[512];
    uint32_t innermost = 0;
    snprintf(path, sizeof path, "/proc/%.20s/status", pid);
    FILE *file = fopen(path, "re");
    if (!file) return 0;
    while (fgets(line, sizeof line, file)) {
        if (strncmp(line, "NSpid:", 6) != 0) continue;
        const char *last = strrchr(line, '\t');
        if (last) innermost = (uint32_t)strtoul(last, NULL, 10);
        break;
    }
    fclose(file);
    return innermost;
}

uint64_t process_started_at(void) {
    return started_at_of("self");
}

uint64_t process_pid_namespace(void) {
    return namespace_of("self");
}

static bool is_that_process(const char *pid, uint32_t creator_pid, uint64_t pid_namespace, uint64_t started_at) {
    return namespace_of(pid) == pid_namespace && innermost_pid_of(pid) == creator_pid &&
           started_at_of(pid) == started_at;
}

uint32_t process_visible_pid(uint32_t creator_pid, uint64_t pid_namespace, uint64_t started_at) {
    uint32_t found = 0;
    if (pid_namespace == process_pid_namespace()) return creator_pid;
    DIR *proc = opendir("/proc");
    if (!proc) return 0;
    for (struct dirent *entry; !found && (entry = readdir(proc));) {
        if (entry->d_name[0] < '0' || entry->d_name[0] > '9') continue;
        if (is_that_process(entry->d_name, creator_pid, pid_namespace, started_at))
            found = (uint32_t)strtoul(entry->d_name, NULL, 10);
    }
    closedir(proc);
    return found;
}

/* ---- the client files of one process, for checkpoint and restore ---- */

struct search {
    uint32_t pid;
    struct store_found *found;
    int count, room;
};

static void check_entry(struct search *search, int dev, const char *name) {
    struct store_client client;
    uint32_t gpu, serial;
    if (dev_kind(name, &gpu, &serial) != DEV_CLIENT || search->count == search->room) return;
    int fd = openat(dev, name, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return;
    bool live = dev_locked(fd) && pread(fd, &client, sizeof client, 0) == sizeof client;
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
    for (struct dirent *entry; (entry = readdir(dev));) check_entry(search, dirfd(dev), entry->d_name);
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
