// A kernel that takes a view of vram.hpp. On a real GPU its results are checked.
#include "other_unit.hpp"

#include <cstdlib>
#include <cstring>

__global__ void fill(vram::View<int> values, int with) {
    std::size_t index = blockIdx.x * blockDim.x + threadIdx.x;
    if (index < values.size) values[index] = with;
}

int main() {
    const int count = 1000;
    vram::DeviceArray<int> device(count);
    vram::PinnedArray<int> host(count);
    std::memset(host.data(), 0, host.size_bytes());
    fill<<<4, 256>>>(device.view(), 7);
    VRAM_CHECK(cudaGetLastError());
    VRAM_CHECK(cudaMemcpy(host.data(), device.data(), host.size_bytes(), cudaMemcpyDefault));
    vram::DeviceArray<char> other = made_in_another_unit(4096);
    if (std::getenv("VRAM_VIRTUAL_GPU")) return 0; // kernels do not run there
    for (int value : host.view())
        if (value != 7) return 1;
    return owned_in_another_unit() == 4096 + 4 * count ? 0 : 1;
}
