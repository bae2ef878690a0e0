/* What the driver tells a tool about its calls, and what the virtual libcupti may ask of it.
 *
 * Numbers and layouts are the public binary interface of libcupti (cupti_callbacks.h of CUDA 13.0); they did not
 * change from CUDA 12 on. Tests compare them with NVIDIA's headers.
 */
#ifndef VRAM_VIRTUALGPU_CALLBACKS_H
#define VRAM_VIRTUALGPU_CALLBACKS_H

#include "api.h"

#include <stdbool.h>

/* CUpti_CallbackDomain */
enum callback_domain {
    DOMAIN_DRIVER = 1,
    DOMAIN_RUNTIME = 2,
    DOMAIN_RESOURCE = 3,
    DOMAIN_SYNCHRONIZE = 4,
    DOMAIN_NVTX = 5,
    DOMAIN_STATE = 6,
    DOMAINS
};

/* CUpti_CallbackIdResource, as far as the virtual driver has such things. */
enum resource_id {
    CONTEXT_CREATED = 1,
    CONTEXT_DESTROY_STARTING = 2,
    STREAM_CREATED = 3,
    STREAM_DESTROY_STARTING = 4,
    INIT_FINISHED = 5, /* with no data */
};

/* CUpti_ApiCallbackSite */
enum callback_site { SITE_ENTER = 0, SITE_EXIT = 1 };

/* CUpti_CallbackData */
struct callback_data {
    int site;
    const char *function;
    void *parameters;   /* what is written to them at SITE_ENTER is what the call is made with */
    void *return_value; /* a result; what is written to it at SITE_EXIT is what the caller gets */
    const char *symbol; /* of a launched kernel */
    void *context;
    uint32_t context_uid;
    uint64_t *correlation_data; /* what is written at SITE_ENTER is read at SITE_EXIT */
    uint32_t correlation_id;
};

/* CUpti_ResourceData */
struct resource_data {
    void *context;
    void *stream;
    void *descriptor;
};

/* CUpti_CallbackFunc */
typedef void (*callback_function)(void *userdata, int domain, uint32_t id, const void *data);

struct subscriber;

/* For libcupti, from vramCallbacks. All of them may be called from any thread, also inside a callback. The functions
 * with a subscriber want one that was returned here; it may have unsubscribed. */
struct callback_calls {
    /* NULL: there is one already, or memory ran out. */
    struct subscriber *(*subscribe)(callback_function callback, void *userdata, const char *name);
    void (*unsubscribe)(struct subscriber *subscriber);
    struct subscriber *(*subscriber)(void); /* the present one, or NULL */
    const char *(*name)(const struct subscriber *subscriber);
    /* Turns the callbacks from *first* to *last* on or off. */
    void (*enable)(struct subscriber *subscriber, int domain, uint32_t first, uint32_t last, bool on);
    bool (*is_enabled)(const struct subscriber *subscriber, int domain, uint32_t id);
    /* These are not reported. */
    result (*context_device)(int *device, void *context);
    result (*context_id)(void *context, unsigned long long *id);
    result (*stream_id)(void *stream, unsigned long long *id);
};

enum { CALLBACK_IDS = 1024 };  /* more than any domain of CUPTI has */
enum { SUBSCRIBER_NAME = 64 }; /* with the zero at its end */

API const struct callback_calls *vramCallbacks(void);

#endif
