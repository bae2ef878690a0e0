"""What PowerShell printed, read with suspicion: any encoding, any shape, any number.

The script is ours, but between it and us lie a console's code page, a profile that prints,
translated Windows, and versions of PowerShell that write a list of one as no list.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import msgspec

from vram.model.windows import AdapterFacts, WindowsMemoryFacts

_INSTANCE = re.compile(
    r"(?:pid_(?P<pid>\d{1,10})_)?luid_0x(?P<high>[0-9a-f]{1,8})_0x(?P<low>[0-9a-f]{1,8})_phys_\d{1,3}", re.I
)
_NUMBER = re.compile(r"(\d{1,19})(?:[.,]0*)?")
# "@System32\drivers\pci.sys,#65536;PCI bus %1, device %2, function %3;(1,0,0)": the end needs no translation.
_PLACE = re.compile(r"\((\d{1,3}),(\d{1,3}),(\d{1,3})\)$")
_MAX_BYTES = 1 << 50  # no adapter is near it; counters are known to run below zero
_MAX_NAME_LENGTH = 260
_NOT_REGISTERED, _DENIED = "80041010", "80041003"

Facts = AdapterFacts | WindowsMemoryFacts


class Damaged(ValueError):
    """The answer cannot be read; the message says what is wrong with it."""


class Counters(msgspec.Struct, frozen=True):
    """All that could be understood, how many rows could not, and what Windows refused."""

    facts: tuple[Facts, ...]
    damaged_rows: int = 0
    refusals: tuple[str, ...] = ()


def read(output: bytes) -> Counters:
    """Understand *output*, or raise Damaged."""
    answer = _object(_text(output))
    if answer.get("vram") != 1:
        raise Damaged("powershell.exe printed an unexpected answer")
    names = {_number(row.get("ProcessId")): _name(row.get("Name")) for row in _rows(answer.get("processes"))}
    memory = [_memory(row, names) for row in _rows(answer.get("memory"))]
    used = {}
    for row in _rows(answer.get("adapters")):
        found = _INSTANCE.fullmatch(str(row.get("Name")))
        if found and not found["pid"]:
            used[_luid(found)] = row
    adapters = [_adapter(row, used) for row in _rows(answer.get("cards"))]
    known = {each.luid for each in adapters if each}
    adapters += [_bare_adapter(luid, row) for luid, row in used.items() if luid not in known]
    return Counters(
        facts=tuple(each for each in (*adapters, *memory) if each is not None),
        damaged_rows=sum(each is None for each in memory),
        refusals=tuple(_refusals(answer.get("errors"))),
    )


def _text(output: bytes) -> str:
    if output.startswith((b"\xff\xfe", b"\xfe\xff")):
        return output.decode("utf-16", "replace")
    if output[:64].count(0) * 3 > len(output[:64]):
        return output.decode("utf-16-le" if output[:1] != b"\0" else "utf-16-be", "replace")
    return output.removeprefix(b"\xef\xbb\xbf").decode("utf-8", "replace")


def _object(text: str) -> dict[str, Any]:
    """The one object in *text*, whatever a profile or a warning printed around it."""
    begin, end = text.find("{"), text.rfind("}")
    if begin < 0:
        raise Damaged("powershell.exe printed nothing that could be read")
    try:
        found = msgspec.json.decode(text[begin : end + 1].encode("utf-8", "replace"))
    except (msgspec.DecodeError, RecursionError, ValueError):
        raise Damaged("powershell.exe printed a damaged or truncated answer") from None
    return found if isinstance(found, dict) else {}


def _rows(value: object) -> Iterator[dict[str, Any]]:
    """The rows of a list; PowerShell may write one row as no list, none as null, and wrap a list."""
    if isinstance(value, dict) and isinstance(value.get("value"), list):
        value = value["value"]
    for each in value if isinstance(value, list) else [value]:
        if isinstance(each, dict):
            yield each


def _memory(row: dict[str, Any], names: dict[int | None, str | None]) -> WindowsMemoryFacts | None:
    found = _INSTANCE.fullmatch(str(row.get("Name")))
    if found is None or not found["pid"]:
        return None
    pid = int(found["pid"])
    return WindowsMemoryFacts(
        pid=pid,
        luid=_luid(found),
        name=names.get(pid),
        local=_size(row.get("LocalUsage")),
        non_local=_size(row.get("NonLocalUsage")),
        dedicated=_size(row.get("DedicatedUsage")),
        shared=_size(row.get("SharedUsage")),
    )


def _adapter(row: dict[str, Any], used: dict[str, dict[str, Any]]) -> AdapterFacts | None:
    number = row.get("luid")
    if isinstance(number, str) and re.fullmatch(r"-?\d{1,20}", number):
        number = int(number)
    if not isinstance(number, int) or not number:
        return None  # 0 is what Windows writes for an adapter that is gone
    low, high = number & 0xFFFFFFFF, (number >> 32) & 0xFFFFFFFF
    luid = _spelled(high, low)
    counters = used.get(luid, {})
    return AdapterFacts(
        luid=luid,
        name=_name(row.get("name")),
        vendor=_number(row.get("vendor")),
        total=_size(row.get("total")),
        bus=_place(row.get("place")),
        local=_size(counters.get("DedicatedUsage")),
        shared=_size(counters.get("SharedUsage")),
    )


def _bare_adapter(luid: str, row: dict[str, Any]) -> AdapterFacts:
    """An adapter that has counters and that the registry does not name."""
    return AdapterFacts(
        luid=luid, local=_size(row.get("DedicatedUsage")), shared=_size(row.get("SharedUsage"))
    )


def _luid(found: re.Match[str]) -> str:
    return _spelled(int(found["high"], 16), int(found["low"], 16))


def _spelled(high: int, low: int) -> str:
    return f"0x{high:08x}_0x{low:08x}"


def _place(text: object) -> tuple[int, int, int] | None:
    found = _PLACE.search(text.strip()) if isinstance(text, str) else None
    return (int(found[1]), int(found[2]), int(found[3])) if found else None


def _size(value: object) -> int | None:
    nbytes = _number(value)
    return nbytes if nbytes is not None and nbytes < _MAX_BYTES else None


def _number(value: object) -> int | None:
    """A whole number that is not below zero, however it was written; None for anything else."""
    if isinstance(value, bool):
        return None
    if isinstance(value, float) and value.is_integer() and abs(value) < 1 << 62:
        value = int(value)
    if isinstance(value, str):
        found = _NUMBER.fullmatch(value.strip())
        value = int(found[1]) if found and found[1].isascii() else None
    return value if isinstance(value, int) and 0 <= value < 1 << 63 else None


def _name(value: object) -> str | None:
    return value[:_MAX_NAME_LENGTH] if isinstance(value, str) and value.strip() else None


def _refusals(errors: object) -> Iterator[str]:
    for row in _rows(errors):
        source, code = str(row.get("source")), str(row.get("id"))
        if _NOT_REGISTERED in code and source == "memory":
            yield (
                "Windows' WMI has no GPU memory counters; they exist since Windows 10 1709, and `winmgmt"
                " /resyncperf` as administrator registers them again"
            )
        elif _DENIED in code:
            yield f"Windows denies its {source} counters to this user"
        else:
            yield f"Windows could not report its {source}: {(_name(row.get('text')) or code)[:160]}"
