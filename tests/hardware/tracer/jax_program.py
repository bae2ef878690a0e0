"""JAX, without its pool: every buffer is asked of the driver; a list of arrays grows."""

from __future__ import annotations

import os

os.environ["XLA_PYTHON_CLIENT_ALLOCATOR"] = "platform"

import jax
import numpy
from pace import Pace

MIB = 1 << 20


def array(nbytes: int) -> jax.Array:
    return jax.device_put(numpy.zeros(nbytes, numpy.uint8))


def step() -> None:
    """Honest: freed on return."""
    array(5 * MIB).block_until_ready()


def remember(history: list[jax.Array]) -> None:
    history.append(jax.device_put(numpy.zeros(3 * MIB, numpy.uint8)))  # planted leak: 12
    history[-1].block_until_ready()


def main() -> None:
    jax.devices()
    array(MIB).block_until_ready()
    pace = Pace()
    model = [array(8 * MIB) for _ in range(6)]
    history: list[jax.Array] = []
    for number in pace.steps(24):
        step()
        if number % 2 == 0:
            remember(history)
    globals()["kept"] = model, history


if __name__ == "__main__":
    main()
