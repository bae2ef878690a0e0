/* A crowd: N sleeping processes, each with D open descriptors of its own.
 *
 *   crowd N D
 *
 * Prints "ready" once all of them stand, and ends them when its standard input closes. They
 * die with it whatever ends it, and it dies with whoever started it.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

static void die_with(pid_t parent) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) /* the parent ended before the call above */
        _exit(1);
}

/* Opens one or two more descriptors, of the kinds that real processes hold. */
static int open_some(int open_now) {
    int pair[2];
    switch (open_now % 5) {
    case 0:
        return pipe(pair);
    case 2:
        return socketpair(AF_UNIX, SOCK_STREAM, 0, pair);
    default:
        return open(open_now % 2 ? "/proc/self/exe" : "/dev/null", O_RDONLY);
    }
}

static void stand(pid_t parent, int descriptors, int ready) {
    die_with(parent);
    int report = fcntl(ready, F_DUPFD, descriptors + 4);
    close_range(0, (unsigned)report - 1, 0);
    close_range((unsigned)report + 1, ~0u, 0);
    for (int open_now = 0; open_now < descriptors;) {
        if (open_some(open_now) < 0)
            _exit(1);
        open_now = dup(0); /* the lowest free number is how many there are */
        close(open_now);
    }
    close_range((unsigned)descriptors, (unsigned)report - 1, 0);
    if (write(report, "", 1) != 1)
        _exit(1);
    close(report);
    for (;;)
        pause();
}

static void end_all(const pid_t *crowd, int count) {
    for (int i = 0; i < count; i++)
        kill(crowd[i], SIGKILL);
    for (int i = 0; i < count; i++)
        waitpid(crowd[i], NULL, 0);
}

int main(int argc, char **argv) {
    int wanted = argc == 3 ? atoi(argv[1]) : 0, descriptors = argc == 3 ? atoi(argv[2]) : 0;
    pid_t *crowd = calloc((size_t)(wanted > 0 ? wanted : 1), sizeof *crowd);
    int ready[2];
    if (wanted < 1 || descriptors < 1 || !crowd || pipe(ready)) {
        fprintf(stderr, "usage: crowd PROCESSES DESCRIPTORS\n");
        return 2;
    }
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    pid_t self = getpid();
    int count = 0;
    for (; count < wanted; count++) {
        crowd[count] = fork();
        if (crowd[count] == 0)
            stand(self, descriptors, ready[1]);
        if (crowd[count] < 0)
            break;
    }
    const char *problem = count < wanted ? strerror(errno) : NULL;
    close(ready[1]);
    char bytes[4096];
    ssize_t got;
    int standing = 0;
    while (!problem && standing < count && (got = read(ready[0], bytes, sizeof bytes)) > 0)
        standing += (int)got;
    if (!problem && standing < count)
        problem = "a member could not open its descriptors";
    if (problem)
        fprintf(stderr, "%d of %d processes made: %s\n", count, wanted, problem);
    else if (puts("ready") != EOF && fflush(stdout) == 0)
        while (read(STDIN_FILENO, bytes, sizeof bytes) > 0)
            ;
    end_all(crowd, count);
    return problem ? 1 : 0;
}
