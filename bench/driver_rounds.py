"""What the driver's own library uses of the processor while vram reads figures, by rounds.

python bench/driver_rounds.py ROUNDS

Prints the seconds that one round spends inside NVML, and those of the whole round. A virtual GPU's NVML finds
its processes through the file system, which takes far longer than a driver in the kernel does: whoever
measures vram on a virtual GPU has to tell the two apart.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from time import process_time
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))

import pynvml

from vram.host.local.nvml_child import KeptReader

inside_s = 0.0


def timed(function: Any) -> Any:
    def call(*arguments: Any) -> Any:
        global inside_s
        began = process_time()
        try:
            return function(*arguments)
        finally:
            inside_s += process_time() - began

    return call


def main(rounds: int) -> None:
    global inside_s
    find = pynvml._nvmlGetFunctionPointer
    pynvml._nvmlGetFunctionPointer = lambda name: timed(find(name))
    reader = KeptReader(pynvml, os.open(os.devnull, os.O_WRONLY))
    reader.round(figures_only=False)
    inside_s, began = 0.0, process_time()
    for _ in range(rounds):
        reader.round(figures_only=True)
    print(inside_s / rounds, (process_time() - began) / rounds)


main(int(sys.argv[1]))
