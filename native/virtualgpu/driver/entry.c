/* The exported functions: each reports its call to a CUPTI subscriber, where there is one, and makes it.
 *
 * The symbol cuMemAlloc_v2 is the function made here from its line in functions.h. The C function cuMemAlloc_v2 of
 * plain.c has another symbol (driver.h), so that calls inside the driver are not reported: programs, dlsym,
 * cuGetProcAddress and the virtual runtime all get what is here.
 */
#include "driver.h"
#include "functions.h"
#include "signature.h"

static result not_supported(const char *function) {
    struct gate gate __attribute__((cleanup(gate_leave))) = gate_enter(function, -1, GATE_WAITS);
    return gate.refused ? gate.refused : NOT_SUPPORTED;
}

/* The structure is what CUPTI passes as functionParams: the parameters, in order and aligned as always. The call is
 * made with what is in it, so that a subscriber can change the parameters, as on an H200 (580.159.04). */
#define REPORTED(symbol, id, unreported, reported, ...) \
    API result entry_##symbol(PARAMETERS(__VA_ARGS__)) __asm__(#symbol); \
    API result entry_##symbol(PARAMETERS(__VA_ARGS__)) { \
        if (!callback_anybody()) return unreported; \
        struct { \
            FIELDS(__VA_ARGS__) \
        } given = {ARGUMENTS(, ##__VA_ARGS__)}; \
        struct call call; \
        call_begin(&call, id, #symbol, &given); \
        return call_end(&call, reported); \
    }

#define IMPLEMENTED(name, version, symbol, id, ...) \
    REPORTED(symbol, id, symbol(ARGUMENTS(, ##__VA_ARGS__)), symbol(ARGUMENTS(given., ##__VA_ARGS__)), ##__VA_ARGS__)
FUNCTIONS(IMPLEMENTED)

#define REFUSED(name, version, symbol, id, ...) \
    REPORTED(symbol, id, not_supported(#symbol), not_supported(#symbol), ##__VA_ARGS__)
UNSUPPORTED(REFUSED)

/* The call is the other form's, with a default stream of the thread's own. */
static result own_stream_ends(result code) {
    default_stream_is_own = false;
    return code;
}

#define WITH_OWN_STREAM(code) (default_stream_is_own = true, own_stream_ends(code))
#define PER_THREAD(name, version, symbol, id, base, ...) \
    REPORTED(symbol, id, WITH_OWN_STREAM(base(ARGUMENTS(, ##__VA_ARGS__))), \
             WITH_OWN_STREAM(base(ARGUMENTS(given., ##__VA_ARGS__))), ##__VA_ARGS__)
PER_THREAD_FUNCTIONS(PER_THREAD)
