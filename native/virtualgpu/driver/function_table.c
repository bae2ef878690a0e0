/* The table behind cuGetProcAddress, from the two lists of functions. */
#include "functions.h"
#include "unsupported.h"

/* Only addresses are wanted here: the real signatures are where the functions are. */
#define DECLARE(name, version, symbol) extern void symbol(void);
FUNCTIONS(DECLARE)
UNSUPPORTED(DECLARE)

#define ENTRY(name, version, symbol) {#name, #symbol, version, symbol},
const struct function function_table[] = {FUNCTIONS(ENTRY) UNSUPPORTED(ENTRY)};
const size_t function_count = sizeof function_table / sizeof *function_table;
