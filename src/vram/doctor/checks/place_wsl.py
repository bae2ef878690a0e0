"""place.wsl  Is this Linux under Windows (WSL), and what of the GPU can be reached?

What is looked at
-----------------
The kernel's name, /dev/dxg, the folder of the Windows driver's Linux libraries, and whether Windows could
be asked for its counters.

What it means
-------------
Under WSL2 the driver is the one of Windows: totals are told, what each Linux process has is not, and
Windows' own programs take memory that no list shows here. Its counters tell of them, if Windows programs
can be started from here.

What to do
----------
- No /dev/dxg or no libraries: install the NVIDIA driver on Windows, then `wsl --update`.
- No interop: set `enabled=true` under `[interop]` in /etc/wsl.conf.
- powershell.exe is not found: set `enabled=true` under `[automount]` there, or put its folder on PATH.
- Windows answers with an error: `winmgmt /resyncperf` in an administrator's shell of Windows.
- WSL 1 has no GPU: `wsl --set-version DISTRIBUTION 2`.
"""

from __future__ import annotations

from vram.diagnosis.windows_words import way_to_ask
from vram.doctor.answers import Answer, not_applicable
from vram.doctor.sight import Sight
from vram.model.doctor import Topic, Verb
from vram.model.observation import ProbeRun
from vram.model.wsl import WslFacts

ID = "place.wsl"
TOPIC: Topic = "place"
VERBS: tuple[Verb, ...] = ("why", "who", "check", "free", "park", "borrow")
OPTIONAL = False

_TOTALS = "Totals are told, what each Linux process has is not."


def judge(sight: Sight) -> Answer:
    facts = sight.survey.host.wsl_facts
    if facts is None:
        return not_applicable("not under Windows")
    if facts.version == 1:
        return _without_gpu("WSL 1, which has no GPU", "Convert it.", "wsl.exe --set-version DISTRIBUTION 2")
    if not facts.gpu_device:
        return _without_gpu(
            "WSL2 without /dev/dxg",
            "Install the NVIDIA driver on Windows and update WSL.",
            "wsl.exe --update",
        )
    if facts.libraries is None:
        return _without_gpu(
            "WSL2 without the driver's libraries (/usr/lib/wsl/lib)",
            "Give the container that folder." if facts.container else "Install the NVIDIA driver on Windows.",
            "docker run --gpus all …" if facts.container else "",
        )
    return _with_gpu(facts, next((run for run in sight.survey.probes if run.name == "windows"), None))


def _with_gpu(facts: WslFacts, windows: ProbeRun | None) -> Answer:
    if windows is None or windows.status != "ok":
        fix, command = way_to_ask(facts, windows)
        return Answer(
            state="limited",
            seen="WSL2; Windows does not tell of its own programs",
            details=(windows.message,) if windows and windows.message else (),
            means=f"{_TOTALS} What Windows itself keeps on the GPU cannot be asked for.",
            fix=fix,
            command=command,
        )
    return Answer(
        state="limited",
        seen=f"WSL2; Windows told its counters in {windows.duration_s:.1f} s",
        means=f"{_TOTALS} Windows' own programs are told by its counters.",
        fix="Nothing is to be put right; vram why --deep asks programs for their own figures.",
    )


def _without_gpu(seen: str, fix: str, command: str) -> Answer:
    return Answer(state="missing", seen=seen, means="No GPU can be seen from here.", fix=fix, command=command)
