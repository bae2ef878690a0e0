/* CUPTI's functions that the recorder uses: its signatures, our names. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

typedef void (*cupti_callback)(void *data, int domain, uint32_t id, const void *call);

/* CUptiResult */
enum { CUPTI_OK = 0, CUPTI_MAX_LIMIT = 12, CUPTI_NOT_INITIALIZED = 15, CUPTI_SUBSCRIBERS = 39 };

struct cupti {
    int (*subscribe)(void **handle, cupti_callback callback, void *data);
    int (*unsubscribe)(void *handle);
    int (*enable_callback)(uint32_t enable, void *handle, int domain, uint32_t id);
    int (*enable_domain)(uint32_t enable, void *handle, int domain);
    int (*enable_all)(uint32_t enable, void *handle);
    int (*state)(uint32_t *enabled, void *handle, int domain, uint32_t id);
    int (*finalize)(void);
    int (*version)(uint32_t *version);
};
extern struct cupti cupti;
extern void *subscription; /* ours; NULL when there is none */

/* ---- subscribers.c ---- */

/* Libraries that import CUPTI's functions get ours in their place; again for those loaded since. */
void share_subscription(void);
/* A profiler in the program has the subscription from us. */
bool subscription_is_shared(void);
/* It has asked for this callback. */
bool subscriber_wants(int domain, uint32_t id);
/* What CUPTI calls. */
void dispatch(void *unused, int domain, uint32_t id, const void *data);
/* In a forked child: the lock may have been held. */
void subscribers_forked(void);
