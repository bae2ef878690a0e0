"""Numba: arrays straight from the driver, freed some at a time; a list of them grows."""

from __future__ import annotations

import numpy
from numba import cuda
from pace import Pace

MIB = 1 << 20


def step() -> None:
    """Honest: Numba frees it with the next ten."""
    assert cuda.device_array(5 * MIB, numpy.uint8).size == 5 * MIB


def remember(history: list[object]) -> None:
    history.append(cuda.device_array(3 * MIB, numpy.uint8))  # planted leak: 12


def main() -> None:
    pace = Pace()
    cuda.current_context()
    model = [cuda.device_array(8 * MIB, numpy.uint8) for _ in range(6)]
    history: list[object] = []
    for number in pace.steps(24):
        step()
        if number % 2 == 0:
            remember(history)
    globals()["kept"] = model, history


if __name__ == "__main__":
    main()
