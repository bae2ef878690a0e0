/* Failures on request: <folder>/faults, one per line, read again whenever it changes.
 *
 *   <function> [gpu=N] [after=N | nth=N] [error=CODE] [sticky=CODE] [hang] [slow=SECONDS] [sentinel] [halfway=CODE]
 *       [value=N]
 *
 * <function> is a shell pattern on the exported name ("nvmlDeviceGet*", "cuMemAlloc*").
 * `after=3` means from the third matching call on, `nth=5` the fifth only; calls are
 * counted per process and per line, anew when the file changes. `slow` waits and then
 * goes on, alone or before an error, and sooner when the file is emptied; `hang` never
 * returns. `sentinel` asks for the value that means "not available". `halfway` lets a
 * checkpoint or restore begin and then fail.
 * `value` is what cuCheckpointProcessGetState returns as the state of any process.
 * `sticky` breaks the calling thread's context: this call and all later ones in it fail.
 * A <function> that begins with "step." names no call but steps inside of calls: "step.range nth=2 error=2"
 * lets the second entry into the table of addresses fail, and the call has to undo what it did before. Which
 * code the call returns is its own decision. The steps: client_lock, client_data, client_header, device_open,
 * device_map, event_file, export_header, extents, handle, managed_map, map, memory, protect, range, reserve,
 * slot, thread.
 * "step.checkpoint slow=3" and "step.restore slow=3" keep the driver's thread of the target busy for three seconds
 * in the middle of its work, whatever becomes of the process that asked. Lines and counts are those of that process.
 * The first line that fires decides. "#" begins a comment line.
 *
 * VRAM_VIRTUAL_FAULTS in a process's environment holds lines for that process alone, which come before the file's.
 */
#define _GNU_SOURCE
#include "store.h"

#include <fnmatch.h>
#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define MAX_RULES 128
#define MAX_WAIT_S 1e9  /* whatever the file says */
#define MAX_STEP_S 0.01 /* so soon it is seen that the file was emptied */

struct rule {
    char function[96];
    int gpu; /* -1: any */
    unsigned after, nth, calls;
    bool hang;
    double slow_s;
    struct store_fault fault;
};

static struct rule rules[MAX_RULES];
static int rule_count;
static _Atomic bool any_steps;
static struct stat read_from;
static pthread_mutex_t guard = PTHREAD_MUTEX_INITIALIZER;
static pthread_once_t fork_handlers = PTHREAD_ONCE_INIT;

static void before_fork(void) {
    pthread_mutex_lock(&guard);
}

static void after_fork(void) {
    pthread_mutex_unlock(&guard);
}

static void watch_forks(void) {
    pthread_atfork(before_fork, after_fork, after_fork);
}

/* A number beyond an int counts as the largest: no code and no count of calls is that high. */
static int number_in(const char *text) {
    long number = strtol(text, NULL, 10);
    return number < INT_MIN ? INT_MIN : number > INT_MAX ? INT_MAX : (int)number;
}

static void read_word(struct rule *rule, const char *word) {
    const char *value = strchr(word, '=');
    value = value ? value + 1 : "";
    int number = number_in(value);
    if (strncmp(word, "gpu=", 4) == 0) rule->gpu = number;
    if (strncmp(word, "after=", 6) == 0) rule->after = (unsigned)number;
    if (strncmp(word, "nth=", 4) == 0) rule->nth = (unsigned)number;
    if (strncmp(word, "slow=", 5) == 0) rule->slow_s = atof(value);
    if (strcmp(word, "hang") == 0) rule->hang = true;
    if (strcmp(word, "sentinel") == 0) rule->fault.kind = FAULT_SENTINEL;
    if (strncmp(word, "error=", 6) == 0) rule->fault = (struct store_fault){FAULT_ERROR, number};
    if (strncmp(word, "sticky=", 7) == 0) rule->fault = (struct store_fault){FAULT_STICKY, number};
    if (strncmp(word, "halfway=", 8) == 0) rule->fault = (struct store_fault){FAULT_HALFWAY, number};
    if (strncmp(word, "value=", 6) == 0) rule->fault = (struct store_fault){FAULT_VALUE, number};
}

static bool names_steps(const char *function) {
    return strncmp(function, "step.", 5) == 0;
}

static void read_rule(char *line) {
    char *rest;
    char *word = strtok_r(line, " \t\n", &rest);
    if (!word || *word == '#' || rule_count == MAX_RULES) return;
    struct rule *rule = &rules[rule_count++];
    *rule = (struct rule){.gpu = -1};
    snprintf(rule->function, sizeof rule->function, "%s", word);
    if (names_steps(rule->function)) any_steps = true;
    while ((word = strtok_r(NULL, " \t\n", &rest))) read_word(rule, word);
}

static void read_lines(FILE *file) {
    char line[512];
    if (!file) return;
    while (fgets(line, sizeof line, file)) read_rule(line);
    fclose(file);
}

static void read_all(const char *path) {
    const char *own = getenv("VRAM_VIRTUAL_FAULTS");
    rule_count = 0;
    any_steps = false;
    if (own && *own) read_lines(fmemopen((void *)own, strlen(own), "r"));
    read_lines(fopen(path, "re"));
}

static bool same_file(const struct stat *a, const struct stat *b) {
    return a->st_ino == b->st_ino && a->st_size == b->st_size && a->st_mtim.tv_sec == b->st_mtim.tv_sec &&
           a->st_mtim.tv_nsec == b->st_mtim.tv_nsec;
}

static void refresh(void) {
    static bool was_read;
    char path[PATH_MAX];
    struct stat now = {0};
    if (!store_folder()) return;
    snprintf(path, sizeof path, "%s/faults", store_folder());
    (void)!stat(path, &now); /* a missing file is the same as an empty one */
    if (was_read && same_file(&now, &read_from)) return;
    was_read = true;
    read_from = now;
    read_all(path);
}

static bool fires(struct rule *rule, const char *function, int gpu) {
    if (rule->gpu >= 0 && rule->gpu != gpu) return false;
    if (names_steps(rule->function) != names_steps(function)) return false;
    if (fnmatch(rule->function, function, 0) != 0) return false;
    rule->calls++;
    if (rule->nth) return rule->calls == rule->nth;
    return rule->calls >= rule->after;
}

static struct rule choose(const char *function, int gpu) {
    struct rule chosen = {0};
    pthread_once(&fork_handlers, watch_forks);
    pthread_mutex_lock(&guard);
    refresh();
    for (int i = 0; i < rule_count; i++)
        if (fires(&rules[i], function, gpu)) {
            chosen = rules[i];
            break;
        }
    pthread_mutex_unlock(&guard);
    return chosen;
}

bool store_step_fails(const char *step) {
    bool fails = false;
    if (!any_steps) return false;
    pthread_mutex_lock(&guard);
    for (int i = 0; i < rule_count; i++) fails |= fires(&rules[i], step, -1);
    pthread_mutex_unlock(&guard);
    return fails;
}

double store_step_delay_s(const char *step) {
    return choose(step, -1).slow_s;
}

static bool file_has_lines(void) {
    char path[PATH_MAX];
    struct stat now;
    if (!store_folder()) return false;
    snprintf(path, sizeof path, "%s/faults", store_folder());
    return stat(path, &now) == 0 && now.st_size > 0;
}

static double now_s(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

void store_delay(double seconds) {
    bool can_be_cleared = file_has_lines();
    double end_s = now_s() + (seconds < MAX_WAIT_S ? seconds : MAX_WAIT_S);
    for (double left_s; (left_s = end_s - now_s()) > 0;) {
        struct timespec step = {0, (long)((left_s < MAX_STEP_S ? left_s : MAX_STEP_S) * 1e9)};
        nanosleep(&step, NULL);
        if (can_be_cleared && !file_has_lines()) return;
    }
}

struct store_fault store_fault(const char *function, int gpu) {
    struct rule rule = choose(function, gpu);
    while (rule.hang) pause();
    if (rule.slow_s > 0) store_delay(rule.slow_s);
    return rule.fault;
}
