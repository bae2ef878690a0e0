"""A survey as a file: written whole or not at all, and refused when it is not what it says."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain
from typing import Any, TypeVar

import msgspec
from msgspec.structs import replace

from vram import untrusted
from vram.errors import BadSnapshot, NewerSnapshot
from vram.files import write_file
from vram.model.files import CapacityFacts, ClientFacts, SystemMemoryFacts
from vram.model.gpu import MemoryFacts, MigFacts
from vram.model.observation import (
    NO_INTEROP,
    NO_NVML_BINDING,
    NO_POWERSHELL,
    NVML_BINDING_TOO_NEW,
    SURVEY_SCHEMA,
    WINDOWS_LEFT_OUT,
    Facts,
    Observation,
    ProbeRun,
    Survey,
)
from vram.model.windows import AdapterFacts, WindowsMemoryFacts
from vram.probes.redact import redact

__all__ = ["dumps", "loads", "read", "redact", "write"]

_MAX_NBYTES = 256 << 20
# A machine with 10,000 processes that share 16 GPUs has about half of that.
_MAX_ITEMS = 16_000_000
_MAX_BYTES = 1 << 62  # beyond it lies no GPU, only the driver's "not available"
STDIN = "-"
_TAKE_AGAIN = "take it again with `vram snapshot -o FILE`"

Shape = TypeVar("Shape")
Said = TypeVar("Said", Observation, ProbeRun)


class _Label(msgspec.Struct):
    """The part of a snapshot that every version of this program can read."""

    schema: int
    program: str


def dumps(survey: Survey) -> bytes:
    return msgspec.json.format(msgspec.json.encode(survey), indent=1) + b"\n"


def loads(data: bytes, origin: str = "the snapshot") -> Survey:
    """Read a survey back, or say why that cannot be."""
    try:
        survey = _decode(data, Survey, f"{origin} is not a complete snapshot")
    except BadSnapshot:
        # Reading the label first would read everything twice, where nearly all snapshots are whole.
        _require_our_schema(_decode(data, _Label, f"{origin} is not a vram snapshot"), origin)
        raise
    _require_our_schema(_Label(schema=survey.schema, program=survey.program), origin)
    _check(survey, origin)
    return _with_codes(survey)


def _require_our_schema(label: _Label, origin: str) -> None:
    if label.schema > SURVEY_SCHEMA:
        raise NewerSnapshot(
            f"{origin} was written by a newer version of vram (schema {label.schema})",
            hint=f"this version reads schema {SURVEY_SCHEMA}: upgrade vram",
        )
    if label.schema != SURVEY_SCHEMA:
        raise BadSnapshot(f"{origin} has schema {label.schema}, which does not exist", hint=_TAKE_AGAIN)


# What earlier versions, whose statements had no codes, wrote where these codes matter.
_NVML_ERROR = "(NVML error "
_OLD_WORDS = {
    "Windows was left out": WINDOWS_LEFT_OUT,
    "powershell.exe is nowhere": NO_POWERSHELL,
    "Windows programs cannot be started": NO_INTEROP,
    "the Python package nvidia-ml-py": NO_NVML_BINDING,
    "nvidia-ml-py is newer": NVML_BINDING_TOO_NEW,
}


def _with_codes(survey: Survey) -> Survey:
    """*survey* with a code on each statement of an earlier version that was not ok."""
    said: Iterable[Observation | ProbeRun] = chain(survey.observations, survey.probes)
    if all(each.status == "ok" or each.code is not None for each in said):
        return survey
    return replace(
        survey,
        observations=tuple(map(_coded, survey.observations)),
        probes=tuple(map(_coded, survey.probes)),
    )


def _coded(said: Said) -> Said:
    if said.status == "ok" or said.code is not None:
        return said
    message = said.message or ""
    _, mark, number = message.rpartition(_NVML_ERROR)
    if mark and number[:-1].isdecimal():
        return replace(said, code=f"nvml-{number[:-1]}")
    old = (code for words, code in _OLD_WORDS.items() if message.startswith(words))
    return replace(said, code=next(old, said.status))


def write(survey: Survey, path: str) -> None:
    """Write to *path*; a file that was there stays whole until the new one is."""
    # Command lines carry secrets: nobody else reads it unless its owner says so.
    write_file(path, dumps(survey), secret=True)


def read(path: str) -> Survey:
    """Read the snapshot at *path*; "-" is standard input."""
    from_stdin = path == STDIN
    path = "standard input" if from_stdin else path
    try:
        if from_stdin:
            data = untrusted.read_stream(0, nbytes=_MAX_NBYTES)
        else:
            data = untrusted.read_file(path, nbytes=_MAX_NBYTES, follow=True, pipes=True)
    except untrusted.Rejected as error:
        hint = _TAKE_AGAIN if error.code == "too-large" else "check the path and its permissions"
        raise BadSnapshot(f"cannot read {path}: {error}", hint=hint) from error
    return loads(data, path)


def _decode(data: bytes, kind: type[Shape], complaint: str) -> Shape:
    try:
        return untrusted.decode(data, kind, most_items=_MAX_ITEMS)
    except untrusted.Rejected as error:
        broken = "" if error.code == "wrong-shape" else ", it is damaged or truncated"
        raise BadSnapshot(f"{complaint}{broken}: {error}", hint=_TAKE_AGAIN) from error


def _check(survey: Survey, origin: str) -> None:
    """Refuse sizes that no survey takes: whoever judges it may trust them."""
    for at, observation in enumerate(survey.observations):
        for nbytes in (observation.nbytes, *_sizes(observation.facts)):
            if nbytes is not None and not 0 <= nbytes < _MAX_BYTES:
                raise BadSnapshot(f"{origin} has an invalid size in observations[{at}]", hint=_TAKE_AGAIN)


def _sizes(facts: Facts | None) -> Iterator[Any]:
    facts = facts.memory if isinstance(facts, MigFacts) else facts
    if isinstance(facts, MemoryFacts | CapacityFacts | SystemMemoryFacts):
        yield from msgspec.structs.astuple(facts)
    elif isinstance(facts, WindowsMemoryFacts | AdapterFacts):
        names = ("local", "non_local", "dedicated", "shared", "total")
        yield from (getattr(facts, name, None) for name in names)
    elif isinstance(facts, ClientFacts):
        for region in facts.regions:
            yield from (region.nbytes, region.shared)
