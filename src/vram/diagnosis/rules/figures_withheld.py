"""VR603 No figures per process: under Windows' driver NVML reports totals only.

What it detects
---------------
This is WSL2, and GPU memory cannot be attributed to single processes: either Windows could not be
queried, or several Linux processes have the GPU open, which Windows counts as one.

Why it happens
--------------
Under WDDM, Windows' driver model, device memory is managed by Windows and not by NVIDIA's driver:
NVML reports "not available" per process. Windows' own counters include every Windows process, but
count all of WSL2 as one virtual machine (vmmemWSL, or vmmem). They are read through powershell.exe,
which needs WSL's interop: it can be disabled, and does not exist inside containers.

How to confirm
--------------
NVML's own answer, and which processes have the device open here:

    nvidia-smi --query-compute-apps=pid,used_memory --format=csv
    sudo fuser -v /dev/dxg

Remedies and their risk
-----------------------
- Ask the programs themselves: `vram why --deep` queries those that answer (vram.agent(), Jupyter).
  No risk.
- Let vram query Windows: set enabled=true under [interop] in /etc/wsl.conf, and run vram in the
  distribution rather than in a container. No risk; takes effect at the next start of WSL.
- Kill programs one by one: `vram kill PID` measures how much memory that freed. Unsaved work is
  lost.

Source
------
nvitop's issue 55 and NVIDIA's header for NVML: usedGpuMemory is not available under WDDM. Tested
with recorded answers and on a virtual GPU in that mode, not yet on WSL2 hardware.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from vram.diagnosis import words
from vram.diagnosis.held import finding_about
from vram.diagnosis.remedies import ask_windows
from vram.ledger.holds import in_ledger_order, narrow, on_each_gpu
from vram.model.finding import Finding, Remedy
from vram.model.hold import Hold
from vram.model.ledger import Entry, GpuLedger, Ledger
from vram.model.observation import WINDOWS_LEFT_OUT, ProbeRun
from vram.model.windows import WslFacts
from vram.units import size

CODE = "VR603"


def judge(ledger: Ledger) -> Iterator[Finding]:
    facts = ledger.host.wsl_facts
    for gpu, holds in on_each_gpu(ledger, lambda entry: True, empty=True) if facts else ():
        unsplit = [each for hold in holds if (each := narrow(hold, _is_unsplit))]
        if unsplit and facts:
            entries = [part.entry for part in in_ledger_order(holds)]
            pids = [each.holder.pid for each in entries if each.confidence == "unknown" and each.holder]
            yield _finding(ledger, facts, gpu, unsplit, pids)


def _is_unsplit(entry: Entry) -> bool:
    return bool(entry.nbytes) and (entry.kind == "guest" or entry.hidden_by == "windows")


def _finding(
    ledger: Ledger, facts: WslFacts, gpu: GpuLedger, unsplit: list[Hold], pids: list[int]
) -> Finding:
    nbytes = size(sum(hold.known_bytes for hold in unsplit))
    read = gpu.windows is not None and gpu.windows.read
    whose = "Linux processes together" if read else "Windows programs and Linux processes together"
    why = "" if read or gpu.windows is None else f" No answer from Windows: {gpu.windows.message}."
    return finding_about(
        *unsplit,
        code=CODE,
        title=f"{nbytes} of GPU {gpu.index}: no figures per process under WSL2",
        cause=(
            f"{nbytes} of GPU {gpu.index} is held by {whose}; Windows' driver reports no figures per"
            f" process.{words.shown(why)}"
        ),
        pids=pids,
        remedies=_remedies(facts, gpu, ledger.probes, read),
        severity="info",
    )


def _remedies(facts: WslFacts, gpu: GpuLedger, probes: Iterable[ProbeRun], read: bool) -> Iterator[Remedy]:
    target = f"gpu {gpu.index}"
    ask = "Query the programs that answer (vram.agent(), Jupyter) for what they hold."
    yield Remedy(step="look", target=target, text=ask, command="vram why --deep")
    if read:
        return
    if gpu.windows is not None and gpu.windows.code == WINDOWS_LEFT_OUT:
        text = "Run it again without --no-windows."
        yield Remedy(step="look", target=target, text=text, command="vram why")
        return
    yield ask_windows(facts, next((run for run in probes if run.name == "windows"), None), target)
