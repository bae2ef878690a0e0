"""VR211 Busy without a process: a GPU reports work, and no process is on it.

What it detects
---------------
The driver reports that a GPU is busy, while no process is listed on it, none has its files open
and no memory is held. A single reading says so as information, from 50 % on. `vram watch` and the
service warn when every reading of three minutes shows it. Where the driver itself advises a reset
or a restart, it is a warning at once.

Nothing is said where the driver's lists may hide a process: in a container, where /proc hides
other users' processes, under MIG and WSL2. Nor without persistence mode: the driver then starts
the GPU for every reading, and checks its memory meanwhile, which counts as work.

Why it happens
--------------
Utilization is an average over up to a second, so a program that just ended is in it. If it stays,
the GPU or its firmware goes on with work of a process that is gone, or the counter itself hangs.

How to confirm
--------------
Utilization stays, and the list of processes is empty:

    nvidia-smi --query-gpu=index,utilization.gpu,memory.used,persistence_mode --format=csv -l 5
    nvidia-smi -q | grep -i 'recovery action'
    sudo dmesg --ctime | grep -iE 'xid|nvrm'

Remedies and their risk
-----------------------
- Read the kernel log: an Xid line names a fault.
- Reset the GPU: no process is on it. A program that starts on it meanwhile is killed.
- Do what the driver advises, where it does: reset, restart, or first end the programs on GPUs that
  are connected by NVLink.

Source
------
Reported in lium-io#1140: 100 % busy, 0 MiB in use, no process, for nine days. The driver's advice
is NVML's field 230 (NVML_FI_DEV_GET_GPU_RECOVERY_ACTION), as its headers document it; it was not
measured on a GPU with a fault. That a start of the driver counts as work is said of
nvmlDeviceGetUtilizationRates there.
"""

from __future__ import annotations

from collections.abc import Iterator

from vram.diagnosis import busy
from vram.model.finding import Finding
from vram.model.ledger import Ledger

CODE = busy.CODE


def judge(ledger: Ledger) -> Iterator[Finding]:
    return busy.in_one_reading(ledger)
