// The program allocates nothing itself; the library that it calls keeps 64 MiB for each batch size, and 527 MiB are the
// context. Nothing is lost when the process ends. In one that goes on, the library's memory grows with every new size.
#include "../step.h"
#include "library.h"
#include <cuda_runtime.h>

int main() {
    step("started");
    library::score(1);
    step("used once");
    library::score(2);
    step("used twice");
}
