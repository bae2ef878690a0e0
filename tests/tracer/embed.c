// A C program that loads Python late, for itself only, finalizes it while a thread still walks, and starts it again.
//
//     embed LIBPYTHON    prints what went wrong, and exits with 0 where nothing did
#define _GNU_SOURCE
#include "../../native/tracer/python_stack.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { STARTING, WAITING, WALK, WALKED };
static atomic_int walked = -1, background = -1, phase = STARTING, late = -1;
static void *(*release_gil)(void);

static int walk(void) {
    struct python_frame frames[64];
    return python_walk(frames, 64);
}

static int check(int right, const char *what) {
    if (!right) printf("%s\n", what);
    return right ? 0 : 1;
}

// What the thread in the background finds now.
static int let_walk(void) {
    phase = WALK;
    while (phase != WALKED) usleep(100);
    return background;
}

// Called by sys.audit: C code in the middle of Python's.
static int heard(const char *event, void *arguments, void *data) {
    (void)arguments, (void)data;
    if (!strcmp(event, "vram.walk")) walked = walk();
    if (!strcmp(event, "vram.late")) late = let_walk();
    if (strcmp(event, "vram.background")) return 0;
    release_gil();
    background = walk();
    for (phase = WAITING;;) {
        while (phase != WALK) usleep(100);
        background = walk();
        phase = WALKED;
    }
}

static const char script[] = "import sys\ndef f(): sys.audit('vram.walk')\nf()\n";
static const char thread_script[] = "import sys, _thread\n"
                                    "def outer(): inner()\n"
                                    "def inner(): sys.audit('vram.background')\n"
                                    "_thread.start_new_thread(outer, ())\n"
                                    "class Late:\n"
                                    "    def __del__(self, audit=sys.audit): audit('vram.late')\n"
                                    "sys.modules['late'] = type(sys)('late')\n"
                                    "sys.modules['late'].late = Late()\n";

int main(int count, char **arguments) {
    if (count != 2) return 100;
    int wrong = check(python_find() == PYTHON_ABSENT && !walk(), "Python is found before it is loaded");
    wrong += check(!strcmp(python_version(), ""), "a version without Python");
    void *library = dlopen(arguments[1], RTLD_NOW | RTLD_LOCAL);
    if (!library) return 101;
    wrong += check(python_find() == PYTHON_SUPPORTED, "a Python that is loaded later is not found");
    wrong += check(!walk(), "frames before Python is initialized");
    void (*initialize)(int) = (void (*)(int))dlsym(library, "Py_InitializeEx");
    int (*finalize)(void) = (int (*)(void))dlsym(library, "Py_FinalizeEx");
    int (*run)(const char *, void *) = (int (*)(const char *, void *))dlsym(library, "PyRun_SimpleStringFlags");
    int (*add_hook)(int (*)(const char *, void *, void *), void *) =
        (int (*)(int (*)(const char *, void *, void *), void *))dlsym(library, "PySys_AddAuditHook");
    void (*take_gil)(void *) = (void (*)(void *))dlsym(library, "PyEval_RestoreThread");
    release_gil = (void *(*)(void))dlsym(library, "PyEval_SaveThread");

    for (int round = 0; round < 2; round++) {
        walked = -1;
        initialize(0);
        add_hook(heard, NULL);
        wrong += check(!walk(), "frames where no Python code runs");
        run(script, NULL);
        wrong += check(walked == 2, "not two frames in a function of a script");
        if (!round) {
            run(thread_script, NULL);
            void *thread = release_gil();
            while (phase != WAITING) usleep(100);
            take_gil(thread);
            wrong += check(background == 2, "not two frames in a thread without the GIL");
        }
        finalize();
        wrong += check(!walk(), "frames after Python was finalized");
        if (!round) {
            wrong += check(late == 0, "frames in a thread that Python has forgotten, while it is finalized");
            wrong += check(let_walk() == 0, "frames in a thread that outlived Python");
        }
    }
    fflush(stdout);
    _exit(wrong);
}
