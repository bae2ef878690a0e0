r"""VR602 Held by Windows: programs outside WSL2 hold GPU memory.

What it detects
---------------
Under WSL2, Windows' counters show that Windows processes hold 64 MiB or more of the GPU's memory
together. From a quarter of the GPU's memory on this is a warning.

Why it happens
--------------
Windows owns the GPU, and Linux runs as a guest. The desktop itself (dwm.exe), browsers, editors
built on a browser, games and other machine-learning programs all use it. Linux programs cannot use
what they hold, and no tool inside Linux lists them.

How to confirm
--------------
Task Manager, Details, column "Dedicated GPU memory"; or from here:

    powershell.exe -NoProfile -Command \
      Get-CimInstance Win32_PerfRawData_GPUPerformanceCounters_GPUProcessMemory

Remedies and their risk
-----------------------
- Close programs that you do not need, in Windows. vram never signals a Windows process.
- Turn hardware acceleration off in browsers and editors, or let Windows draw on another GPU:
  Settings, System, Display, Graphics. Programs look and work the same, some more slowly.
- The desktop itself keeps its part while a monitor is connected to the GPU.

Source
------
The counters are documented with Windows' GPU performance counters; their resident figures are
Local Usage, as System Informer uses them (pull request 2971). Tested with recorded answers.
"""

from __future__ import annotations

from collections.abc import Iterator

from vram.diagnosis import words
from vram.diagnosis.held import finding_about
from vram.ledger.holds import on_each_gpu
from vram.model.finding import Finding, Remedy
from vram.model.hold import Hold
from vram.model.ledger import Entry, GpuLedger, Ledger
from vram.units import MIB, counted, size

CODE = "VR602"

_MIN_BYTES = 64 * MIB
_NAMED = 5


def judge(ledger: Ledger) -> Iterator[Finding]:
    for gpu, holds in on_each_gpu(ledger, lambda entry: entry.kind == "windows", empty=True):
        nbytes = sum(hold.known_bytes for hold in holds)
        if nbytes >= _MIN_BYTES:
            yield _finding(gpu, holds, nbytes)


def _finding(gpu: GpuLedger, holds: list[Hold], nbytes: int) -> Finding:
    held = sorted((entry for hold in holds for entry in hold.entries), key=lambda e: -(e.nbytes or 0))
    hold = "hold" if len(held) > 1 else "holds"
    much = gpu.total_bytes is not None and nbytes * 4 >= gpu.total_bytes
    return finding_about(
        *holds,
        code=CODE,
        title=f"{size(nbytes)} of GPU {gpu.index} held by Windows programs",
        cause=(
            f"{counted(len(held), 'Windows process')} outside WSL2 {hold} {size(nbytes)} of GPU {gpu.index};"
            f" the largest: {', '.join(map(_named, held[:_NAMED]))}."
        ),
        evidence=(line for entry in held for line in entry.evidence),
        remedies=_remedies(gpu),
        severity="warning" if much else "info",
    )


def _named(entry: Entry) -> str:
    name = entry.windows.name if entry.windows else None
    return f"{words.shown(name or 'name unknown')} ({size(entry.nbytes or 0)})"


def _remedies(gpu: GpuLedger) -> tuple[Remedy, ...]:
    target = f"gpu {gpu.index}"
    close = "Close programs you do not need, in Windows: Task Manager, Details, Dedicated GPU memory."
    draw = (
        "Turn off hardware acceleration in browsers and editors, or choose another GPU for them in"
        " Windows' Settings, Display, Graphics."
    )
    return (
        Remedy(step="ask", target=target, text=draw),
        Remedy(step="ask", target=target, text=close, harm="interrupts"),
    )
