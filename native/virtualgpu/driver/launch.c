/* Launches of kernels by the runtime library: nothing is computed, each one is counted in the folder's file
 * `launches`, and faults of cuLaunchKernel apply. */
#include "driver.h"

#include <fcntl.h>
#include <limits.h>
#include <stdatomic.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

static _Atomic uint64_t *map_counter(void) {
    char path[PATH_MAX];
    snprintf(path, sizeof path, "%s/launches", store_folder());
    int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    if (fd < 0) return NULL;
    (void)!fchmod(fd, 0666);
    void *place = MAP_FAILED;
    if (ftruncate(fd, sizeof(uint64_t)) == 0)
        place = mmap(NULL, sizeof(uint64_t), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    return place == MAP_FAILED ? NULL : place;
}

static result count_launch(void *stream) {
    static _Atomic uint64_t *counter;
    struct stream *found;
    LOCKED();
    result failed = stream_resolve(stream, &found);
    if (failed) return failed;
    if (!counter) counter = map_counter();
    if (counter) atomic_fetch_add(counter, 1);
    return OK;
}

API result vramCountLaunch(void *stream);
API result vramCountLaunch(void *stream) {
    struct gate gate __attribute__((cleanup(gate_leave))) = gate_enter("cuLaunchKernel", -1, GATE_WAITS);
    /* A kernel breaks its context after the launch has returned: later calls tell. */
    if (gate.refused && gate.fault.kind != FAULT_STICKY) return gate.refused;
    return count_launch(stream);
}
