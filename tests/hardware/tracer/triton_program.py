"""Triton: a kernel on tensors of PyTorch; its results pile up."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from pace import Pace

COUNT = 1 << 20


@triton.jit
def add_one(source, target, count, block: tl.constexpr):  # type: ignore[no-untyped-def]
    at = tl.program_id(0) * block + tl.arange(0, block)
    tl.store(target + at, tl.load(source + at, mask=at < count) + 1, mask=at < count)


def launch(source: torch.Tensor, target: torch.Tensor) -> None:
    add_one[(triton.cdiv(COUNT, 1024),)](source, target, COUNT, block=1024)


def step(source: torch.Tensor) -> None:
    """Honest: freed on return."""
    launch(source, torch.empty_like(source))


def remember(source: torch.Tensor, history: list[torch.Tensor]) -> None:
    history.append(torch.empty_like(source))  # planted leak: 12
    launch(source, history[-1])


def main() -> None:
    pace = Pace()
    source = torch.ones(COUNT, device="cuda")
    launch(source, torch.empty_like(source))  # compiled here, once
    history: list[torch.Tensor] = []
    for number in pace.steps(24):
        step(source)
        if number % 2 == 0:
            remember(source, history)
    torch.cuda.synchronize()
    assert float(history[-1][-1]) == 2.0
    globals()["kept"] = source, history


if __name__ == "__main__":
    main()
