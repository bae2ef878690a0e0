"""PyTorch that already runs: it holds weights, works in steps that free what they took, and keeps a log.

Only memory, no arithmetic: the virtual GPU carries it, too. It goes on until a line comes.
"""

from __future__ import annotations

import sys
import threading
import time

import torch

MIB = 1 << 20


def tensor(nbytes: int) -> torch.Tensor:
    return torch.empty(nbytes, dtype=torch.uint8, device="cuda")


class Model:
    def __init__(self) -> None:
        self.embedding = tensor(64 * MIB)
        self.layers = [tensor(8 * MIB) for _ in range(6)]


def step(model: Model) -> None:
    activations = [tensor(5 * MIB) for _ in model.layers]
    cache = tensor(2 * MIB)
    assert len(activations) + len(cache.shape) == 7


def remember(log: list[torch.Tensor]) -> None:
    log.append(tensor(MIB))


def main() -> None:
    model = Model()
    log: list[torch.Tensor] = []
    stop = threading.Event()
    threading.Thread(target=lambda: (sys.stdin.readline(), stop.set()), daemon=True).start()
    steps = 0
    while not stop.is_set():
        step(model)
        steps += 1
        if "growing" in sys.argv and steps % 2 == 0:
            remember(log)
        if steps == 10:
            print("ready", flush=True)
        time.sleep(0.05)
    print(steps, len(log), flush=True)


if __name__ == "__main__":
    main()
