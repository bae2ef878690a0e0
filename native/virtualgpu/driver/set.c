/* Filling memory with 8, 16 or 32 bit patterns, in a line or in a rectangle. */
#include "driver.h"

#include <string.h>

struct fill {
    deviceptr begin;
    size_t pitch, width, height; /* width in elements */
    unsigned element, value;
};

static void fill_row(char *row, const struct fill *fill) {
    if (fill->element == 1) {
        memset(row, (int)fill->value, fill->width);
        return;
    }
    for (size_t i = 0; i < fill->width; i++) memcpy(row + i * fill->element, &fill->value, fill->element);
}

static void run_fill(void *argument) {
    const struct fill *fill = argument;
    for (size_t y = 0; y < fill->height; y++) fill_row((char *)fill->begin + y * fill->pitch, fill);
}

static result check(const struct fill *fill) {
    LOCKED();
    struct context *context;
    result failed = context_need(&context);
    if (failed || !fill->width || !fill->height) return failed;
    size_t row = fill->width * fill->element;
    if (fill->begin % fill->element || (fill->height > 1 && fill->pitch < row)) return INVALID_VALUE;
    uint64_t nbytes = (fill->height - 1) * fill->pitch + row;
    if (!range_covers(fill->begin, nbytes)) return INVALID_VALUE;
    managed_touch(fill->begin, nbytes, context->device);
    return OK;
}

static result fill_now(struct fill fill) {
    result failed = check(&fill);
    return failed ? failed : stream_run_now(run_fill, &fill, sizeof fill);
}

static result fill_on(struct fill fill, void *stream) {
    result failed = check(&fill);
    return failed ? failed : stream_submit_on(stream, run_fill, &fill, sizeof fill);
}

/* Six shapes times two: the same lines for each element type. */
#define FAMILY(bits, type) \
    API result cuMemsetD##bits##_v2(deviceptr begin, type value, size_t count) { \
        GATE(); \
        return fill_now((struct fill){begin, 0, count, 1, bits / 8, value}); \
    } \
    API result cuMemsetD##bits##Async(deviceptr begin, type value, size_t count, void *stream) { \
        GATE(); \
        return fill_on((struct fill){begin, 0, count, 1, bits / 8, value}, stream); \
    } \
    API result cuMemsetD2D##bits##_v2(deviceptr begin, size_t pitch, type value, size_t width, size_t height) { \
        GATE(); \
        return fill_now((struct fill){begin, pitch, width, height, bits / 8, value}); \
    } \
    API result cuMemsetD2D##bits##Async(deviceptr begin, size_t pitch, type value, size_t width, size_t height, \
                                        void *stream) { \
        GATE(); \
        return fill_on((struct fill){begin, pitch, width, height, bits / 8, value}, stream); \
    }

FAMILY(8, unsigned char)
FAMILY(16, unsigned short)
FAMILY(32, unsigned)
