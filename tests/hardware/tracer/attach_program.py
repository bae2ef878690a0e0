"""PyTorch that already runs: it holds a model, works, and leaks until a line comes."""

from __future__ import annotations

import sys
import threading
import time

import torch

MIB = 1 << 20


def tensor(nbytes: int) -> torch.Tensor:
    return torch.empty(nbytes, dtype=torch.uint8, device="cuda")


def step() -> None:
    tensor(5 * MIB).zero_()


def remember(history: list[torch.Tensor]) -> None:
    history.append(tensor(3 * MIB))


def main() -> None:
    model = [tensor(8 * MIB) for _ in range(6)]
    history: list[torch.Tensor] = []
    stop = threading.Event()
    threading.Thread(target=lambda: (sys.stdin.readline(), stop.set()), daemon=True).start()
    print("ready", flush=True)
    while not stop.is_set():
        step()
        remember(history)
        time.sleep(0.02)
    assert len(model) == 6
    print(len(history), flush=True)


if __name__ == "__main__":
    main()
