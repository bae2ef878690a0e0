"""A training that goes on until a line comes; with "growing" it keeps a part of each step's output."""

from __future__ import annotations

import sys
import threading

import torch
from torch import nn

WIDTH, LAYERS, BATCH = 2048, 6, 4096


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x).relu()
        return x


def remember(history: list[torch.Tensor], output: torch.Tensor) -> None:
    history.append(output.detach()[:256].clone())  # planted growth


def main() -> None:
    model, history = Net().cuda(), list[torch.Tensor]()
    optimizer = torch.optim.Adam(model.parameters())
    stop = threading.Event()
    threading.Thread(target=lambda: (sys.stdin.readline(), stop.set()), daemon=True).start()
    steps = 0
    while not stop.is_set():
        optimizer.zero_grad(set_to_none=True)
        output = model(torch.randn(BATCH, WIDTH, device="cuda"))
        output.square().mean().backward()
        optimizer.step()
        if "growing" in sys.argv:
            remember(history, output)
        steps += 1
        if steps % 20 == 0:
            torch.cuda.synchronize()
        if steps == 20:
            print("ready", flush=True)
    print(steps, len(history), flush=True)


if __name__ == "__main__":
    main()
