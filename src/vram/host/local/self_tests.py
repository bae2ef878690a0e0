"""Calls that may hang or be forbidden, tried by processes of their own, under a deadline."""

from __future__ import annotations

import json
import os
import select
import time
from collections.abc import Sequence
from typing import Any, TypeVar

import msgspec

from vram.host.local.child import Child, driver_environment, spawn
from vram.model.doctor import DriverTest, KernelTest
from vram.payloads import command

_GRACE_S = 0.2

Told = TypeVar("Told", DriverTest, KernelTest)


class LocalSelfTests:
    """Both trials, running from now on beside whatever else is done."""

    def __init__(self, libraries: Sequence[str]) -> None:
        self._driver = _start("cuda")
        self._kernel = _start("kernel", *libraries)

    def driver(self, deadline_s: float) -> DriverTest:
        return _collected(self._driver, deadline_s, DriverTest)

    def kernel(self, deadline_s: float) -> KernelTest:
        return _collected(self._kernel, deadline_s, KernelTest)


def _start(*arguments: str) -> Child | None:
    try:
        return spawn(command("self_tests", *arguments), driver_environment())
    except OSError:  # no processes or no memory left: nothing is known then
        return None


def _collected(child: Child | None, deadline_s: float, kind: type[Told]) -> Told:
    if child is None:
        return kind(not_tried="no process could be started for it")
    try:
        lines, ended = _heard(child, time.monotonic() + deadline_s)
    finally:
        child.hang_up()
        child.end(_GRACE_S)
    fields: dict[str, Any] = {}
    for line in lines:
        fields |= line
    last = fields.pop("calling", "its start")
    return msgspec.convert(fields | {"died_in" if ended else "hung_in": last}, kind)


def _heard(child: Child, deadline: float) -> tuple[list[dict[str, Any]], bool]:
    """Every whole line until it has ended or time is up, and which of the two it was."""
    poll = select.poll()
    poll.register(child.pipe, select.POLLIN)
    heard, ended = b"", False
    while not ended and poll.poll(max(0.0, deadline - time.monotonic()) * 1000):
        part = os.read(child.pipe, 1 << 16)
        heard, ended = heard + part, not part
    return [json.loads(line) for line in heard.split(b"\n")[:-1]], ended
