/* What a GPU that computes nothing must refuse, in the open. */
#include "driver.h"
#include "unsupported.h"

/* Arguments are left alone, so one empty parameter list serves every signature. */
#define REFUSE(name, version, symbol) \
    API result symbol(void); \
    API result symbol(void) { \
        GATE(); \
        return NOT_SUPPORTED; \
    }

UNSUPPORTED(REFUSE)

API result cuGetExportTable(const void **table, const struct uuid *id) {
    /* Private tables of the runtime library; there are none. */
    (void)id;
    if (table) *table = NULL;
    return NOT_FOUND;
}

API result cuModuleGetLoadingMode(int *mode) {
    GATE();
    if (!mode) return INVALID_VALUE;
    *mode = 2; /* lazy */
    return OK;
}

API result cuProfilerStart(void) {
    GATE();
    return OK;
}

API result cuProfilerStop(void) {
    GATE();
    return OK;
}

API result cuFlushGPUDirectRDMAWrites(int target, int scope) {
    GATE();
    (void)target;
    (void)scope;
    return OK;
}
