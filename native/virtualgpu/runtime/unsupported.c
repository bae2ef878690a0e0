/* What there is no answer for. Arguments are left alone, so one empty parameter list serves every signature. */
#include "unsupported.h"
#include "runtime.h"

#define REFUSE(name) \
    API error name(void); \
    API error name(void) { \
        NEED_DRIVER(); \
        return fail(NOT_SUPPORTED); \
    }

UNSUPPORTED(REFUSE)
#if RUNTIME_MAJOR == 12
UNSUPPORTED_12(REFUSE)
#else
UNSUPPORTED_13(REFUSE)
#endif
