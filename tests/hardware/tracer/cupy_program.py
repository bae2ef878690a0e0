"""CuPy: its pool takes chunks from the driver; a list of arrays grows."""

from __future__ import annotations

import cupy
from pace import Pace

MIB = 1 << 20


def step() -> None:
    """Honest: back in the pool on return."""
    first = cupy.zeros(5 * MIB, dtype=cupy.uint8)
    second = cupy.empty(30 * MIB, dtype=cupy.uint8)
    assert first.nbytes < second.nbytes


def remember(history: list[cupy.ndarray]) -> None:
    history.append(cupy.zeros(3 * MIB, dtype=cupy.uint8))  # planted leak: 12


def main() -> None:
    pace = Pace()
    model = [cupy.empty(8 * MIB, dtype=cupy.uint8) for _ in range(6)]
    history: list[cupy.ndarray] = []
    for number in pace.steps(24):
        step()
        if number % 2 == 0:
            remember(history)
    globals()["kept"] = model, history


if __name__ == "__main__":
    main()
