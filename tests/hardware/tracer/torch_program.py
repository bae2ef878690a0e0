"""PyTorch: a model that is kept, tensors that come and go, and a list that grows."""

from __future__ import annotations

import torch
from pace import Pace

MIB = 1 << 20


def tensor(nbytes: int) -> torch.Tensor:
    return torch.empty(nbytes, dtype=torch.uint8, device="cuda")


def step() -> None:
    """Honest: freed on return, and sometimes a new segment for the allocator."""
    first = tensor(5 * MIB)
    second = tensor(30 * MIB)
    first.zero_()
    second.zero_()


def remember(history: list[torch.Tensor]) -> None:
    history.append(torch.zeros(3 * MIB, dtype=torch.uint8, device="cuda"))  # planted leak: 12


def main() -> None:
    pace = Pace()
    torch.cuda.init()
    model = [tensor(8 * MIB) for _ in range(6)]
    history: list[torch.Tensor] = []
    for number in pace.steps(24):
        step()
        if number % 2 == 0:
            remember(history)
    assert len(model) == 6
    globals()["kept"] = model, history  # alive until the interpreter ends


if __name__ == "__main__":
    main()
