"""The report on one out-of-memory error: a sentence with cause and remedy, and a file with all figures:
the ledger of the GPU, this process's own split, and who holds the largest arrays."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from io import BytesIO
from itertools import count
from traceback import walk_stack
from typing import TYPE_CHECKING, Any, NamedTuple

from msgspec.structs import asdict

from vram import __version__
from vram.errors import OutOfMemory
from vram.files import write_new
from vram.guard.memory import Footprint, driver_is_loaded, framework_lines, read_footprint
from vram.model.leak import EqualArrays
from vram.model.ledger import KINDS
from vram.units import size

if TYPE_CHECKING:
    from vram.guard.leak_check import LargestArrays

# ---- one sentence ----

BEGINNING = "the GPU is out of memory"


class OomFigures(NamedTuple):
    """What was measured when it happened. ``ledger`` is the JSON of `vram why`, or None."""

    pid: int
    requested: int | None
    footprint: Footprint
    frameworks: tuple[dict[str, Any], ...]
    ledger: dict[str, Any] | None
    largest: tuple[EqualArrays, ...]


def sentence(now: OomFigures) -> str:
    """What was free where that is known, then cause and remedy, the likeliest first."""
    request = f"requested {size(now.requested)}" if now.requested else "requested more than was left"
    room = _room(now)
    free = f"{size(room.free)} of {size(room.total)} is free; " if room else ""
    return f"{BEGINNING} ({request}): {free}{_cause(now, room)}"


class _Room(NamedTuple):
    """Of the GPUs that this process uses, the one with the most free memory."""

    free: int
    total: int


def _room(now: OomFigures) -> _Room | None:
    rooms = []
    for gpu in _own_gpus(now):
        free = [entry["nbytes"] for entry in gpu["entries"] if entry["kind"] == "free"]
        if gpu.get("total_bytes") and free and None not in free:
            rooms.append(_Room(sum(free), gpu["total_bytes"]))
    return max(rooms, default=None)


def _cause(now: OomFigures, room: _Room | None) -> str:
    held, wanted = now.footprint, now.requested or 1
    if room is not None and wanted > room.total:
        return "no request of that size can succeed on this GPU; request less (vram.retry_on_oom)"
    others = _others(now)
    theirs = sum(nbytes for nbytes, _ in others)
    if theirs > held.total and theirs >= wanted:
        nbytes, who = max(others)
        return (
            f"other processes hold {size(theirs)} of it, {who} alone {size(nbytes)}; `vram why` shows who"
            " they are and how to free it"
        )
    if held.cached >= wanted or held.cached > held.total // 3:
        return (
            f"{size(held.cached)} is unused in this process's own caches; vram.flush() frees it, and"
            " vram.retry_on_oom does so before it tries again"
        )
    if held.fragmented >= wanted:
        return (
            f"{size(held.fragmented)} is unused but in pieces between live arrays; PyTorch avoids that"
            " with PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"
        )
    return _own_cause(now, room)


def _own_cause(now: OomFigures, room: _Room | None) -> str:
    held = now.footprint
    used = sum(held.in_use.values()) + max(0, held.outside)
    if room is not None and now.requested and used + room.free < now.requested:
        return (
            f"this process itself uses only {size(used)}: freeing all of it would not make room for that;"
            " request less (vram.retry_on_oom)"
        )
    if now.largest:
        from vram.guard.live import multiplied

        most = now.largest[0]
        holder = f", held by {most.holder}" if most.holder else ""
        one = most.count == 1
        return (
            f"this process itself uses {size(used)}; the largest {'array is' if one else 'arrays are'}"
            f" {most.what}, {multiplied(most)}{holder}; release {'it' if one else 'them'}, or request less"
            " (vram.retry_on_oom)"
        )
    if held.outside > sum(held.in_use.values()):
        return (
            f"this process has {size(held.outside)} outside every framework, including its context; look"
            " for raw allocations that are never freed (vram.scope says in which block), or request less"
        )
    amount = size(used) if used else "all of it"
    return f"this process itself uses {amount}; request less (vram.retry_on_oom does so automatically)"


def _others(now: OomFigures) -> list[tuple[int, str]]:
    """The bytes of other holders, on the GPUs that this process uses."""
    found = []
    for gpu in _own_gpus(now):
        for entry in gpu["entries"]:
            pid = (entry.get("holder") or {}).get("pid")
            if KINDS[entry["kind"]].held and entry["nbytes"] and pid != now.pid:
                found.append((entry["nbytes"], f"pid {pid}" if pid else f"memory that is {entry['kind']}"))
    return found


def _own_gpus(now: OomFigures) -> list[dict[str, Any]]:
    """The GPUs where the ledger has this process; the only one, where there is one."""
    gpus: list[dict[str, Any]] = list((now.ledger or {}).get("gpus", ()))
    if len(gpus) == 1:
        return gpus
    return [
        gpu
        for gpu in gpus
        if any((entry.get("holder") or {}).get("pid") == now.pid for entry in gpu["entries"])
    ]


# ---- the file ----

# 2: "holder" of a large array, in 1 "keeper"  (old name)
SCHEMA = 2
SURVEY_S = 5.0
MAX_ARRAYS = 12
_numbers = count(1)

# By path, because a new interpreter may not find vram where this program did. Not from the working directory.
_SURVEY = (
    "import sys; sys.path[:] = [sys.argv[1], *filter(None, sys.path)]; from vram.cli.app import main; "
    "sys.exit(main(['why', '--json', '--deadline', sys.argv[2]]))"
)


def gather(error: BaseException) -> tuple[OomFigures, dict[str, Any]]:
    """The figures for *error*, measured now, and the report; its "notes" say what could not be measured."""
    notes: list[str] = []
    taken = read_footprint(thorough=True)
    lines = framework_lines(thorough=True) if driver_is_loaded() else []
    ledger = _ledger(notes)
    largest = _largest(notes)
    asked = requested(error)
    figures = OomFigures(os.getpid(), asked, taken, tuple(lines), ledger, tuple(largest.groups))
    report = {
        "schema": SCHEMA,
        "program": f"vram {__version__}",
        "taken_at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "pid": os.getpid(),
        "sentence": sentence(figures),
        "text": [],
        "error": {"type": f"{type(error).__module__}.{type(error).__qualname__}", "message": str(error)},
        "requested_bytes": asked,
        "process": {
            "charged": {str(device): nbytes for device, nbytes in taken.charged.items()},
            "in_use": taken.in_use,
            "cached": taken.cached,
            "fragmented": taken.fragmented,
            "outside": taken.outside,
        },
        "frameworks": lines,
        "largest": [
            {"what": each.what, "nbytes": each.nbytes, "holder": each.holder} for each in largest.arrays
        ],
        "equal_arrays": list(map(asdict, largest.groups)),
        "stack": list(_stack()),
        "ledger": ledger,
        "notes": notes,
    }
    report["text"] = list(_text_lines(report, largest.groups))
    return figures, report


def write(report: dict[str, Any], folder: str) -> str:
    """Write *report* into a new file of *folder*, readable by this user alone; return its path."""
    stamp = report["taken_at"].replace(":", "").replace("-", "")
    contents = f"{json.dumps(report, indent=1)}\n".encode("utf-8", "backslashreplace")
    while True:
        path = os.path.abspath(os.path.join(folder, f"vram-oom-{stamp}-{os.getpid()}-{next(_numbers)}.json"))
        with suppress(FileExistsError):
            write_new(path, contents)
            return path


def requested(error: BaseException) -> int | None:
    """How many bytes were requested, if the error or its message says so."""
    from vram.oom.reader import find_messages

    if isinstance(error, OutOfMemory) and error.nbytes is not None:
        return error.nbytes
    for message in find_messages(BytesIO(str(error).encode("utf-8", "replace"))):
        if message.reading.asked is not None:
            return message.reading.asked.nbytes
    return None


def _ledger(notes: list[str]) -> dict[str, Any] | None:
    """The ledger of the whole machine, by a process of its own: this one is out of memory."""
    root = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    environment = {name: value for name, value in os.environ.items() if name != "VRAM_AGENT"}
    if not sys.executable:
        notes.append("the machine's ledger is missing: this program has no Python interpreter of its own")
        return None
    try:
        done = subprocess.run(
            [sys.executable, "-c", _SURVEY, root, f"{SURVEY_S}s"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=3 * SURVEY_S,
            env=environment,
        )
        ledger: dict[str, Any] = json.loads(done.stdout)
    except (OSError, ValueError, subprocess.SubprocessError) as trouble:
        notes.append(f"the machine's ledger is missing: {type(trouble).__name__}")
        return None
    return ledger


def _largest(notes: list[str]) -> LargestArrays:
    from vram.guard.leak_check import LargestArrays, largest_arrays

    try:
        return largest_arrays(MAX_ARRAYS)
    except Exception as trouble:
        notes.append(f"live arrays could not be listed: {type(trouble).__name__}: {trouble}")
        return LargestArrays([], [])


def _stack() -> Iterator[str]:
    """The frames of the program, innermost first, without those of vram.guard."""
    here = os.path.dirname(os.path.abspath(__file__))
    for frame, line in walk_stack(sys._getframe()):
        code = frame.f_code
        if os.path.dirname(code.co_filename) != here:
            yield f"{code.co_filename}:{line} {getattr(code, 'co_qualname', code.co_name)}"


def _text_lines(report: dict[str, Any], groups: Sequence[EqualArrays]) -> Iterator[str]:
    """The report as lines of text, for people who open the file."""
    from vram.guard.live import multiplied

    process, error = report["process"], report["error"]
    yield f"{error['type']}: {error['message'].splitlines()[0] if error['message'] else ''}"
    yield report["sentence"]
    yield f"this process: {size(sum(process['charged'].values()))} in all"
    parts = [(nbytes, f"in use by {name}") for name, nbytes in process["in_use"].items()]
    parts += [(process[state], state) for state in ("cached", "fragmented")]
    parts.append((process["outside"], "contexts, code, and arrays not counted by their framework"))
    yield from (_row(nbytes, text) for nbytes, text in parts if nbytes)
    if groups:
        yield "the largest arrays, and what holds them"
    for group in groups:
        words = f"{group.what}: {group.holder}"
        yield _row(group.nbytes, words if group.count == 1 else f"{multiplied(group)}, {words}")
    for gpu in (report["ledger"] or {}).get("gpus", ()):
        yield f"GPU {gpu['index']} {gpu['name']}"
        for entry in gpu["entries"]:
            holder = entry.get("holder") or {}
            who = f"pid {holder['pid']} {holder.get('command') or ''}" if holder else ""
            yield _row(entry["nbytes"], f"{entry['kind']} {who}")


def _row(nbytes: int, text: str) -> str:
    return f"  {size(nbytes):>10}  {text}".rstrip()
