/* Slots of a client's header: allocations that more than one file may keep alive. */
#include "holding.h"

#include <errno.h>

static struct store_shared *find(const struct store_client *client, uint64_t object, bool imported) {
    for (uint32_t i = 0; i < client->shared_slots; i++)
        if (client->shared[i].object == object && !client->shared[i].imported == !imported)
            return (struct store_shared *)&client->shared[i];
    return NULL;
}

int store_shared_add(struct store_client *client, struct store_shared slot) {
    uint32_t at = 0;
    while (at < client->shared_slots && client->shared[at].object) at++;
    if (at == STORE_MAX_SHARED) return -ENOSPC;
    client->shared[at] = slot;
    if (at == client->shared_slots) client->shared_slots = at + 1;
    return 0;
}

void store_shared_remove(struct store_client *client, uint64_t object, bool imported) {
    struct store_shared *slot = find(client, object, imported);
    if (!slot) return;
    *slot = (struct store_shared){0};
    while (client->shared_slots > 0 && !client->shared[client->shared_slots - 1].object) client->shared_slots--;
}

bool store_shared_has(const struct store_client *client, uint64_t object) {
    return find(client, object, false) != NULL;
}
