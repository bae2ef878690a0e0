"""An exception that somebody keeps holds its frames, and these hold device memory."""

from __future__ import annotations

import gc
import sys

import driver
import stage


def fail_while_holding(nbytes: int) -> None:
    buffer = driver.Buffer(nbytes)
    raise ValueError(f"the step failed with a buffer at {buffer.pointer:#x}")


def scene() -> None:
    nbytes = stage.size_argument(4 * stage.GIB)
    driver.context()
    try:
        fail_while_holding(nbytes)
    except ValueError as error:
        # What an interactive interpreter does with every exception that reaches the prompt.
        sys.last_value = error
    gc.collect()
    stage.ready("kept", nbytes=nbytes)
    stage.wait()
    sys.last_value = None
    gc.collect()
    stage.ready("dropped")
    stage.wait()


if __name__ == "__main__":
    stage.act(scene)
