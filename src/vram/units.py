"""Sizes and durations as text: "4.0 GiB" and "5 min" out, "4GiB" and "5min" in."""

from __future__ import annotations

import re

from vram.errors import UsageError

KIB = 1024
MIB = 1024**2
GIB = 1024**3

MiB = MIB
"""The bytes of 1 MiB, for sizes in programs: ``vram.scope(limit=512 * vram.MiB)``."""
GiB = GIB
"""The bytes of 1 GiB, for sizes in programs: ``vram.scope(limit=8 * vram.GiB)``."""

_BINARY = {"": 1, "b": 1, "k": KIB, "m": MIB, "g": GIB, "t": 1024**4}
_DECIMAL = {"kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12}


def size(nbytes: int) -> str:
    """Show *nbytes* as a person would say it, three significant digits at least."""
    sign, rest = ("-", -nbytes) if nbytes < 0 else ("", nbytes)
    for unit, scale in (("TiB", 1024**4), ("GiB", GIB), ("MiB", MIB), ("KiB", KIB)):
        # 1023.96 MiB would round to "1024.0 MiB": the larger unit takes it.
        if rest >= scale - scale // 2048:
            return f"{sign}{rest / scale:.1f} {unit}"
    return f"{sign}{rest} B"


def parse_size(text: str) -> int:
    """Read "20GiB", "20G", "1.5 GB" or "4096B" as bytes; G and GiB are 1024³, GB is 1000³.

    Raises UsageError. Only 0 needs no unit: another number could mean bytes or GiB.
    """
    word = text.strip().lower().replace(" ", "")
    digits = word.rstrip("bikmgt")
    unit = word[len(digits) :]
    scale = _DECIMAL.get(unit) or _BINARY.get(unit.removesuffix("ib") if unit != "b" else unit)
    try:
        number = float(digits)
    except ValueError:
        number = -1.0
    if scale is None or not 0 <= number < float("inf"):
        raise UsageError(f"{text!r} is not a size", hint="write it like 512MiB, 20GiB or 4096B")
    if not unit and number:
        raise UsageError(f"{text!r} has no unit", hint=f"write {digits}GiB, or {digits}B for bytes")
    return int(number * scale)


def read_size(value: object, what: str) -> int:
    """Read a size that a program gave for *what*: text with a unit, or a number of bytes.

    Raises UsageError. A number below 1 MiB is refused, except 0: ``limit=8`` was meant as GiB, not as bytes.
    """
    if isinstance(value, str):
        try:
            return parse_size(value)
        except UsageError as error:
            raise UsageError(f"{what}={error}", hint=error.hint) from None
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise UsageError(
            f"{what}={value!r} is not a size", hint=f'write {what}="8GiB" or {what}=8 * vram.GiB'
        )
    if 0 < value < MIB:
        raise UsageError(
            f"{what}={value} has no unit",
            hint=f'write {what}="{value}GiB" or {what}={value} * vram.GiB; "{value}B" means bytes',
        )
    return value


def duration(seconds: float) -> str:
    """Show an age in its two largest units: "3 d 4 h", "12 min 5 s"."""
    left = max(0, int(seconds))
    parts: list[str] = []
    for unit, scale in (("d", 86400), ("h", 3600), ("min", 60), ("s", 1)):
        count, left = divmod(left, scale)
        if count or (unit == "s" and not parts):
            parts.append(f"{count} {unit}")
    return " ".join(parts[:2])


# The one way to write a duration: on the command line, in serve.toml and in policies.
_UNITS_S = {"ms": 0.001, "s": 1.0, "min": 60.0, "h": 3600.0, "d": 86400.0}
_DURATION = re.compile(r"(\d+(?:\.\d+)?) *([a-z]*)", re.ASCII)
# What people write for these elsewhere; the hint then shows how it is written here.
_OTHER_UNITS = {"": "s", "sec": "s", "m": "min", "mins": "min", "hr": "h", "hours": "h", "days": "d"}
MAX_DURATION_S = 1e10


def parse_duration(text: str) -> float:
    """Read "250ms", "60s", "5min", "1.5h" or "7d" as seconds. Raises UsageError; a unit is needed."""
    found = _DURATION.fullmatch(text.strip().lower())
    scale = _UNITS_S.get(found[2]) if found else None
    if found and scale is not None and float(found[1]) * scale <= MAX_DURATION_S:
        return float(found[1]) * scale
    meant = _OTHER_UNITS.get(found[2]) if found else None
    if found and meant:
        said = f"{text!r} has no unit" if not found[2] else f"{text!r} is not a duration"
        raise UsageError(said, hint=f"write {found[1]}{meant}")
    raise UsageError(f"{text!r} is not a duration", hint="write it like 250ms, 60s, 5min, 2h or 7d")


def spell_duration(seconds: float) -> str:
    """Write *seconds* so that :func:`parse_duration` reads them again: "5s", "250ms", "2min"."""
    if 0 < seconds < 1:
        return f"{seconds * 1000:.6f}".rstrip("0").rstrip(".") + "ms"
    for unit, scale in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds and seconds % scale == 0:
            return f"{seconds / scale:g}{unit}"
    return f"{seconds:.12g}s"


def interruption(stopped_s: float | None, waited_s: float | None) -> str:
    """Say what a question cost the process: "stopped for 1.1 ms, other threads waited at most 3.2 ms".

    *waited_s* is the longest time for which another of its threads waited, None where that was not measured.
    """
    stopped = "not stopped" if stopped_s is None else f"stopped for {stopped_s * 1e3:.1f} ms"
    if waited_s is None:
        return stopped
    milliseconds = waited_s * 1e3
    waited = f"{milliseconds:.1f}" if milliseconds < 10 else f"{milliseconds:.0f}"
    return f"{stopped}, other threads waited at most {waited} ms"


def counted(number: int, noun: str) -> str:
    """Put a number before its noun: "1 process", "3 processes"."""
    plural = noun + ("es" if noun.endswith("s") else "s")
    return f"{number} {noun if number == 1 else plural}"
