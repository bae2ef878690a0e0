"""C++ names become what people say."""

from __future__ import annotations

import pytest

from vram.trace.cpp_names import shorten


@pytest.mark.parametrize(
    ("name", "short"),
    [
        ("main", "main"),
        ("", ""),
        ("leaky(int)", "leaky"),
        ("app::Pool::grow(unsigned long) const", "app::Pool::grow"),
        ("(anonymous namespace)::fill(float*)", "{anonymous}::fill"),
        ("std::vector<int, std::allocator<int> >::size()", "std::vector<…>::size"),
        ("void app::run<Item>(std::vector<Item, std::allocator<Item> >&)", "app::run<…>"),
        (
            "thrust::THRUST_200500_NS::it<A, B> thrust::THRUST_200500_NS::transform<X<Y>, Z>(X<Y>, Z)",
            "thrust::…::transform<…>",
        ),
        (
            "c10::cuda::CUDACachingAllocator::Native::NativeCachingAllocator::malloc(void**, int)",
            "c10::…::NativeCachingAllocator::malloc",
        ),
        (
            "app::layer(int)::{lambda(int, float)#1}::operator()(int, float) const",
            "app::layer::{lambda#1}::operator()",
        ),
        ("operator new(unsigned long)", "operator new"),
        ("Matrix::operator<(Matrix const&) const", "Matrix::operator<"),
        ("std::ostream& operator<< <int>(std::ostream&, int)", "operator<<<…>"),
        ("Big::operator unsigned long() const", "Big::operator unsigned long"),
        ("decltype(auto) call<F>(F&&)", "call<…>"),
        ("app::name[abi:cxx11](int)", "app::name"),
        ("layer(int) [clone .constprop.0]", "layer"),
        ("rusty::pool::grow::h0123456789abcdef", "rusty::pool::grow"),
        ("libcudart_static_5382377d5c", "libcudart_static_5382377d5c"),
        ("<<<", "<…>"),
        (")(", ")"),
    ],
)
def test_short_names(name: str, short: str) -> None:
    assert shorten(name) == short
