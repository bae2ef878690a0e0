/* cuGetProcAddress: from a name and a CUDA version to the form of the function it meant. */
#include "api.h"
#include "functions.h"

#include <stdbool.h>
#include <string.h>

enum { FOUND = 0, SYMBOL_NOT_FOUND = 1, VERSION_NOT_SUFFICIENT = 2 };

/* The newest form that the caller's version knows. */
static const struct function *find(const char *name, int version, bool *name_known) {
    const struct function *best = NULL;
    for (size_t i = 0; i < function_count; i++) {
        const struct function *known = &function_table[i];
        bool exact = strcmp(known->symbol, name) == 0 && strcmp(known->name, name) != 0;
        if (exact) return known;
        if (strcmp(known->name, name) != 0) continue;
        *name_known = true;
        if (known->version <= version && (!best || known->version > best->version)) best = known;
    }
    return best;
}

API result cuGetProcAddress_v2(const char *name, void **function, int version, uint64_t flags, int *status) {
    bool name_known = false;
    (void)flags; /* work is done when its call returns, so both default streams act alike */
    if (!name || !function) return INVALID_VALUE;
    const struct function *known = find(name, version, &name_known);
    *function = known ? (void *)known->address : NULL;
    if (status) *status = known ? FOUND : name_known ? VERSION_NOT_SUFFICIENT : SYMBOL_NOT_FOUND;
    return known || status ? OK : NOT_FOUND;
}

API result cuGetProcAddress(const char *name, void **function, int version, uint64_t flags) {
    return cuGetProcAddress_v2(name, function, version, flags, NULL);
}
