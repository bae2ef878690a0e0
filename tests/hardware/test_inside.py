"""The inside of programs that nobody prepared, on real hardware: PyTorch that trains, CuPy and JAX.

python -m pytest --real-gpu -s tests/hardware/test_inside.py
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.hardware.conftest import Record
from tests.hardware.test_trim import Program
from tests.needs import require
from vram.units import MIB

pytestmark = pytest.mark.gpu

RESTING = """
import torch
history = [torch.zeros(1024, 1024, device="cuda") for _ in range(10)]
whole = torch.zeros(64, 1024, 1024, device="cuda")
first = whole[0]
cycle = [torch.zeros(7, 1024, 1024, device="cuda")]
cycle.append(cycle)
import gc; gc.disable(); del cycle
def work():
    batch = torch.zeros(3, 1024, 1024, device="cuda")
    ready(); wait()
    print(torch.cuda.memory_allocated(), flush=True)
    wait()
work()
"""

TRAINING = """
import json, threading, time, torch
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.ModuleList([torch.nn.Linear(2048, 2048) for _ in range(6)])
    def forward(self, x):
        for layer in self.layers: x = layer(x).relu()
        return x
model = Net().cuda()
optimizer = torch.optim.Adam(model.parameters())
history = [torch.zeros(256, 1024, device="cuda") for _ in range(10)]
stop = threading.Event()
threading.Thread(target=lambda: (wait(), stop.set()), daemon=True).start()
def train():
    took = []
    while not stop.is_set():
        began = time.perf_counter()
        optimizer.zero_grad(set_to_none=True)
        loss = model(torch.randn(4096, 2048, device="cuda")).square().mean()
        loss.backward()
        optimizer.step()
        torch.cuda.synchronize()
        took.append(time.perf_counter() - began)
        if len(took) == 20: ready()
    return took, float(loss)
took, loss = train()
took = took[20:]
print(json.dumps([len(took), sorted(took)[len(took) // 2], max(took), loss,
                  torch.cuda.max_memory_allocated()]), flush=True)
wait()
"""

CUPY = """
import cupy
xs = [cupy.zeros(1 << 20, dtype=cupy.float32) for _ in range(12)]
cache = {"table": cupy.ones((4096, 1024), dtype=cupy.float32)}
cupy.cuda.Device().synchronize()
ready(); wait()
print(cupy.get_default_memory_pool().used_bytes(), flush=True)
wait()
"""

JAX = """
import jax, jax.numpy as jnp
if jax.devices()[0].platform != "gpu": print("no gpu", flush=True); raise SystemExit
params = {"dense": [jax.device_put(jnp.zeros((1024, 1024))).block_until_ready() for _ in range(4)]}
ready(); wait()
print("unharmed", float(params["dense"][0].sum()), flush=True)
wait()
"""

Start = Callable[..., Program]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    started: list[Program] = []
    for name in ("runtime", "state"):
        (tmp_path / name).mkdir(mode=0o700)

    def begin(code: str, *, module: str, agent: bool = False) -> Program:
        require(module)
        started.append(Program(code, tmp_path, agent=agent, prestarted=module == "torch"))
        started[-1].require_ready()
        return started[-1]

    yield begin
    for each in started:
        each.process.kill()
        each.process.communicate()


def inside(program: Program, *words: str) -> tuple[dict[str, Any], float]:
    command = [sys.executable, "-m", "vram", "inside", str(program.process.pid), "--json", *words]
    began = time.monotonic()
    done = subprocess.run(command, env=program.environment, capture_output=True, text=True, timeout=120)
    took_s = time.monotonic() - began
    assert done.returncode == 0, done.stderr
    told: dict[str, Any] = json.loads(done.stdout)["inside"]
    return told, took_s


def names(told: dict[str, Any]) -> dict[str, tuple[int, int]]:
    return {each["held_by"]: (each["count"], each["nbytes"]) for each in told["answer"]["groups"]}


@pytest.mark.shares_gpu
@pytest.mark.parametrize("agent", [False, True], ids=["unprepared", "agent"])
def test_a_resting_pytorch(start: Start, record: Record, agent: bool) -> None:
    program = start(RESTING, module="torch", agent=agent)
    told, took_s = inside(program)
    found = names(told)
    assert found["__main__: history[0…9]"] == (10, 40 * MIB)
    assert found["__main__: whole"] == (1, 256 * MIB)
    assert any("local 'batch' in work()" in name for name in found)
    assert any(name.startswith("a cycle through a list") for name in found)
    assert "a view of" in next(
        each["note"] for each in told["answer"]["groups"] if each["held_by"] == "__main__: first"
    )
    allocated = int(program.go())
    assert 0 <= allocated - told["answer"]["nbytes"] <= 512 * told["answer"]["arrays"]
    (split,) = told["splits"]
    assert split["charged"] == sum(split[part] for part in ("arrays", "unseen", "cached", "pooled", "rest"))
    record(via=told["via"], stopped_s=told["stopped_s"], took_s=took_s, **figures(told), split=split)


def has_gradients(looks: list[tuple[dict[str, Any], float]]) -> bool:
    return any(".weight.grad" in name for told, _ in looks for name in names(told))


def weights(told: dict[str, Any]) -> tuple[int, int]:
    """How many weights are named, and their bytes.

    A local variable of forward() or of the optimizer's step is nearer than the model, while that runs.
    """
    name = re.compile(r"(layers\[.*|'layer'|'self')\.weight\b(?!\.)|\.py:\d+ local '(device_)?params'")
    found = [
        each
        for each in told["answer"]["groups"]
        if each["shape"] == [2048, 2048] and name.search(each["held_by"])
    ]
    return sum(each["count"] for each in found), sum(each["nbytes"] for each in found)


@pytest.mark.shares_gpu
def test_a_pytorch_that_trains(start: Start, record: Record) -> None:
    """Looks while it trains: it goes on, its names are told, its peak stays."""
    program = start(TRAINING, module="torch")
    looks = [inside(program) for _ in range(2)]
    # Gradients are there in a part of each step only.
    while len(looks) < 25 and not has_gradients(looks):
        looks.append(inside(program))
    for told, _ in looks:
        assert weights(told) == (6, 96 * MIB), told["answer"]["groups"]
        assert names(told).get("__main__: history[0…9]") == (10, 10 * MIB), names(told)
    assert any(name.startswith("__main__: model.layers[") for told, _ in looks for name in names(told))
    assert has_gradients(looks)
    steps, median_s, longest_s, loss, peak = json.loads(program.go())
    assert loss == loss
    record(
        via=looks[0][0]["via"],
        stopped_s=[told["stopped_s"] for told, _ in looks],
        took_s=[took_s for _, took_s in looks],
        longest_stretch_s=max(told["answer"]["longest_s"] for told, _ in looks),
        steps=steps,
        median_step_s=median_s,
        longest_step_s=longest_s,
        peak_bytes=peak,
    )


@pytest.mark.shares_gpu
def test_cupy(start: Start, record: Record) -> None:
    program = start(CUPY, module="cupy")
    told, took_s = inside(program)
    assert names(told)["__main__: xs[0…11]"] == (12, 48 * MIB)
    assert names(told)["__main__: cache['table']"] == (1, 16 * MIB)
    used = int(program.go())
    assert 0 <= used - told["answer"]["frameworks"]["CuPy"] <= 512 * told["answer"]["arrays"]
    record(via=told["via"], took_s=took_s, **figures(told))


@pytest.mark.shares_gpu
def test_jax(start: Start, record: Record) -> None:
    program = start(JAX, module="jax")
    told, took_s = inside(program)
    assert names(told)["__main__: params['dense'][0…3]"] == (4, 16 * MIB)
    assert program.go().startswith("unharmed")
    record(via=told["via"], took_s=took_s, **figures(told))


def figures(told: dict[str, Any]) -> dict[str, Any]:
    return {name: told["answer"][name] for name in ("objects", "arrays", "nbytes", "worked_s", "longest_s")}
