"""The figures of the pages of the five questions, and what was measured on an H200 for each.

A figure is a number with a unit of memory or time. Each that a page prints is here, with the newest evidence
that has it: a value that rounds to what is printed, or words that say what was set up. One without evidence
does not belong on a page.
"""

from __future__ import annotations

import json
import re
from functools import cache
from pathlib import Path
from typing import Any, Literal

from msgspec import Struct

from tests.docs.pages import DOCS
from vram.lab.topics import CLAIMS
from vram.units import GIB, KIB, MIB

EVIDENCE = DOCS / "evidence"
FIGURE = re.compile(r"(?<![\w.,])(\d+(?:,\d{3})*(?:\.\d+)?)[  ](byte|B|KiB|MiB|GiB|µs|ms|s)\b")
BLOCK = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)

UNITS = {
    "byte": 1.0,
    "B": 1.0,
    "KiB": KIB,
    "MiB": MIB,
    "GiB": GIB,
    "µs": 1e-6,
    "ms": 1e-3,
    "s": 1.0,
}
TIMES = {"µs", "ms", "s"}
ONLY = "*"
"""In a way to a value: the only one that is there, whatever its name (a pid)."""


class Source(Struct, frozen=True):
    """Where a figure was measured: an item of one kind of evidence, and the way to its value.

    ``rows`` are those of tests/blackbox by their name, ``lab`` the experiments and ``figures`` of the lab,
    anything else the lines of a file by the name of their test.
    """

    kind: str
    item: str
    path: tuple[str | int, ...]
    unit: Literal["B", "MiB", "s"] | None = None


def row(item: str, *path: str | int, unit: Literal["B", "MiB", "s"] = "MiB") -> Source:
    return Source("rows", item, ("measured", *path), unit)


def row_says(item: str) -> Source:
    """The figure is in the row's description: what was set up."""
    return Source("rows", item, ("situation",))


def lab(item: str, figure: str, unit: Literal["B", "s"] = "B") -> Source:
    return Source("lab", item, (figure,), unit)


def lab_says(item: str) -> Source:
    """The figure is in the page of the experiment: what was set up."""
    return Source("lab", item, ("page",))


def returned(test: str, *path: str | int, unit: Literal["B", "s"]) -> Source:
    """What a test of tests/hardware measured that freed memory."""
    return Source("giving-back", test, path, unit)


CONTEXT, GHOST = row("context_only", "context", "used"), row("fork_orphan", "parent killed", "used")

FIGURES: dict[str, Source] = {
    # what was set up
    "1 byte": row("granularity", "taken", 0, "nbytes", unit="B"),
    "3 KiB": lab_says("kernel-keeps"),
    "1 MiB": row("granularity", "taken", 2, "nbytes", unit="B"),
    "4 MiB": lab_says("managed-pieces"),
    "64 MiB": lab_says("reset-not-enough"),
    "1 GiB": row_says("threads"),
    "2 GiB": row("dmabuf", "allocator killed", "used"),
    "4 GiB": row_says("killed"),
    "143,771 MiB": row("nothing_running", "total"),
    # in use, and charged
    "0 MiB": row("killed", "killed", "used"),
    "2 MiB": row("granularity", "taken", 0, "used", unit="B"),
    "3 MiB": row("contexts", "init", "used"),
    "518 MiB": row("context_only", "context", "listed", ONLY),
    "527 MiB": CONTEXT,
    "615 MiB": row("nothing_running", "v1_used"),
    "1024 MiB": row("pool", "freed_pool", "reserved"),
    "1551 MiB": row("plain_free", "allocated", "used"),
    "2048 MiB": row("dmabuf", "allocator killed", "used"),
    "2106 MiB": row("small_contexts", "idle", "used"),
    "3078 MiB": row("measure_export", "kept", "used"),
    "4096 MiB": row("export_handle", "allocator killed", "used"),
    "4623 MiB": GHOST,
    # the lab
    "124 MiB": lab("managed-pieces", "freed"),
    "128 MiB": lab("managed-pieces", "taken"),
    "190 MiB": lab("torch-workspaces", "more in use"),
    "256 MiB": lab_says("managed-listed"),
    "524 MiB": lab("second-context", "taken again by the second context"),
    "528 MiB": lab("kernel-keeps", "in use after it finished"),
    "588 MiB": lab("reset-not-enough", "in a second context, itself included"),
    "597 MiB": lab("reset-green", "still used"),
    "655 MiB": lab("torch-empty-cache", "still used"),
    "783 MiB": lab("parked-leaves-nothing", "brought back"),
    # giving memory back
    "9220 MiB": returned("test_pytorch_by_agent", "driver_returned", unit="B"),
    # times
    "6 ms": row("measure_export", "measured_s", unit="s"),
    "0.1 s": row("killed", "gone_after_s", unit="s"),
    "0.3 s": returned("test_pytorch_by_agent", "command_s", unit="s"),
    "0.4 s": returned("test_a_ghost_is_freed_by_free_alone_within_a_second", "command_s", unit="s"),
    "1.0 s": returned("test_a_plain_process_comes_back_byte_for_byte[1]", "park", "wall_s", unit="s"),
    "1.00 s": row("waiting_free", "freed_s", unit="s"),
}


def figures_of(text: str) -> set[str]:
    """The figures that a page prints, outside of its blocks: those are run."""
    return {" ".join(each.groups()) for each in FIGURE.finditer(BLOCK.sub("", text))}


def agrees(figure: str, source: Source) -> bool:
    """Whether the evidence has *figure*: a value that rounds to it, or words with it."""
    value = _value(source)
    if isinstance(value, str):
        return figure in value
    number, unit = figure.replace(",", "").split()
    assert source.unit is not None, "a number of the evidence needs its unit"
    if (unit in TIMES) is not (source.unit == "s"):
        return False
    half = 0.5 * 10.0 ** -len(number.partition(".")[2])
    return abs(value * UNITS[source.unit] / UNITS[unit] - float(number)) <= half + 1e-9


def _value(source: Source) -> float | str:
    found: Any = _items(source.kind)[source.item]
    for key in source.path:
        (found,) = found.values() if key == ONLY else (found[key],)
    assert isinstance(found, int | float | str), f"{source} leads to no figure"
    return found


@cache
def _items(kind: str) -> dict[str, Any]:
    """The items of the newest evidence of that kind, by name."""
    if kind == "rows":
        return {each["row"]: each for each in json.loads(_newest("[0-9].json").read_text())["rows"]}
    if kind == "lab":
        results = json.loads(_newest("-lab.json").read_text())["results"]
        return {
            each["experiment"]: {figure["name"]: figure["value"] for figure in each["figures"]}
            | {"page": CLAIMS[each["experiment"]].describe().page}
            for each in results
        }
    lines = _newest(f"-{kind}.jsonl").read_text().splitlines()
    return {each["test"]: each for each in map(json.loads, lines)}


def _newest(ending: str) -> Path:
    """The pages speak of that GPU. A name begins with its date."""
    return max(EVIDENCE.glob(f"*-nvidia-h200-*{ending}"))
