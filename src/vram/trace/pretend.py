"""`vram run --pretend SIZE`: a process of ours holds the rest of every GPU that the command will see."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Mapping
from subprocess import DEVNULL

import msgspec
from msgspec import Struct

from vram.children import ChildProgram, start_program
from vram.diagnosis.verdict import GpuVerdict, judge
from vram.errors import DeviceError, GoalImpossible
from vram.host.ports import Host
from vram.payloads import command
from vram.payloads.device_memory import GRANULE
from vram.reclaim.device_state import read_ledger
from vram.reclaim.preflight import seen_by_cuda
from vram.trace.launch import without_recorder
from vram.units import size

VISIBLE = "CUDA_VISIBLE_DEVICES"
_PATIENCE_S = 60.0
_GRACE_S = 5.0


class HeldDevice(Struct, frozen=True):
    """One GPU as the ballast found it and left it; ``device`` is CUDA's number."""

    device: int
    uuid: str
    total: int
    free: int
    held: int


class _Answer(Struct):
    devices: tuple[HeldDevice, ...] = ()
    error: str = ""


def require_empty(host: Host, environment: Mapping[str, str], deadline_s: float = 5.0) -> None:
    """Raise where a GPU that the command will see is in use, or where that is unknown."""
    ledger = read_ledger(host, (), deadline_s)
    visible = environment.get(VISIBLE)
    uuids = {gpu.index: gpu.uuid or "" for gpu in ledger.gpus}
    # MIG devices and words that we do not know: all GPUs must be empty then.
    seen = (seen_by_cuda(visible, uuids) if visible is not None else ()) or tuple(uuids)
    for verdict in judge(ledger):
        if verdict.index in seen and verdict.verdict != "clean":
            raise GoalImpossible(
                f"GPU {verdict.index} is not empty: {_holders(verdict)}",
                hint="--pretend takes memory away from all programs there; choose an empty GPU with"
                f" {VISIBLE}, or see `vram why`",
            )


def _holders(verdict: GpuVerdict) -> str:
    if verdict.verdict == "unknown":
        return verdict.reason or "what it holds is unknown"
    pids = sorted({entry.holder.pid for entry in verdict.entries if entry.holder is not None})
    named = f" by pid {', '.join(map(str, pids[:5]))}" if pids else ""
    return f"{size(verdict.held_bytes or 0)} is held{named}{' and others' if len(pids) > 5 else ''}"


class Ballast:
    """Held from entering to leaving; the process ends with us, also where we are killed."""

    def __init__(self, left: int, environment: Mapping[str, str]) -> None:
        self.left = left
        self.devices: tuple[HeldDevice, ...] = ()
        self._environment = without_recorder(environment)
        self._process: ChildProgram | None = None

    def __enter__(self) -> Ballast:
        words = command("device_memory", "ballast", str(self.left), str(os.getpid()))
        self._process = start_program(words, stderr=DEVNULL, env=self._environment)
        try:
            self.devices = self._held(self._process)
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Release the memory, and wait until it is."""
        process, self._process = self._process, None
        if process is None:
            return
        process.hang_up()
        if not process.wait(_GRACE_S):
            process.end(_PATIENCE_S)

    def _held(self, process: ChildProgram) -> tuple[HeldDevice, ...]:
        try:
            line = next(process.lines(time.monotonic() + _PATIENCE_S), b"")
        except TimeoutError:
            line = b""
        answer = msgspec.json.decode(line, type=_Answer) if line else _Answer(error="its process has ended")
        if answer.error or not answer.devices:
            raise DeviceError(
                f"a GPU of {size(self.left)} cannot be pretended: {answer.error or 'no GPU is visible'}",
                hint="`vram doctor` says what works here",
            )
        _require_fit(self.left, answer.devices)
        return answer.devices


def _require_fit(left: int, devices: Iterable[HeldDevice]) -> None:
    for each in devices:
        if each.free + GRANULE < left:
            raise GoalImpossible(
                f"GPU {each.device} cannot pretend to have {size(left)}: of its {size(each.total)},"
                f" {size(each.free)} can be left free",
                hint="pretend a smaller card",
            )
