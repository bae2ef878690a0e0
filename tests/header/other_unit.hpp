// What other_unit.cpp, a second translation unit that includes vram.hpp, has for checks.cpp.
#pragma once

#include "vram.hpp"

vram::DeviceArray<char> made_in_another_unit(std::size_t nbytes);
std::int64_t owned_in_another_unit();
