"""The place of a native stack is where a person allocated: libraries on the way are passed over."""

from __future__ import annotations

import pytest

from vram.model.trace import CallStack, Frame
from vram.trace.places import PROGRAM, caller, library, package, place, position

PROGRAM_FILE = "/home/user/app/pool"
RUNTIME = Frame("native", "cudaMalloc", "/usr/local/cuda/lib64/libcudart.so.13", 0x3D91D)
DRIVER = Frame("native", "cuMemAlloc_v2", "/usr/lib/libcuda.so.1", 0x10)
LIBC = Frame("native", "__libc_start_main", "/usr/lib/libc.so.6", 0x2A)


def source(function: str, file: str, line: int) -> Frame:
    """A line of the program, in the program's own file."""
    return Frame("native", function, file, line, PROGRAM_FILE)


def inside(function: str, offset: int = 0x3D91D) -> Frame:
    """A function that is linked into the program, without debug information."""
    return Frame("native", function, PROGRAM_FILE, offset)


LEAKY = source("leaky", "/home/user/app/pool.cu", 8)
MAIN = source("main", "/home/user/app/pool.cu", 20)


@pytest.mark.parametrize(
    "passed",
    [
        (RUNTIME,),
        (DRIVER, RUNTIME),
        (inside("libcudart_static_5382377d5c772c9d197c0cda9fd9742ee6ad893c"), inside("cudaMalloc")),
        (
            inside("cudaMallocAsync"),
            source("cudaMallocAsync<…>", "/usr/local/cuda/include/cuda_runtime.h", 700),
        ),
        (RUNTIME, source("cudaMalloc<…>", "/opt/cuda-13.0/targets/x86_64-linux/include/cuda_runtime.h", 90)),
        (RUNTIME, source("thrust::…::allocate", "/home/user/app/third/thrust/thrust/mr/new.h", 7)),
        (RUNTIME, source("cub::…::Allocate", "/usr/local/cuda/include/cub/util_allocator.cuh", 9)),
        (RUNTIME, source("vram::detail::Device::allocate", "/env/vram/include/vram.hpp", 189)),
        (RUNTIME, source("vram::Array<…>::Array", "/env/vram/include/vram.hpp", 300)),
        (RUNTIME, source("push_back", "/usr/include/c++/12/bits/stl_vector.h", 1280)),
        (RUNTIME, source("std::vector<…>::push_back", "/usr/include/c++/12/bits/stl_vector.h", 1280)),
        (RUNTIME, Frame("native", "rmm::mr::cuda_memory_resource::allocate", "/env/lib/librmm.so", 5)),
        (RUNTIME, Frame("native", "c10::…::malloc", "/env/lib/libc10_cuda.so", 5)),
        (RUNTIME, Frame("native", "at::empty", "/env/lib/libtorch_cpu.so", 5)),
        (RUNTIME, Frame("native", "std::__invoke<…>", "/usr/lib/libstdc++.so.6", 5)),
    ],
)
def test_libraries_on_the_way_are_passed_over(passed: tuple[Frame, ...]) -> None:
    stack = CallStack((*passed, LEAKY, MAIN, LIBC))
    assert place(stack) == LEAKY
    assert caller(stack) is None  # main is no caller that says more


def test_a_library_without_lines_is_passed_over_for_the_line_that_called_it() -> None:
    blas = Frame("native", "cublasCreate_v2", "/env/lib/libcublas.so.13", 0x40)
    stack = CallStack((RUNTIME, blas, LEAKY, MAIN))
    assert place(stack) == LEAKY
    assert library(stack) == "libcublas.so.13"
    assert place(CallStack((RUNTIME, blas, inside("main"), LIBC))) == blas


def test_a_function_of_the_programs_own_that_is_called_like_cudas() -> None:
    own = source("cudaChecked", "/home/user/app/check.h", 3)
    assert place(CallStack((RUNTIME, own, LEAKY))) == own
    # Its caller is in another file.
    assert caller(CallStack((RUNTIME, own, LEAKY))) == LEAKY


def test_without_debug_information_the_function_has_to_do() -> None:
    static = inside("libcudart_static_5382377d5c")
    stack = CallStack((static, inside("cudaMalloc"), inside("leaky", 0x1234), inside("main"), LIBC))
    assert place(stack) == inside("leaky", 0x1234)
    assert position(inside("leaky", 0x1234)) == "pool+0x1234"
    assert position(LEAKY) == "/home/user/app/pool.cu:8"


def test_where_nothing_is_left_the_innermost_outside_of_cuda_is_shown() -> None:
    torch = Frame("native", "c10::…::malloc", "/env/lib/libc10_cuda.so", 5)
    assert place(CallStack((RUNTIME, torch, LIBC))) == torch
    assert place(CallStack((RUNTIME, LIBC))) == RUNTIME


def test_python_comes_first() -> None:
    line = Frame("python", "step", "/home/user/train.py", 3)
    assert place(CallStack((RUNTIME, LEAKY, line))) == line


def test_the_page_colours_what_is_linked_in_as_what_it_is() -> None:
    programs = {PROGRAM_FILE: PROGRAM}
    assert package(LEAKY, programs) == PROGRAM
    assert package(inside("libcudart_static_5382377d5c"), programs) == "libcudart"
    assert package(source("thrust::…::allocate", "/x/thrust/mr/new.h", 7), programs) == "thrust"
