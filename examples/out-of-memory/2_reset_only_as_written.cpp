// cudaFree(nullptr) frees nothing and makes a context of 527 MiB; the reset destroys that one again, 3 MiB stay until
// the process ends. No earlier process is reached by either call: what another process holds, only that one can free.
#include "../step.h"
#include <cuda_runtime.h>

int main() {
    step("started");
    cudaError_t code;
    cudaFree(nullptr);
    step("cudaFree(nullptr)");
    cudaDeviceReset();
    step("reset");
    return 0;
}
