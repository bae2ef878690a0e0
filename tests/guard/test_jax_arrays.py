"""JAX's arrays, told from what each says of itself."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from vram.payloads.arrays.frameworks import JaxArrays
from vram.payloads.arrays.provider import Description


def an_array(**sharding: str) -> Any:
    gpu = SimpleNamespace(platform="gpu", local_hardware_id=1)
    return SimpleNamespace(
        is_deleted=lambda: False,
        sharding=SimpleNamespace(addressable_devices=[gpu], shard_shape=lambda whole: whole, **sharding),
        unsafe_buffer_pointer=lambda: 4096,
        shape=(2, 3),
        dtype=SimpleNamespace(itemsize=4),
    )


@pytest.mark.parametrize("sharding", [{"memory_kind": "device"}, {}])
def test_an_array_in_a_gpus_memory_counts(sharding: dict[str, str]) -> None:
    """Versions that know no kinds of memory have no other."""
    (told,) = JaxArrays().describe([an_array(**sharding)], set())
    assert isinstance(told, Description)
    assert (told.nbytes, told.device, told.pointer, told.shape) == (24, 1, 4096, (2, 3))


@pytest.mark.parametrize("kind", ["pinned_host", "unpinned_host"])
def test_an_array_that_was_moved_to_the_host_is_none_on_a_gpu(kind: str) -> None:
    """Its device is still the GPU, and the driver knows its address."""
    assert list(JaxArrays().describe([an_array(memory_kind=kind)], set())) == [None]
