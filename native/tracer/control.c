/* The recorder's life: loaded by the CUDA driver or by who attaches, started, stopped, forked, ended. */
#define _GNU_SOURCE
#include "cupti.h"
#include "native_stack.h"
#include "section.h"
#include "writer.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

EXPORTED int InitializeInjection(void);
EXPORTED int vram_tracer_start(const char *lines);
EXPORTED int vram_tracer_stop(void);
EXPORTED int vram_tracer_stop_after(double seconds);
EXPORTED const char *vram_tracer_error(void);
EXPORTED const char *vram_tracer_file(void);
EXPORTED void vram_tracer_counts(uint64_t *events, uint64_t *bytes, uint64_t *lost);
EXPORTED int vram_tracer_exit(uint64_t ended_ns);
EXPORTED int vram_tracer_mark(const char *text);
EXPORTED int vram_tracer_before(int device, uint64_t nbytes, const char *source);
EXPORTED int vram_tracer_blob(const char *name, const void *bytes, uint64_t nbytes);

struct settings settings;
_Atomic int recording = NOT_RECORDING;
static volatile uint32_t always_here = 1;
volatile uint32_t *not_forked = &always_here;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* of start and stop */
static char last_error[PATH_MAX + 512];

/* ---- messages ---- */

void message(const char *code, const char *format, ...) {
    if (!settings.messages[0]) return;
    char line[4096];
    int length = snprintf(line, sizeof line, "%d %s ", (int)getpid(), code);
    va_list arguments;
    va_start(arguments, format);
    int more = vsnprintf(line + length, sizeof line - (size_t)length - 1, format, arguments);
    va_end(arguments);
    if (more < 0) return;
    length = (size_t)(length + more) < sizeof line - 1 ? length + more : (int)sizeof line - 2;
    for (int i = 0; i < length; i++)
        if (line[i] == '\n') line[i] = ' ';
    line[length++] = '\n';
    int file = open(settings.messages, O_WRONLY | O_APPEND | O_NOFOLLOW | O_CLOEXEC);
    if (file < 0) return;
    (void)!write(file, line, (size_t)length);
    close(file);
}

/* ---- settings ---- */

static bool copy_text(char *to, size_t size, const char *text, size_t length) {
    if (length >= size) return false;
    memcpy(to, text, length);
    to[length] = 0;
    return true;
}

static bool set_run(const char *text, size_t length) {
    if (length != 32) return false;
    for (int i = 0; i < 16; i++) {
        unsigned value;
        if (sscanf(text + 2 * i, "%2x", &value) != 1) return false;
        settings.run[i] = (uint8_t)value;
    }
    return true;
}

static bool set_fail(const char *text, size_t length) {
    char value[64];
    if (!copy_text(value, sizeof value, text, length)) return false;
    char *number = strchr(value, '='), *end = NULL;
    if (!number) return false;
    settings.fail_value = strtoull(number + 1, &end, 10);
    if (end == number + 1 || *end) return false;
    bool count = !strncmp(value, "count=", 6), size = !strncmp(value, "size=", 5);
    settings.fail = count ? FAIL_AT_COUNT : size ? FAIL_AT_SIZE : FAIL_NEVER;
    return count || size;
}

static bool set_stacks(const char *text, size_t length) {
    static const char *const names[] = {"none", "python", "native"};
    for (int i = 0; i < 3; i++)
        if (strlen(names[i]) == length && !memcmp(names[i], text, length)) {
            settings.stacks = (enum stack_mode)i;
            return true;
        }
    return false;
}

static bool set(const char *key, size_t key_length, const char *value, size_t length) {
#define IS(name) (key_length == sizeof(name) - 1 && !memcmp(key, name, key_length))
    if (IS("output")) return copy_text(settings.output, sizeof settings.output, value, length);
    if (IS("stacks")) return set_stacks(value, length);
    if (IS("run")) return set_run(value, length);
    if (IS("cupti")) return copy_text(settings.cupti, sizeof settings.cupti, value, length);
    if (IS("payload")) return copy_text(settings.payload, sizeof settings.payload, value, length);
    if (IS("messages")) return copy_text(settings.messages, sizeof settings.messages, value, length);
    if (IS("fail_at")) return set_fail(value, length);
#undef IS
    return false;
}

static void set_defaults(bool attached) {
    memset(&settings, 0, sizeof settings);
    settings.stacks = STACKS_PYTHON;
    settings.attached = attached;
}

static bool settings_from_lines(const char *lines) {
    set_defaults(true);
    while (*lines) {
        size_t length = strcspn(lines, "\n");
        const char *equals = memchr(lines, '=', length);
        if (length &&
            (!equals || !set(lines, (size_t)(equals - lines), equals + 1, length - (size_t)(equals + 1 - lines))))
            return false;
        lines += length + (lines[length] == '\n');
    }
    return settings.output[0] == '/';
}

static bool settings_from_environment(void) {
    set_defaults(false);
    static const char *const keys[] = {"output", "stacks", "run", "cupti", "payload", "messages", "fail_at"};
    static const char *const variables[] = {"VRAM_TRACE_OUTPUT", "VRAM_TRACE_STACKS",  "VRAM_TRACE_RUN",
                                            "VRAM_TRACE_CUPTI",  "VRAM_TRACE_PAYLOAD", "VRAM_TRACE_MESSAGES",
                                            "VRAM_TRACE_FAIL_AT"};
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        /* A program that runs with more rights than its caller takes no orders from its environment. */
        const char *value = secure_getenv(variables[i]);
        if (value && *value && !set(keys[i], strlen(keys[i]), value, strlen(value)))
            message("settings", "%s is not understood", variables[i]);
    }
    return settings.output[0] == '/';
}

/* ---- fork ---- */

static void watch_for_forks(void) {
    /* A page that the kernel empties in a child: also one made by clone(), without handlers. */
    if (not_forked == &always_here) {
        uint32_t *page = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (page != MAP_FAILED && !madvise(page, 4096, MADV_WIPEONFORK)) {
            *page = 1;
            not_forked = page;
        }
    }
}

void tracer_forked(void) {
    if (*not_forked) return;
    pthread_mutex_init(&lock, NULL);
    section_forget();
    writers_forked();
    subscribers_forked();
    devices_forget();
    stacks_forget_libraries();
    *(uint32_t *)(uintptr_t)not_forked = 1;
}

static void after_fork_in_child(void) {
    tracer_forked();
}

/* ---- a Python program runs vram's own code once: hooks in frameworks ---- */

static char payload_text[3 * PATH_MAX];

static int run_payload(void *unused) {
    (void)unused;
    int (*run)(const char *) = dlsym(RTLD_DEFAULT, "PyRun_SimpleString");
    if (run) run(payload_text);
    return 0; /* nothing is raised in the program */
}

/* A path as a Python literal: quotes, backslashes and what is not ASCII as escapes of bytes. */
static void quoted(char *to, size_t size, const char *text) {
    size_t at = 0;
    for (; *text && at + 5 < size; text++) {
        unsigned char c = (unsigned char)*text;
        if (c < 32 || c > 126 || c == '\\' || c == '"')
            at += (size_t)snprintf(to + at, size - at, "\\x%02x", c);
        else
            to[at++] = (char)c;
    }
    to[at] = 0;
}

static void schedule_payload(void) {
    if (!settings.payload[0]) return;
    int (*initialized)(void) = dlsym(RTLD_DEFAULT, "Py_IsInitialized");
    int (*add)(int (*)(void *), void *) = dlsym(RTLD_DEFAULT, "Py_AddPendingCall");
    Dl_info here;
    if (!initialized || !add || !initialized() || !dladdr((void *)(uintptr_t)schedule_payload, &here)) return;
    static char payload[PATH_MAX], library[PATH_MAX];
    quoted(payload, sizeof payload, settings.payload);
    quoted(library, sizeof library, here.dli_fname);
    snprintf(payload_text, sizeof payload_text,
             "try:\n"
             " _vram = {'__name__': 'vram_tracer', '__file__': b\"%s\", '__vram_tracer__': b\"%s\"}\n"
             " with open(_vram['__file__'], 'rb') as _vram_file: _vram_code = _vram_file.read()\n"
             " exec(compile(_vram_code, '<vram>', 'exec'), _vram)\n"
             "except BaseException: pass\n"
             "finally:\n"
             " globals().pop('_vram', None); globals().pop('_vram_file', None); globals().pop('_vram_code', None)\n",
             payload, library);
    for (int attempt = 0; attempt < 3 && add(run_payload, NULL); attempt++) usleep(1000);
}

/* ---- start and stop ---- */

static enum start_error begin(void) {
    static bool registered;
    if (!registered) {
        registered = true;
        pthread_atfork(NULL, NULL, after_fork_in_child);
    }
    watch_for_forks();
    writers_new_generation();
    devices_forget();
    stacks_forget_libraries();
    stacks_find_python();
    if (settings.stacks != STACKS_NONE) native_prepare();
    if (settings.attached) {
        int error = section_begin(true);
        if (error) {
            snprintf(last_error, sizeof last_error, "%s: %s", settings.output, strerror(error));
            return START_OUTPUT;
        }
    }
    atomic_store(&recording, RECORDING);
    enum start_error result = cupti_start(last_error, sizeof last_error);
    if (result != START_OK) atomic_store(&recording, NOT_RECORDING);
    return result;
}

int InitializeInjection(void) {
    pthread_mutex_lock(&lock);
    if (atomic_load(&recording) != RECORDING && settings_from_environment()) {
        enum start_error result = begin();
        if (result == START_OK)
            schedule_payload();
        else
            message(result == START_NO_CUPTI     ? "no-cupti"
                    : result == START_SUBSCRIBER ? "subscriber"
                                                 : "cupti-error",
                    "%s", last_error);
    }
    pthread_mutex_unlock(&lock);
    return 1;
}

int vram_tracer_start(const char *lines) {
    if (!*not_forked) tracer_forked();
    pthread_mutex_lock(&lock);
    last_error[0] = 0;
    enum start_error result;
    if (atomic_load(&recording) == RECORDING) {
        snprintf(last_error, sizeof last_error, "recording already, into %s", section_path());
        result = START_ALREADY;
    } else {
        section_close(); /* of a recording that the disk ended */
        if (!lines || !settings_from_lines(lines)) {
            snprintf(last_error, sizeof last_error, "the settings are not understood");
            result = START_SETTINGS;
        } else {
            result = begin();
            if (result != START_OK && section_is_open()) {
                char name[PATH_MAX];
                snprintf(name, sizeof name, "%s", section_path());
                section_close();
                unlink(name); /* nothing was recorded in it */
            }
            if (result == START_OK) schedule_payload();
        }
    }
    pthread_mutex_unlock(&lock);
    return (int)result;
}

static int stop(enum end_reason reason, uint64_t ended_ns) {
    if (!*not_forked) tracer_forked();
    pthread_mutex_lock(&lock);
    bool was = atomic_load(&recording) == RECORDING;
    if (was) {
        cupti_stop();
        atomic_store(&recording, NOT_RECORDING);
        if (section_is_open()) record_end(reason, ended_ns);
        section_close();
        writers_new_generation();
    }
    pthread_mutex_unlock(&lock);
    return was ? 0 : 1;
}

int vram_tracer_stop(void) {
    return stop(END_DETACHED, now_ns());
}

/* ---- a recording that ends by itself, whatever becomes of who began it ---- */

struct timer {
    double seconds;
    char file[PATH_MAX];
};

/* A recording that was stopped meanwhile, or begun anew, is left alone. */
static void *stop_later(void *given) {
    struct timer *timer = given;
    struct timespec rest = {.tv_sec = (time_t)timer->seconds};
    rest.tv_nsec = (long)((timer->seconds - (double)rest.tv_sec) * 1e9);
    while (nanosleep(&rest, &rest) != 0 && errno == EINTR) {
    }
    if (!strcmp(section_path(), timer->file)) vram_tracer_stop();
    free(timer);
    return NULL;
}

int vram_tracer_stop_after(double seconds) {
    sigset_t all, before;
    pthread_attr_t attributes;
    pthread_t thread;
    struct timer *timer = malloc(sizeof *timer);
    if (!timer) return 1;
    timer->seconds = seconds > 0 && seconds < 1e9 ? seconds : 0;
    snprintf(timer->file, sizeof timer->file, "%s", section_path());
    pthread_attr_init(&attributes);
    pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
    /* No handler of the program runs in a thread that it does not know. */
    sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, &before);
    int failed = pthread_create(&thread, &attributes, stop_later, timer);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    pthread_attr_destroy(&attributes);
    if (failed) free(timer);
    return failed != 0;
}

/* An interpreter that ends frees what the program held to the end, as far as objects own it: it would look
 * as if the program had. So a Python program's recording ends where its own work does: *ended_ns* is when, for
 * what frameworks hand over at exit takes time. */
int vram_tracer_exit(uint64_t ended_ns) {
    return stop(END_EXIT, ended_ns);
}

const char *vram_tracer_error(void) {
    return last_error;
}

const char *vram_tracer_file(void) {
    return section_path();
}

void vram_tracer_counts(uint64_t *events, uint64_t *bytes, uint64_t *lost) {
    *events = writers_events();
    *bytes = section_nbytes();
    *lost = atomic_load(&section_lost);
}

int vram_tracer_mark(const char *text) {
    if (!*not_forked) tracer_forked();
    if (!text || atomic_load(&recording) != RECORDING) return 1;
    return section_is_open() || !section_begin(false) ? record_mark(text) : 1;
}

int vram_tracer_before(int device, uint64_t nbytes, const char *source) {
    if (!source || atomic_load(&recording) != RECORDING || !section_is_open()) return 1;
    device_seen(device); /* so that a reader knows which GPU this number is */
    return record_before(device, nbytes, source);
}

int vram_tracer_blob(const char *name, const void *bytes, uint64_t nbytes) {
    if (!*not_forked) tracer_forked();
    if (!name || !bytes || atomic_load(&recording) != RECORDING) return 1;
    return section_is_open() || !section_begin(false) ? record_blob(name, bytes, nbytes) : 1;
}

__attribute__((destructor)) static void at_exit(void) {
    if (*not_forked && atomic_load(&recording) == RECORDING && section_is_open()) record_end(END_EXIT, now_ns());
}
