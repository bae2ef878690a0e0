/* What a buffer does with the driver when it is made and when it ends, each in one call from Python.
 *
 * The driver gives every allocation a number and never uses it again. So it can be told before a
 * free whether the memory at an address still is the one that was taken: after a reset of its
 * context, or a free behind the buffer's back, the same address may be somebody else's.
 */
#include <stddef.h>
#include <stdint.h>

#define API __attribute__((visibility("default")))

enum { BUFFER_ID = 7 }; /* CU_POINTER_ATTRIBUTE_BUFFER_ID */
enum { LOST = -1 };     /* no code of the driver's is below zero */

struct driver {
    int (*take)(uint64_t *pointer, size_t nbytes);
    int (*ask)(void *answer, int attribute, uint64_t pointer);
    int (*give)(uint64_t pointer);
};

struct piece {
    uint64_t pointer;
    uint64_t identity; /* 0 where the driver does not tell */
};

static struct driver driver;

API void vram_own_prepare(const struct driver *table) {
    driver = *table;
}

static uint64_t identity(uint64_t pointer) {
    uint64_t number = 0;
    return driver.ask(&number, BUFFER_ID, pointer) ? 0 : number;
}

API int vram_own_take(size_t nbytes, struct piece *piece) {
    int code = driver.take(&piece->pointer, nbytes);
    if (!code) piece->identity = identity(piece->pointer);
    return code;
}

API int vram_own_give(const struct piece *piece) {
    return identity(piece->pointer) == piece->identity ? driver.give(piece->pointer) : LOST;
}
