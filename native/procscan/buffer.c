/* Bytes that become more. */
#include "walk.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

void *grow(struct buffer *buffer, size_t nbytes)
{
    if (buffer->room - buffer->used < nbytes) {
        size_t room = (buffer->room + nbytes) * 2 + 4096;
        uint8_t *bytes = realloc(buffer->bytes, room);
        if (!bytes)
            return NULL;
        buffer->bytes = bytes;
        buffer->room = room;
    }
    void *place = buffer->bytes + buffer->used;
    buffer->used += nbytes;
    return place;
}

int append(struct buffer *to, const struct buffer *from)
{
    if (from->used == 0)
        return 0;
    void *place = grow(to, from->used);
    if (!place)
        return -ENOMEM;
    memcpy(place, from->bytes, from->used);
    return 0;
}
