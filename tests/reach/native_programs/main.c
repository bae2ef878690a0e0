/* A C program: ./main NBYTES MODE. It computes, rests, and does what MODE says; 'plain' nothing more. */
#define _GNU_SOURCE
#include "program.h"

#include <dlfcn.h>
#include <link.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

static void start(void *(*run)(void *), int count) {
    pthread_t thread;
    for (int i = 0; i < count; i++)
        if (pthread_create(&thread, NULL, run, NULL)) abort();
}

/* A hundred of these need no more processors than a machine has. */
static void *work_and_rest(void *unused) {
    for (;;) {
        volatile double sum = 0;
        for (int i = 1; i <= 1000; i++) sum += i * 0.5;
        if (sum != 250250.0) went_wrong("sum");
        count_round();
        usleep(20000);
    }
    return unused;
}

/* Children compute, too, and say how that went by their status. */
static void *fork_again_and_again(void *unused) {
    for (;;) {
        int status = 0;
        pid_t child = fork();
        if (child == 0) {
            volatile unsigned sum = 0;
            for (unsigned i = 0; i < 10000; i++) sum += i;
            _exit(sum == 49995000 ? 0 : 1);
        }
        if (child < 0 || waitpid(child, &status, 0) != child || status) went_wrong("child");
        count_round();
    }
    return unused;
}

static void *load_again_and_again(void *unused) {
    static const char *const names[] = {"libresolv.so.2", "libanl.so.1", "libBrokenLocale.so.1", "libm.so.6"};
    for (unsigned i = 0;; i++) {
        void *library = dlopen(names[i % 4], RTLD_NOW);
        if (!library) went_wrong("dlopen");
        if (i % 4 == 3 && !dlsym(library, "cos")) went_wrong("dlsym");
        if (library && dlclose(library)) went_wrong("dlclose");
        count_round();
    }
    return unused;
}

/* Handlers like this one are not allowed to, and yet people write them: it must not run inside a visit. */
static void on_alarm(int number) {
    char *text = malloc(64 + (size_t)number);
    text[0] = 1;
    free(text);
    count_round();
}

static void start_signals(void) {
    struct sigaction action = {.sa_handler = on_alarm};
    struct itimerval every = {.it_interval.tv_usec = 500, .it_value.tv_usec = 500};
    sigaction(SIGALRM, &action, NULL);
    setitimer(ITIMER_REAL, &every, NULL);
}

/* While it lists the libraries, none can be loaded: until that file is gone. */
static const char *held;

static int keep_lock(struct dl_phdr_info *info, size_t size, void *unused) {
    (void)info, (void)size, (void)unused;
    while (access(held, F_OK) == 0) usleep(1000);
    return 1;
}

static void *keep_loader(void *unused) {
    dl_iterate_phdr(keep_lock, NULL);
    return unused;
}

static void give_up_calls(void) {
    struct sock_filter allow[] = {BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)};
    struct sock_fprog filters = {.len = 1, .filter = allow};
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filters)) abort();
}

static void block_alarms(int how) {
    sigset_t alarms;
    sigemptyset(&alarms);
    sigaddset(&alarms, SIGALRM);
    pthread_sigmask(how, &alarms, NULL);
}

int main(int argc, char **argv) {
    const char *mode = argc > 2 ? argv[2] : "plain";
    if (!strcmp(mode, "exec")) { /* each program in its turn runs for a moment */
        unsigned us = argc > 3 ? (unsigned)atoi(argv[3]) : 0;
        start_cuda(strtoull(argv[1], NULL, 10));
        usleep(us % 20000);
        char next[16];
        snprintf(next, sizeof next, "%u", us * 7919 + 101);
        execl("/proc/self/exe", argv[0], argv[1], "exec", next, NULL);
        return 4;
    }
    start_cuda(strtoull(argv[1], NULL, 10)); /* its thread has the signal mask of this one */
    block_alarms(SIG_BLOCK);
    start(work, 1);
    if (!strcmp(mode, "threads")) start(work_and_rest, 100);
    start_resting();
    if (!strcmp(mode, "forks")) start(fork_again_and_again, 1);
    if (!strcmp(mode, "loads")) start(load_again_and_again, 1);
    if (!strcmp(mode, "loader") && argc > 3) {
        held = argv[3];
        start(keep_loader, 1);
    }
    block_alarms(SIG_UNBLOCK);
    if (!strcmp(mode, "signals")) start_signals();
    if (!strcmp(mode, "seccomp")) give_up_calls();
    return answer_lines();
}
