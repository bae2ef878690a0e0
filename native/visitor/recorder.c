/* Starts and stops the recorder (native/tracer) in this program, as payloads/tracer/control.py does in a Python.
 *
 * The recorder is a library of its own, which stays loaded. What cannot be done is an answer.
 */
#define _GNU_SOURCE
#include "visitor.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { ALREADY_RECORDING = 1, MAX_HELD = 256 };

static struct {
    void *library;
    int (*start)(const char *);
    int (*stop)(void);
    int (*stop_after)(double);
    int (*before)(int, uint64_t, const char *);
    int (*blob)(const char *, const void *, uint64_t);
    const char *(*error)(void);
    const char *(*file)(void);
    void (*counts)(uint64_t *, uint64_t *, uint64_t *);
} recorder;

static bool open_recorder(const char *path, int mode) {
    recorder.library = dlopen(path, mode | RTLD_NOW);
    if (!recorder.library) return false;
#define FIND(name) *(void **)&recorder.name = dlsym(recorder.library, "vram_tracer_" #name)
    FIND(start);
    FIND(stop);
    FIND(stop_after); /* since the recorder that came with this visitor */
    FIND(before);
    FIND(blob);
    FIND(error);
    FIND(file);
    FIND(counts);
#undef FIND
    if (recorder.start && recorder.stop && recorder.before && recorder.error && recorder.file && recorder.counts)
        return true;
    dlclose(recorder.library);
    recorder.library = NULL;
    return false;
}

static void close_recorder(void) {
    if (recorder.library) dlclose(recorder.library);
    recorder.library = NULL;
}

/* The recorder that this program has loaded already, by vram or by the driver. */
static bool find_recorder(void) {
    static char line[PATH_MAX + 256];
    bool found = false;
    FILE *maps = fopen("/proc/self/maps", "re");
    while (maps && !found && fgets(line, sizeof line, maps)) {
        char *path = strchr(line, '/');
        if (!path) continue;
        if (strstr(path, "/memfd:libvramtracer.so")) { /* it came from another file system: by its own name */
            found = open_recorder("libvramtracer.so", RTLD_NOLOAD);
            continue;
        }
        if (!strstr(path, "/libvramtracer.so")) continue;
        path[strcspn(path, "\n")] = 0;
        char *deleted = strstr(path, " (deleted)");
        if (deleted) *deleted = 0;
        found = open_recorder(path, RTLD_NOLOAD);
    }
    if (maps) fclose(maps);
    return found;
}

/* ---- answers ---- */

static void say(const char *outcome) {
    answer_raw("\"status\":\"done\",\"outcome\":\"%s\"", outcome);
}

static void say_text(const char *name, const char *text) {
    answer_raw(",\"%s\":", name);
    answer_text(text ? text : "");
}

static void say_counts(void) {
    uint64_t events = 0, nbytes = 0, lost = 0;
    recorder.counts(&events, &nbytes, &lost);
    answer_raw(",\"events\":%llu,\"nbytes\":%llu,\"lost\":%llu", (unsigned long long)events, (unsigned long long)nbytes,
               (unsigned long long)lost);
}

/* ---- start ---- */

/* Why the trace cannot be written by this process; NULL where it can. */
static const char *why_unwritable(const char *output) {
    static char reason[2 * PATH_MAX];
    char trial[PATH_MAX + 64];
    struct stat about;
    if (lstat(output, &about) == 0) {
        snprintf(reason, sizeof reason, "%s exists already", output);
        return reason;
    }
    snprintf(trial, sizeof trial, "%s.%d.trial", output, (int)getpid());
    int file = open(trial, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (file < 0) {
        const char *slash = strrchr(output, '/');
        snprintf(reason, sizeof reason, "%.*s: %s", slash ? (int)(slash - output) : 0, output, strerror(errno));
        return reason;
    }
    close(file);
    unlink(trial);
    return NULL;
}

/* Where the trace goes: the output, or a file of that name in the first of the folders that will do. Returns why it
 * cannot be written; NULL where it can. */
static const char *choose_output(char *path, size_t size) {
    const char *folder = NULL, *reason = NULL;
    for (int i = 0; !i || (folder = request_nth("folder", i)); i++) {
        char name[VALUE_NBYTES], above[VALUE_NBYTES] = "";
        if (!i && (folder = request_nth("folder", 0))) snprintf(above, sizeof above, "%s/", folder);
        if (i) snprintf(above, sizeof above, "%s/", folder);
        const char *output = request_value("output");
        snprintf(name, sizeof name, "%s", output ? output : "");
        if (snprintf(path, size, "%s%s", above, name) >= (int)size) return "its name is too long";
        reason = why_unwritable(path);
        if (!reason || !above[0]) break;
    }
    return reason;
}

/* What the driver charged the program with before: lines of "UUID NBYTES SOURCE". */
static void record_held(void) {
    bool first = true;
    answer_raw(",\"held\":[");
    for (int i = 0; i < MAX_HELD; i++) {
        char line[VALUE_NBYTES], uuid[64];
        unsigned long long nbytes;
        int source = 0;
        const char *value = request_nth("held", i);
        if (!value) break;
        snprintf(line, sizeof line, "%s", value);
        if (sscanf(line, "%63s %llu %n", uuid, &nbytes, &source) != 2 || !source) continue;
        int device = device_ordinal(uuid);
        recorder.before(device, nbytes, line + source);
        answer_raw("%s{\"device\":%d,\"nbytes\":%llu,\"source\":", first ? "" : ",", device, nbytes);
        answer_text(line + source);
        answer_raw("}");
        first = false;
    }
    answer_raw("]");
}

void recorder_start(void) {
    static char value[PATH_MAX], text[REQUEST_NBYTES + PATH_MAX + 16];
    bool loaded = find_recorder();
    if (loaded && recorder.file()[0]) {
        say("already recording");
        say_text("file", recorder.file());
        say_counts();
        close_recorder();
        return;
    }
    const char *reason = choose_output(value, sizeof value);
    if (reason) {
        say("output");
        say_text("error", reason);
        close_recorder();
        return;
    }
    const char *library = recorder_library();
    if (!loaded && !(library && open_recorder(library, 0))) {
        const char *error = dlerror();
        say("no recorder");
        say_text("error", error ? error : "it lacks what vram calls");
        return;
    }
    snprintf(text, sizeof text, "%soutput=%s\n", request_settings(), value); /* the last one counts */
    int code = recorder.start(text);
    say(code == 0 ? "recording" : code == ALREADY_RECORDING ? "already recording" : "failed");
    say_text("file", recorder.file());
    if (code) {
        answer_raw(",\"code\":%d", code);
        say_text("error", recorder.error());
    } else {
        const char *elsewhere = request_value("elsewhere");
        if (elsewhere && recorder.blob) recorder.blob("elsewhere", elsewhere, strlen(elsewhere));
        const char *seconds = request_value("for_s");
        if (seconds && recorder.stop_after) recorder.stop_after(atof(seconds));
        record_held();
        answer_raw(",\"uses_cuda\":%s", uses_cuda() ? "true" : "false");
    }
    if (loaded || code) close_recorder(); /* else the handle stays: the program keeps the library */
}

/* ---- status and stop ---- */

void recorder_status(void) {
    const char *file = request_value("file");
    bool loaded = find_recorder();
    bool same = loaded && recorder.file()[0] && file && !strcmp(recorder.file(), file);
    say(same ? "recording" : "not recording");
    if (same) {
        say_text("file", recorder.file());
        say_counts();
    }
    close_recorder();
}

void recorder_stop(void) {
    char file[PATH_MAX + 16];
    bool loaded = find_recorder();
    if (!loaded || !recorder.file()[0]) {
        say("not recording");
    } else {
        uint64_t events = 0, nbytes = 0, lost = 0;
        snprintf(file, sizeof file, "%s", recorder.file());
        recorder.counts(&events, &nbytes, &lost);
        if (recorder.stop()) {
            say("not recording"); /* its timer came first */
        } else {
            say("stopped");
            say_text("file", file);
            answer_raw(",\"events\":%llu,\"nbytes\":%llu,\"lost\":%llu", (unsigned long long)events,
                       (unsigned long long)nbytes, (unsigned long long)lost);
        }
    }
    close_recorder();
}
