"""A process whose forked child uses the GPU too: each leaks at a line of its own."""

from __future__ import annotations

import os

import driver_program as driver
from pace import Pace


def in_parent() -> None:
    driver.alloc(2 << 20)  # planted leak: 12


def in_child() -> None:
    driver.alloc(1 << 20)  # planted leak: 12


def main() -> None:
    child = os.fork()
    if child:  # one after the other: a parent that waits at its end would have done nothing there
        _, status = os.waitpid(child, 0)
        assert status == 0
    pace = Pace()
    driver.begin()
    for number in pace.steps(24):
        driver.step()
        if number % 2 == 0:
            (in_parent if child else in_child)()


if __name__ == "__main__":
    main()
