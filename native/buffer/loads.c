/* How many libraries this process has ever loaded, by the loader's own count.
 *
 * Asked in C, because the loader holds its lock while it answers: a Python function called there
 * waits for the interpreter's lock, and whoever has that may be waiting for the loader's.
 */
#define _GNU_SOURCE
#include <link.h>
#include <stddef.h>

#define API __attribute__((visibility("default")))

static int note_first(struct dl_phdr_info *library, size_t size, void *count) {
    (void)size;
    *(unsigned long long *)count = library->dlpi_adds;
    return 1; /* one library tells the count of all */
}

API unsigned long long vram_loads(void) {
    unsigned long long count = 0;
    dl_iterate_phdr(note_first, &count);
    return count;
}
