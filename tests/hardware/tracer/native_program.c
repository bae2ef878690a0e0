/* A program without Python that uses leaky.c: what its library keeps, frees and forgets. */
#include <stddef.h>
#include <stdio.h>
#include <time.h>

int library_begin(void);
int library_step(size_t nbytes);
int library_cache(size_t nbytes);

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

int main(void) {
    double began = now();
    if (library_begin())
        return 1;
    double each = 4 * (now() - began) / 24;
    if (each < 0.4 / 24)
        each = 0.4 / 24;
    for (int number = 0; number < 24; number++) {
        struct timespec pause = {(time_t)each, (long)(1e9 * (each - (double)(time_t)each))};
        nanosleep(&pause, NULL);
        if (library_step(5 << 20) || (number % 2 == 0 && library_cache(3 << 20)))
            return 2;
    }
    puts("done");
    return 0;
}
