"""The same process, which flushes: the exception goes, the library is named, the next step fits.

vram virtual --memory 2GiB -- python examples/out-of-memory/after.py
"""

from __future__ import annotations

import sys

import library
from before import MIB, step

import vram


def main() -> None:
    library.predict("warm-up")
    try:
        step(512 * MIB)
    except ValueError as error:
        sys.last_value = error
    report = vram.flush()
    print(report)
    step(300 * MIB)
    print("the next step: done")
    library.forget()
    print(f"and without the library's cache, {vram.flush().returned // MIB} MiB more")


if __name__ == "__main__":
    main()
