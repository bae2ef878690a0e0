"""PyTorch at work while a thread does what a visit does: training.py look|history|trim TIMES."""

import sys
import threading
import time

import torch
from torch import nn

from vram.payloads import inside, trim
from vram.payloads.tracer.frameworks import TorchAccount

SIZE = 64


class Net(nn.Module):
    """Without products of matrices, which no virtual GPU has."""

    def __init__(self):
        super().__init__()
        self.weights = nn.ParameterList(nn.Parameter(torch.empty(SIZE, SIZE)) for _ in range(6))

    def forward(self, x):
        for weight in self.weights:
            x = (x * weight).relu()
        return x


class NoRecorder:
    def blob(self, name, data):
        return True


def look():
    told = inside.answer({"until": time.monotonic() + 60})
    assert told["arrays"] > 0, told


def history():
    account = TorchAccount(NoRecorder())
    account._begin()
    assert account.ours
    account.finish("detach")


def trim_once():
    told = trim.answer({"verb": "trim", "until": time.monotonic() + 60, "collect": True})
    assert told["status"] == "done", told


def visit(errors):
    do = {"look": look, "history": history, "trim": trim_once}[sys.argv[1]]
    try:
        for _ in range(int(sys.argv[2])):
            do()
    except BaseException as error:
        errors.append(error)


def allocate(stop, source):
    while not stop.is_set():
        source.clone()


def main():
    model = Net().cuda()
    optimizer = torch.optim.Adam(model.parameters())
    stop, errors, steps = threading.Event(), [], 0
    visiting, others = threading.Thread(target=visit, args=(errors,)), []
    if sys.argv[1] == "history":
        source = torch.empty(SIZE, device="cuda")
        others = [threading.Thread(target=allocate, args=(stop, source)) for _ in range(2)]
    for each in (visiting, *others):
        each.start()
    while visiting.is_alive():
        optimizer.zero_grad(set_to_none=True)
        model(torch.empty(SIZE, SIZE, device="cuda")).square().mean().backward()
        optimizer.step()
        steps += 1
    stop.set()
    for each in others:
        each.join()
    if errors:
        raise errors[0]
    print(steps, flush=True)


main()
