/* Control groups of the virtual machine: which one a process is in, what a group uses, and its limits.
 *
 * They are folders below <folder>/cgroup, as those of the kernel's device memory controller: a group that has it
 * has the files dmem.max and dmem.min, with lines "nvidia/00000000:01:00.0/vidmem 42949672960" or "... max".
 * VRAM_VIRTUAL_CGROUP in a process's environment says which group it is in. There is no file dmem.current:
 * nobody could write it when a process is killed. As NVIDIA and the kernel document it; nothing is measured.
 */
#include "files.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define HARD "dmem.max"
#define SOFT "dmem.min"

const char *store_own_cgroup(void) {
    const char *named = getenv("VRAM_VIRTUAL_CGROUP");
    bool usable = named && named[0] == '/' && strlen(named) < STORE_CGROUP_SIZE && !strstr(named, "..");
    return usable ? named : "/";
}

bool store_cgroup_within(const char *cgroup, const char *above) {
    size_t length = strlen(above);
    while (length && above[length - 1] == '/') length--;
    return strncmp(cgroup, above, length) == 0 && (cgroup[length] == '\0' || cgroup[length] == '/');
}

static void region(uint32_t gpu, char text[64]) {
    snprintf(text, 64, "nvidia/00000000:%02x:00.0/vidmem", gpu + 1);
}

static bool group_path(char path[PATH_MAX], const char *cgroup, const char *file) {
    int length =
        snprintf(path, PATH_MAX, "%s/cgroup%s/%s", store_folder(), strcmp(cgroup, "/") == 0 ? "" : cgroup, file);
    return length > 0 && length < PATH_MAX;
}

/* The group's own value; *otherwise* where it has the file without a line. False where it has no such file. */
static bool read_value(uint32_t gpu, const char *cgroup, const char *file, uint64_t otherwise, uint64_t *value) {
    char path[PATH_MAX], wanted[64], key[64], word[32];
    FILE *lines = group_path(path, cgroup, file) ? fopen(path, "re") : NULL;
    if (!lines) return false;
    region(gpu, wanted);
    *value = otherwise;
    while (fscanf(lines, "%63s %31s", key, word) == 2)
        if (strcmp(key, wanted) == 0) *value = strcmp(word, "max") == 0 ? UINT64_MAX : strtoull(word, NULL, 10);
    fclose(lines);
    return true;
}

bool store_cgroup_limit(uint32_t gpu, const char *cgroup, struct store_limit *limit) {
    char at[STORE_CGROUP_SIZE];
    snprintf(at, sizeof at, "%s", cgroup);
    for (;;) {
        if (strcmp(at, "/") == 0) return false; /* the root has no limits */
        if (read_value(gpu, at, HARD, UINT64_MAX, &limit->hard)) break;
        char *end = strrchr(at, '/');
        end[end == at ? 1 : 0] = '\0';
    }
    if (!read_value(gpu, at, SOFT, 0, &limit->soft)) limit->soft = 0;
    snprintf(limit->cgroup, sizeof limit->cgroup, "%s", at);
    return true;
}

/* How much the process's own group and all above it leave it on a GPU. */
uint64_t store_cgroup_headroom(uint32_t gpu) {
    uint64_t least = UINT64_MAX, hard, used;
    char at[STORE_CGROUP_SIZE];
    snprintf(at, sizeof at, "%s", store_own_cgroup());
    while (strcmp(at, "/") != 0) {
        if (read_value(gpu, at, HARD, UINT64_MAX, &hard) && hard != UINT64_MAX &&
            store_cgroup_used(gpu, at, &used) == 0 && size_left(hard, used) < least)
            least = size_left(hard, used);
        char *end = strrchr(at, '/');
        end[end == at ? 1 : 0] = '\0';
    }
    return least;
}

/* The lines of the other GPUs stay as they are. */
static int write_value(uint32_t gpu, const char *cgroup, const char *file, uint64_t value) {
    char path[PATH_MAX], wanted[64], key[64], word[32], text[8192] = "";
    size_t length = 0;
    FILE *lines = group_path(path, cgroup, file) ? fopen(path, "re") : NULL;
    if (!lines) return -ENOENT;
    region(gpu, wanted);
    while (fscanf(lines, "%63s %31s", key, word) == 2)
        if (strcmp(key, wanted) != 0 && length < sizeof text - 128)
            length += (size_t)snprintf(text + length, sizeof text - length, "%s %s\n", key, word);
    fclose(lines);
    if (value == UINT64_MAX)
        snprintf(text + length, sizeof text - length, "%s max\n", wanted);
    else
        snprintf(text + length, sizeof text - length, "%s %llu\n", wanted, (unsigned long long)value);
    FILE *out = fopen(path, "we");
    if (!out) return -errno;
    bool failed = fputs(text, out) < 0;
    return fclose(out) != 0 || failed ? -EIO : 0;
}

int store_cgroup_set(uint32_t gpu, const char *cgroup, uint64_t soft, uint64_t hard) {
    int error = write_value(gpu, cgroup, HARD, hard);
    return error ? error : write_value(gpu, cgroup, SOFT, soft);
}
