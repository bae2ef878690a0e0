"""Times as people write them: 04:12, yesterday 04:12, 2026-11-16T04:12, -2h, seconds since 1970.

A time without a zone is the machine's local time. Twice a year such a time does not exist, or comes twice:
one of them is taken, and what was taken is said.
"""

from __future__ import annotations

import re
from datetime import datetime, timedelta, timezone, tzinfo
from typing import NamedTuple

from vram.errors import UsageError
from vram.units import parse_duration

_HINT = "write it like 04:12, 'yesterday 04:12', 2026-11-16T04:12, -2h or 1794802320"
_CLOCK = re.compile(r"(\d{1,2}):(\d{2})(?::(\d{2}))?", re.ASCII)
_DATE = re.compile(r"(\d{4})-(\d{2})-(\d{2})(?:[T ]+(\S.*))?", re.ASCII | re.IGNORECASE)
_UNIX = re.compile(r"\d{9,11}(?:\.\d+)?", re.ASCII)
_ZONE = re.compile(r"(.*?)\s*(Z|UTC|[+-]\d{2}:?\d{2})", re.ASCII | re.IGNORECASE)
_AGO = re.compile(r"-?\s*([0-9.]+\s*[a-z]+)(?:\s+ago)?", re.ASCII | re.IGNORECASE)
_DAYS = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")


class ReadTime(NamedTuple):
    """A point in time, in seconds since 1970; ``note`` says what had to be chosen, and is mostly empty."""

    wall: float
    note: str = ""


def read_time(text: str, now: float, zone: tzinfo | None = None) -> ReadTime:
    """Read *text*, where *now* it is so many seconds since 1970; *zone* None: the machine's own.

    Raises UsageError. A time of day alone is the last one that has been.
    """
    word = " ".join(text.split()).lower()
    if word == "now":
        return ReadTime(now)
    if _UNIX.fullmatch(word):
        return ReadTime(float(word))
    if ago := _AGO.fullmatch(word):
        try:
            return ReadTime(now - parse_duration(ago[1]))
        except UsageError as error:
            raise _unreadable(text) from error
    try:
        return _on_a_day(text, word, now, zone)
    except (ValueError, OverflowError, OSError) as error:  # a month 13, or a year that no clock has
        raise _unreadable(text) from error


def _on_a_day(text: str, word: str, now: float, zone: tzinfo | None) -> ReadTime:
    today = _local(now, zone).replace(hour=0, minute=0, second=0, microsecond=0)
    if _CLOCK.fullmatch(word):
        found = _at_local(_with_clock(today, word, text), zone)
        return (
            found
            if found.wall <= now
            else _at_local(_with_clock(today - timedelta(days=1), word, text), zone)
        )
    if date := _DATE.fullmatch(word):
        day = datetime(int(date[1]), int(date[2]), int(date[3]))
        rest = date[4] or "00:00"
        if named := _ZONE.fullmatch(rest):
            aware = _with_clock(day, named[1], text).replace(tzinfo=_zone(named[2]))
            return ReadTime(aware.timestamp())
        return _at_local(_with_clock(day, rest, text), zone)
    name, _, rest = word.partition(" ")
    return _at_local(_with_clock(_named_day(name, today, text), rest or "00:00", text), zone)


def _named_day(name: str, today: datetime, text: str) -> datetime:
    """The last day of that name up to today."""
    if name in ("today", "yesterday"):
        return today - timedelta(days=name == "yesterday")
    found = [at for at, day in enumerate(_DAYS) if name in (day, day[:3])]
    if not found:
        raise _unreadable(text)
    return today - timedelta(days=(today.weekday() - found[0]) % 7)


def _with_clock(day: datetime, clock: str, text: str) -> datetime:
    found = _CLOCK.fullmatch(clock)
    if not found:
        raise _unreadable(text)
    return day.replace(hour=int(found[1]), minute=int(found[2]), second=int(found[3] or 0))


def _zone(word: str) -> timezone:
    if word.lower() in ("z", "utc"):
        return timezone.utc
    digits = word[1:].replace(":", "")
    away = timedelta(hours=int(digits[:2]), minutes=int(digits[2:]))
    return timezone(-away if word.startswith("-") else away)


def _at_local(naive: datetime, zone: tzinfo | None) -> ReadTime:
    """A local time: the first of one that comes twice; for one that does not exist, one after the gap."""
    early, late = (_timestamp(naive.replace(fold=fold), zone) for fold in (0, 1))
    shown = naive.strftime("%Y-%m-%d %H:%M")
    if early == late:
        return ReadTime(early)
    if _local(early, zone) == naive and _local(late, zone) == naive:
        other = datetime.fromtimestamp(late, timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
        return ReadTime(
            early, f"{shown} came twice, for clocks were set back: this is the first; the second is {other}"
        )
    # In a gap, fold 0 counts with the offset from before it, which leads behind it.
    after = _local(early, zone).strftime("%H:%M")
    return ReadTime(early, f"{shown} did not exist, for clocks were set forward: this is {after}")


def _timestamp(naive: datetime, zone: tzinfo | None) -> float:
    return naive.replace(tzinfo=zone).timestamp() if zone else naive.timestamp()


def _local(wall: float, zone: tzinfo | None) -> datetime:
    return datetime.fromtimestamp(wall, zone).replace(tzinfo=None, fold=0)


def _unreadable(text: str) -> UsageError:
    return UsageError(f"{text!r} is not a time", hint=_HINT)
