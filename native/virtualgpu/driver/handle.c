/* Handles: addresses that programs hold, so that a stale or foreign one is told apart. */
#include "driver.h"

#include <stdlib.h>
#include <string.h>

static struct handle *live[HANDLE_KINDS], *spare[HANDLE_KINDS];

void *handle_take(enum handle_kind kind, size_t size, struct context *owner) {
    struct handle *handle = spare[kind];
    if (handle)
        spare[kind] = handle->next;
    else if (!(handle = malloc(size)))
        return NULL;
    memset(handle, 0, size);
    *handle = (struct handle){kind, owner, live[kind]};
    live[kind] = handle;
    return handle;
}

static void unlink_live(struct handle *handle) {
    struct handle **link = &live[handle->kind];
    while (*link && *link != handle) link = &(*link)->next;
    if (*link) *link = handle->next;
}

void handle_drop(void *object) {
    struct handle *handle = object;
    enum handle_kind kind = handle->kind;
    unlink_live(handle);
    handle->kind = HANDLE_FREE;
    handle->next = spare[kind];
    spare[kind] = handle;
}

void handle_retire(void *object) {
    struct handle *handle = object;
    unlink_live(handle);
    handle->kind = HANDLE_FREE;
}

bool handle_is(const void *object, enum handle_kind kind) {
    for (const struct handle *handle = live[kind]; handle; handle = handle->next)
        if (handle == object) return true;
    return false;
}

void *handle_first(enum handle_kind kind) {
    return live[kind];
}

void *handle_next(void *object) {
    return ((struct handle *)object)->next;
}
