"""A library that caches on the GPU and says nothing of it."""

from __future__ import annotations

from numba import cuda

_cache: dict[str, object] = {}


def predict(word: str) -> int:
    if word not in _cache:
        _cache[word] = cuda.device_array(256 * 1024**2, "uint8")
    return len(word)


def forget() -> None:
    _cache.clear()
