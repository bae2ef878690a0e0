/* What there is no answer for. Arguments are left alone, so one empty parameter list serves every signature. */
#include "unsupported.h"
#include "cupti.h"

#define REFUSE(name) \
    API cupti_result name(void); \
    API cupti_result name(void) { \
        return CUPTI_ERROR_NOT_SUPPORTED; \
    }

UNSUPPORTED_CUPTI(REFUSE)
#if CUPTI_MAJOR == 12
UNSUPPORTED_CUPTI_12(REFUSE)
#else
UNSUPPORTED_CUPTI_13(REFUSE)
#endif
