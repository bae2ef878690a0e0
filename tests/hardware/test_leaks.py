"""PyTorch, CuPy, JAX and Numba leaking in ten ways on real hardware: found, named, freed.

python -m pytest --real-gpu -s tests/hardware/test_leaks.py
"""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from tests.guard.acting import act_out, check
from tests.hardware.conftest import Record
from tests.hardware.prestart import run_with
from tests.needs import needs
from tests.search_path import search_path
from vram.units import GIB, MIB

pytestmark = pytest.mark.gpu

# JAX takes most of the GPU at its start and gives none of it back, unless it is told otherwise.
ENVIRONMENT = {"XLA_PYTHON_CLIENT_PREALLOCATE": "false", "XLA_PYTHON_CLIENT_ALLOCATOR": "platform"}

# As many calls of gc.get_referrers take longer than vram.live() of 100,000 arrays: 50 to 80 calls did here.
SINGLE_SEARCHES = 150

MANY = """
import gc, json, time, torch, vram
whole = torch.empty(100_000, 64, device="cuda")
rows = [whole[number].clone() for number in range(100_000)]
took = []
for _ in range(4):
    began = time.perf_counter()
    found = vram.live()
    took.append(time.perf_counter() - began)
one = []
for number in range(0, 100_000, 5_000):
    began = time.perf_counter()
    gc.get_referrers(rows[number])
    one.append(time.perf_counter() - began)
last = found[1].holder
print(json.dumps([len(found), min(took), min(one), found.was_cut, last.text, last.kind]))
"""

TRAINING = """
import json, sys, torch, vram
model = torch.nn.Sequential(*[torch.nn.Linear(1024, 1024) for _ in range(6)]).cuda()
optimizer = torch.optim.Adam(model.parameters())
history = []
def step():
    out = model(torch.randn(65536, 1024, device="cuda"))
    loss = out.square().mean()
    loss.backward(retain_graph=True)
    optimizer.step()
    history.append(loss)
step()
report = vram.flush()
before = report.after[0].used
names = {each.holder.text: each.note for each in report.live}
history.clear()
after = vram.flush().after[0].used
print(json.dumps([names, before, after, repr(report)]))
"""

# Tensors of every make: those with memory of their own, in others, or none at all.
MAKES = """
import json, torch, vram, warnings
from torch._subclasses.fake_tensor import FakeTensorMode

class Wrapper(torch.Tensor):
    @staticmethod
    def __new__(cls, inner):
        shape, dtype, device = inner.shape, inner.dtype, inner.device
        make = torch.Tensor._make_wrapper_subclass
        return make(cls, shape, dtype=dtype, device=device, dispatch_device=True)
    def __init__(self, inner):
        self.inner = inner
    @classmethod
    def __torch_dispatch__(cls, function, types, args=(), kwargs=None):
        raise SystemError("the class's own code was run")
    __torch_function__ = __torch_dispatch__

def whole():
    return torch.ones(8, 1024, device="cuda")

kept = {"view": whole()[0], "wrapper": Wrapper(whole()), "weight": whole().requires_grad_()}
kept["weight"].sum().backward()
kept["sparse"] = whole().to_sparse()
kept["rows"] = torch.sparse_csr_tensor([0, 1, 2], [0, 1], [1.0, 2.0], device="cuda", check_invariants=False)
with FakeTensorMode():
    kept["fake"] = torch.empty(1024, 1024, device="cuda")

class Mode(torch.overrides.TorchFunctionMode):
    def __torch_function__(self, function, types, args=(), kwargs=None):
        raise SystemError("the mode's own code was run")

warnings.simplefilter("error", UserWarning)
vram.live()
with Mode():
    found = vram.live()
print(json.dumps({each.holder.text.removeprefix("__main__: "): each.nbytes for each in found}))
"""

CAPTURE = """
import json, torch, vram
still = torch.ones(1024, device="cuda")
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    doubled = still * 2
    said = vram.flush().refused
graph.replay()
torch.cuda.synchronize()
print(json.dumps([said, float(doubled.sum())]))
"""

NOTHING = """
import gc, json, time, vram
def fastest_ms(function):
    took = []
    for _ in range(40):
        began = time.perf_counter()
        function()
        took.append(time.perf_counter() - began)
    return min(took) * 1e3  # whatever else the machine does only ever adds
vram.Buffer(1).close()
{loaded}
vram.flush()
print(json.dumps([fastest_ms(vram.flush), fastest_ms(gc.collect), len(gc.get_objects())]))
"""


def told(program: str) -> object:
    if "torch" in program:
        done = run_with("torch", program, {}, timeout_s=120)
    else:
        variables = dict(os.environ, PYTHONPATH=search_path())
        done = subprocess.run(
            [sys.executable, "-c", program], env=variables, capture_output=True, text=True, timeout=120
        )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.shares_gpu
@pytest.mark.parametrize(
    "framework", [pytest.param(each, marks=needs(each)) for each in ("torch", "cupy", "jax", "numba")]
)
def test_ten_ways_to_leak(framework: str, record: Record) -> None:
    seen = act_out(framework, GIB, {**os.environ, **ENVIRONMENT})
    for way, figures in seen.items():
        mib = {key: round(figures[key] / MIB, 1) for key in ("leaked", "flushed", "released")}
        record(framework=framework, way=way, names=figures["names"], took_s=figures["took_s"], **mib)
    check(seen, GIB, slack=96 * MIB)


@pytest.mark.shares_gpu
@needs("torch")
def test_a_hundred_thousand_tensors_are_named_in_the_time_of_a_few_single_searches(record: Record) -> None:
    """Machines of one kind differ by a third: the measure is Python's own search for one array's holders."""
    count, took_s, one_s, was_cut, name, kind = told(MANY)  # type: ignore[misc]
    record(arrays=count, took_s=took_s, one_search_s=one_s, was_cut=was_cut)
    assert (count, was_cut, kind) == (100_001, False, "module")
    assert name.startswith("__main__: rows[")
    assert took_s < SINGLE_SEARCHES * one_s


@pytest.mark.shares_gpu
@needs("torch")
def test_a_list_of_losses_is_named_with_the_graph_that_it_keeps(record: Record) -> None:
    """The loss is four bytes; what it keeps has no Python object at all."""
    names, before, after, report = told(TRAINING)  # type: ignore[misc]
    record(names=names, held_mib=round(before / MIB), after_mib=round(after / MIB), report=report)
    assert "autograd graph" in names["__main__: history[0]"]
    assert "no Python object: likely the autograd graph of __main__: history[0]" in names
    assert any(name.startswith("__main__: model[0].weight") for name in names)
    assert before - after > GIB


@pytest.mark.shares_gpu
@needs("torch")
def test_tensors_of_every_make_are_counted_by_the_memory_that_they_keep(record: Record) -> None:
    """Sparse ones with their indices, gradients before anybody looked; fake ones and wrappers not at all."""
    told_of = told(MAKES)
    record(told=told_of)
    dense, sparse = 4 * 8 * 1024, (4 + 2 * 8) * 8 * 1024
    assert told_of == {
        "kept['view']": dense,
        "kept['view']._base": dense,
        "kept['wrapper'].inner": dense,
        "kept['weight']": dense,
        "kept['weight'].grad": dense,
        "kept['sparse']": sparse,
        "kept['rows']": 2 * 4 + (3 + 2) * 8,
    }


@pytest.mark.shares_gpu
@needs("torch")
def test_a_capture_goes_on_while_flush_refuses(record: Record) -> None:
    said, total = told(CAPTURE)  # type: ignore[misc]
    record(said=said)
    assert "captured" in said
    assert total == 2048


def test_flush_with_nothing_to_do(record: Record) -> None:
    flushed_ms, collected_ms, objects = told(NOTHING.format(loaded=""))  # type: ignore[misc]
    record(flushed_ms=flushed_ms, collected_ms=collected_ms, objects=objects)
    assert flushed_ms < collected_ms + 5


@needs("torch")
def test_flush_with_nothing_to_do_beside_pytorch(record: Record) -> None:
    """Most of it is the garbage collector's own way through PyTorch's objects; ours must cost no more."""
    program = NOTHING.format(loaded="import torch; torch.zeros(1, device='cuda')")
    flushed_ms, collected_ms, objects = told(program)  # type: ignore[misc]
    record(flushed_ms=flushed_ms, collected_ms=collected_ms, objects=objects)
    assert flushed_ms < 2 * collected_ms + 5
