"""PyCUDA: allocations of the driver with an owner each; a list of them grows."""

from __future__ import annotations

import pycuda.driver as driver
from pace import Pace

MIB = 1 << 20


def step() -> None:
    """Honest: the owner frees it on return."""
    driver.mem_alloc(5 * MIB)


def remember(history: list[driver.DeviceAllocation]) -> None:
    history.append(driver.mem_alloc(3 * MIB))  # planted leak: 12


def main() -> None:
    pace = Pace()
    driver.init()
    context = driver.Device(0).make_context()
    model = [driver.mem_alloc(8 * MIB) for _ in range(6)]
    history: list[driver.DeviceAllocation] = []
    for number in pace.steps(24):
        step()
        if number % 2 == 0:
            remember(history)
    context.pop()  # PyCUDA ends the program where a context is current at the end
    globals()["kept"] = model, history, context  # else they would be freed here


if __name__ == "__main__":
    main()
