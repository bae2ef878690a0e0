#include "other_unit.hpp"

vram::DeviceArray<char> made_in_another_unit(std::size_t nbytes) {
    vram::mark("made");
    return vram::DeviceArray<char>(nbytes);
}

std::int64_t owned_in_another_unit() {
    return vram::detail::owned_bytes(0);
}
