"""NVML's answers as plain values: sentinels become None, and what no GPU can say is refused."""

from __future__ import annotations

from typing import Any

SENTINEL = 1 << 63  # the driver writes 2^64-1 for "not available"; no size comes near it
NO_INSTANCE = 0xFFFFFFFF

Memory = dict[str, Any] | None
# By pid, GPU instance and compute instance: bytes, and which lists name them.
Figures = dict[tuple[int, int | None, int | None], tuple[int | None, tuple[str, ...]]]


def merge(figures: Figures, name: str, listed: Any) -> None:
    for each in listed:
        key = (int(each.pid), instance(each, "gpuInstanceId"), instance(each, "computeInstanceId"))
        nbytes, lists = figures.get(key, (None, ()))
        said = count(each.usedGpuMemory)
        most = said if nbytes is None else nbytes if said is None else max(said, nbytes)
        figures[key] = (most, lists if name in lists else (*lists, name))


def instance(listed: Any, field: str) -> int | None:
    number = getattr(listed, field, None)
    return None if number in (None, NO_INSTANCE) else int(number)


def moved(before: Memory, after: Memory) -> int:
    return abs(after["used"] - before["used"]) if before and after else 0


def plausible(**sizes: int) -> dict[str, int]:
    """Refuse a reading that no GPU can give, rather than hand a sentinel on as bytes."""
    wrong = [name for name, nbytes in sizes.items() if not 0 <= nbytes <= sizes["total"] < SENTINEL]
    if wrong:
        raise ValueError(f"the driver gave memory figures that no GPU can have: {', '.join(wrong)}")
    return sizes


def count(value: Any) -> int | None:
    return int(value) if value is not None and 0 <= int(value) < SENTINEL else None


def flag(value: Any) -> bool | None:
    return None if value is None else bool(value)


def first(pair: Any) -> Any:
    return pair[0] if pair else None


def text(value: Any) -> str | None:
    # Bindings before 11.5 answer bytes.
    return value.decode("utf-8", "backslashreplace") if isinstance(value, bytes) else value
