"""A program whose library leaks: the line of Python that calls it is known, and the library by its frames."""

from __future__ import annotations

import ctypes
import sys

from pace import Pace

library = ctypes.CDLL(sys.argv[1])


def main() -> None:
    pace = Pace()
    assert library.library_begin() == 0
    for number in pace.steps(24):
        assert library.library_step(5 << 20) == 0
        if number % 2 == 0:
            assert library.library_cache(3 << 20) == 0  # planted leak: 12


if __name__ == "__main__":
    main()
