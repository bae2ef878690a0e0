"""JAX: arrays on the GPUs of this process. Its pool is larger than they are, and never shrinks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from math import prod
from typing import Any

from ..pointers import is_device_memory
from .array import Description, kinds, loaded

NAME = "JAX"
# Arrays may be kept in the host's memory and still be a GPU's: offloaded activations are.
ON_HOST = ("pinned_host", "unpinned_host")


def arrays() -> tuple[type, ...]:
    return kinds(loaded("jax._src.array"), "ArrayImpl")


def blocks() -> tuple[type, ...]:
    return ()


def describe_blocks(_found: Iterable[Any], _told: set[int]) -> Iterator[Description | None]:
    return iter(())


def describe(found: Iterable[Any], _behind: set[int]) -> Iterator[Description | None]:
    for each in found:
        try:
            yield None if each.is_deleted() else _of_array(each)
        except (RuntimeError, NotImplementedError, AttributeError):
            yield None  # donated meanwhile, or not addressable from here


def _of_array(array: Any) -> Description | None:
    local = [device for device in array.sharding.addressable_devices if device.platform in ("gpu", "cuda")]
    if not local or getattr(array.sharding, "memory_kind", None) in ON_HOST:
        return None
    # Shards lie in several places: such an array has no address of its own to share.
    pointer = array.unsafe_buffer_pointer() if len(local) == 1 else id(array)
    # An array that failed is there all the same, of full size, with an address that is no device's.
    if len(local) == 1 and not is_device_memory(pointer):
        return None
    shard = array.sharding.shard_shape(array.shape)
    return Description(
        nbytes=prod(shard) * array.dtype.itemsize * len(local),
        device=getattr(local[0], "local_hardware_id", None),
        pointer=pointer,
        dtype=str(array.dtype),
        shape=tuple(array.shape),
        note=f"on {len(local)} GPUs" if len(local) > 1 else "",
    )
