"""Trim on real hardware, by agent and by ptrace: PyTorch, CuPy, JAX, Numba, idle and at work.

python -m pytest --real-gpu -s tests/hardware/test_trim.py
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest

from tests.hardware.conftest import Record
from tests.hardware.prestart import start_with
from tests.needs import require, skip_without
from tests.search_path import search_path
from vram.units import GIB, MIB

pytestmark = pytest.mark.gpu

PREAMBLE = "import sys\ndef ready(): print('ready', flush=True)\ndef wait(): sys.stdin.readline()\n"

PYTORCH = f"""
import torch
live = torch.arange({GIB // 4}, dtype=torch.int32, device="cuda")
sum_before = int(live.sum(dtype=torch.int64))
torch.mm(torch.ones(512, 512, device="cuda"), torch.ones(512, 512, device="cuda"))
del_me = [torch.empty({GIB}, dtype=torch.uint8, device="cuda") for _ in range(8)]
pinned = torch.empty({256 * MIB}, dtype=torch.uint8, pin_memory=True)
del del_me, pinned
torch.cuda.synchronize()
"""

PYTORCH_AFTER = """
assert int(live.sum(dtype=torch.int64)) == sum_before
again = torch.empty(2 << 30, dtype=torch.uint8, device="cuda").fill_(7)
assert int(again[-1]) == 7
print("unharmed", flush=True)
"""

# Trains until a line comes; the steps are counted, and the last loss must be a number.
TRAINING = """
import threading
model = torch.nn.Linear(1024, 1024, device="cuda")
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
stop = threading.Event()
threading.Thread(target=lambda: (wait(), stop.set()), daemon=True).start()
ready()
while not stop.is_set():
    loss = model(torch.ones(64, 1024, device="cuda")).square().mean()
    optimizer.zero_grad(); loss.backward(); optimizer.step()
assert torch.isfinite(loss), loss
"""

TORCH_SMALL = f"""
import torch
live = torch.arange({MIB}, dtype=torch.int32, device="cuda")
sum_before = int(live.sum(dtype=torch.int64))
del_me = torch.empty({512 * MIB}, dtype=torch.uint8, device="cuda")
del del_me
torch.cuda.synchronize()
"""
TORCH_SMALL_AFTER = """
assert int(live.sum(dtype=torch.int64)) == sum_before
print("unharmed", flush=True)
"""

CUPY_SMALL = f"""
import cupy
live = cupy.arange({MIB}, dtype=cupy.int64)
expected = int(live.sum())
cached = cupy.empty({512 * MIB}, dtype=cupy.uint8)
del cached
cupy.cuda.Device().synchronize()
"""
CUPY_AT_WORK = """
import threading
stop = threading.Event()
threading.Thread(target=lambda: (wait(), stop.set()), daemon=True).start()
ready()
while not stop.is_set():
    assert int((live * 2 - live).sum()) == expected
"""
CUPY_SMALL_AFTER = """
assert int(live.sum()) == expected
print("unharmed", flush=True)
"""

JAX_SMALL = """
import os
os.environ["XLA_PYTHON_CLIENT_PREALLOCATE"] = "false"
import jax, jax.numpy as np
if jax.default_backend() != "gpu":
    print("no gpu", flush=True); sys.exit()
double = jax.jit(lambda x: x * 2)
live = double(np.ones(1 << 20))
live.block_until_ready()
"""
JAX_AT_WORK = """
import threading
stop = threading.Event()
threading.Thread(target=lambda: (wait(), stop.set()), daemon=True).start()
ready()
while not stop.is_set():
    assert float(double(live)[0]) == 4.0
"""
JAX_SMALL_AFTER = """
assert float(double(live).sum()) == 4.0 * (1 << 20)
print("unharmed", flush=True)
"""

AT_REST = "ready(); wait()\n"
KINDS = (
    ("torch", TORCH_SMALL + AT_REST + TORCH_SMALL_AFTER),
    ("torch", TORCH_SMALL + TRAINING + TORCH_SMALL_AFTER),
    ("cupy", CUPY_SMALL + AT_REST + CUPY_SMALL_AFTER),
    ("cupy", CUPY_SMALL + CUPY_AT_WORK + CUPY_SMALL_AFTER),
    ("jax", JAX_SMALL + AT_REST + JAX_SMALL_AFTER),
    ("jax", JAX_SMALL + JAX_AT_WORK + JAX_SMALL_AFTER),
)

# Of the time of the whole command. 0.53 to 0.60 was measured, and 0.66 and 0.70 since it ends sooner.
BACK = 0.8
STOPPED_S = 0.05

Machine = Callable[..., "Program"]


class Watch:
    """Reads the first GPU's memory in use all the time, from now on."""

    def __init__(self, wanted: int) -> None:
        import pynvml

        pynvml.nvmlInit()
        self._gpu = pynvml.nvmlDeviceGetHandleByIndex(0)
        self._read = pynvml.nvmlDeviceGetMemoryInfo
        self._goal = self._read(self._gpu).used - 0.95 * wanted
        self._began = time.monotonic()
        self._back_s: float | None = None
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._done.wait(0.002):
            if self._read(self._gpu).used <= self._goal:
                self._back_s = time.monotonic() - self._began
                return

    def back_s(self) -> float | None:
        """Seconds until so much had come back; None where it has not."""
        self._done.set()
        self._thread.join()
        return self._back_s


class Program:
    """A program on the GPU; ``agent`` lets vram in by itself."""

    def __init__(self, code: str, folder: Path, *, agent: bool, prestarted: bool = False) -> None:
        folders = {"XDG_RUNTIME_DIR": str(folder / "runtime"), "XDG_STATE_HOME": str(folder / "state")}
        self.environment = {**os.environ, "PYTHONPATH": search_path(), **folders}
        start = "import vram; vram.agent()\n" if agent else ""
        code = PREAMBLE + start + dedent(code)
        if prestarted:
            self.process = start_with("torch", code, folders)
        else:
            self.process = subprocess.Popen(
                [sys.executable, "-c", code],
                env=self.environment,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )

    def require_ready(self) -> None:
        heard = self.hear()
        if heard == "no gpu":
            skip_without("frameworks", "the framework finds no GPU")
        assert heard == "ready"

    def hear(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def go(self) -> str:
        """Let it go on; what it says next."""
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        return self.hear()

    def trim(self, *words: str) -> tuple[dict[str, Any], float]:
        """The receipt, and the seconds from the command's start to its end."""
        command = [sys.executable, "-m", "vram", "trim", str(self.process.pid), "--json", *words]
        began = time.monotonic()
        done = subprocess.run(command, env=self.environment, capture_output=True, text=True, timeout=170)
        took_s = time.monotonic() - began
        assert done.returncode == 0, done.stderr
        (receipt,) = json.loads(done.stdout)["trimmed"]
        return receipt, took_s

    def close(self) -> None:
        self.process.kill()
        self.process.communicate()


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Machine]:
    for name in ("runtime", "state"):
        (tmp_path / name).mkdir(mode=0o700)
    started: list[Program] = []

    def begin(code: str, *, needs: str, agent: bool = True, patient: bool = True) -> Program:
        require(needs)
        # Those that start all at once import side by side anyway.
        prestarted = needs == "torch" and patient
        started.append(Program(code, tmp_path, agent=agent, prestarted=prestarted))
        if patient:
            started[-1].require_ready()
        return started[-1]

    yield begin
    for program in started:
        program.close()


def line(receipt: dict[str, Any], name: str, memory: str = "device") -> dict[str, Any]:
    (found,) = [
        each for each in receipt["answer"]["lines"] if (each["name"], each["memory"]) == (name, memory)
    ]
    return dict(found)


def figures(receipt: dict[str, Any], name: str, took_s: float) -> dict[str, Any]:
    told = line(receipt, name)
    return {
        "via": receipt["via"],
        "reclaimable": told["reclaimable"],
        "framework_returned": None if told["held"] is None else told["held"] - told["held_after"],
        "driver_returned": receipt["charged_before"] - receipt["charged_after"],
        "command_s": round(took_s, 3),
        "visit_s": round(receipt["took_s"], 3),
        "stopped_s": receipt["stopped_s"],
        "notes": receipt["answer"]["notes"],
    }


def require_99_percent(found: dict[str, Any]) -> None:
    assert found["framework_returned"] >= 0.99 * found["reclaimable"]
    assert found["driver_returned"] >= 0.99 * found["reclaimable"]


def test_pytorch_by_agent(start: Machine, record: Record) -> None:
    program = start(PYTORCH + "ready(); wait()" + PYTORCH_AFTER, needs="torch")
    receipt, took_s = program.trim()
    found = figures(receipt, "PyTorch", took_s)
    record(**found)
    assert found["framework_returned"] >= 8 * GIB
    require_99_percent(found)
    assert program.go() == "unharmed"


def test_pytorch_at_rest_by_ptrace(start: Machine, record: Record) -> None:
    """8 GiB are back long before the command has ended: on an H200 0.4 to 0.5 s after it was started."""
    program = start(PYTORCH + "ready(); wait()" + PYTORCH_AFTER, needs="torch", agent=False)
    watch = Watch(8 * GIB)
    receipt, took_s = program.trim("--via", "ptrace", "--deadline", "30s")
    back_s = watch.back_s()
    found = figures(receipt, "PyTorch", took_s)
    record(memory_back_s=back_s, **found)
    require_99_percent(found)
    assert found["stopped_s"] < STOPPED_S
    assert back_s is not None
    assert back_s < BACK * took_s
    assert program.go() == "unharmed"


def test_pytorch_in_training_by_ptrace(start: Machine, record: Record) -> None:
    """Its main thread launches kernels all the time: the visit waits for a safe point of its own."""
    program = start(PYTORCH + dedent(TRAINING) + PYTORCH_AFTER, needs="torch", agent=False)
    receipt, took_s = program.trim("--via", "ptrace", "--deadline", "30s")
    found = figures(receipt, "PyTorch", took_s)
    record(**found)
    assert found["driver_returned"] >= 7 * GIB
    assert found["stopped_s"] < STOPPED_S
    assert program.go() == "unharmed"


@pytest.mark.parametrize("part", range(2))
def test_fifty_processes_are_visited_and_none_is_harmed(start: Machine, record: Record, part: int) -> None:
    """25 at a time, idle and at work; what they compute is what it should be."""
    kinds = [(needs, code) for needs, code in KINDS if find_spec(needs) is not None]
    if not kinds:
        skip_without("frameworks", "no framework is installed")
    chosen = [kinds[(part * 25 + number) % len(kinds)] for number in range(25)]
    programs = [start(code, needs=needs, agent=False, patient=False) for needs, code in chosen]
    for program in programs:
        program.require_ready()
    command = [sys.executable, "-m", "vram", "trim", *(str(each.process.pid) for each in programs)]
    command += ["--via", "ptrace", "--deadline", "30s", "--json"]
    environment = programs[0].environment
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=170)
    assert done.returncode == 0, done.stderr
    receipts = json.loads(done.stdout)["trimmed"]
    assert [each["via"] for each in receipts] == ["ptrace"] * len(programs)
    stopped = sorted(each["stopped_s"] for each in receipts)
    told = [program.go() for program in programs]
    record(
        processes=len(programs),
        visits=len(stopped),
        unharmed=told.count("unharmed"),
        stopped_median_s=stopped[len(stopped) // 2],
        stopped_longest_s=stopped[-1],
    )
    assert told == ["unharmed"] * len(programs)


def test_a_kept_exception_goes_when_asked(start: Machine, record: Record) -> None:
    failing = f"""
    import torch
    def step():
        tensor = torch.empty({4 * GIB}, dtype=torch.uint8, device="cuda")
        raise RuntimeError("as it happens")
    try:
        step()
    except RuntimeError as error:
        sys.last_exc = sys.last_value = error
        sys.last_traceback = error.__traceback__
    ready(); wait(); print("unharmed", flush=True)
    """
    program = start(failing, needs="torch")
    kept, _ = program.trim()
    dropped, took_s = program.trim("--tracebacks")
    record(
        kept_returned=kept["charged_before"] - kept["charged_after"], **figures(dropped, "PyTorch", took_s)
    )
    assert kept["charged_before"] - kept["charged_after"] < GIB
    assert dropped["charged_before"] - dropped["charged_after"] >= 4 * GIB
    assert program.go() == "unharmed"


def test_a_graph_being_captured_is_left_alone(start: Machine, record: Record) -> None:
    """The agent's thread sees that the main thread captures; the graph is whole afterwards."""
    capturing = """
    static = torch.zeros(1024, device="cuda")
    graph = torch.cuda.CUDAGraph()
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        static += 1
        ready(); wait()
        static += 1
    graph.replay(); torch.cuda.synchronize()
    assert float(static[0]) == 2.0
    """
    program = start(PYTORCH + dedent(capturing) + PYTORCH_AFTER, needs="torch")
    receipt, _ = program.trim()
    record(notes=receipt["answer"]["notes"])
    assert any("graph is being captured" in note for note in receipt["answer"]["notes"])
    assert program.go() == "unharmed"


CUPY = f"""
import cupy
live = cupy.arange({GIB // 8}, dtype=cupy.int64)
expected = int(live.sum())
cached = [cupy.empty({GIB}, dtype=cupy.uint8) for _ in range(4)]
del cached
cupy.fft.fft(cupy.ones(1 << 20))
ready(); wait()
assert int(live.sum()) == expected
print("unharmed", flush=True)
"""


@pytest.mark.parametrize("via", ["agent", "ptrace"])
def test_cupy(start: Machine, record: Record, via: str) -> None:
    program = start(CUPY, needs="cupy", agent=via == "agent")
    receipt, took_s = program.trim("--via", via, "--deadline", "120s")
    found = figures(receipt, "CuPy", took_s)
    record(**found)
    # CuPy calls the unused parts of chunks free that are partly in use; those cannot be returned.
    assert found["framework_returned"] >= 3 * GIB
    assert program.go() == "unharmed"


def test_jax_says_what_it_cannot(start: Machine, record: Record) -> None:
    program = start(
        """
        import os
        os.environ["XLA_PYTHON_CLIENT_PREALLOCATE"] = "false"
        import jax, jax.numpy as np
        if jax.default_backend() != "gpu":
            print("no gpu", flush=True); sys.exit()
        double = jax.jit(lambda x: x * 2)
        live = double(np.ones(1 << 20))
        big = np.ones(1 << 30); big.block_until_ready(); del big
        ready(); wait()
        assert float(double(live)[0]) == 4.0
        print("unharmed", flush=True)
        """,
        needs="jax",
    )
    receipt, took_s = program.trim()
    record(**figures(receipt, "JAX", took_s))
    assert any("cannot shrink" in note for note in receipt["answer"]["notes"])
    assert program.go() == "unharmed"


def test_numba(start: Machine, record: Record) -> None:
    program = start(
        f"""
        from numba import cuda
        import numpy
        live = cuda.to_device(numpy.arange(1024))
        gone = cuda.device_array({GIB}, dtype=numpy.uint8)
        del gone
        ready(); wait()
        assert live.copy_to_host()[-1] == 1023
        print("unharmed", flush=True)
        """,
        needs="numba",
    )
    receipt, took_s = program.trim()
    found = figures(receipt, "Numba", took_s)
    record(**found)
    require_99_percent(found)
    assert program.go() == "unharmed"


def test_the_drivers_pool(start: Machine, record: Record) -> None:
    """Stream-ordered memory through cuda-bindings: what was freed stays until it is trimmed."""
    program = start(
        f"""
        from cuda.bindings import driver
        def must(result):
            assert result[0] == driver.CUresult.CUDA_SUCCESS, result
            return result[1] if len(result) > 1 else None
        must(driver.cuInit(0))
        context = must(driver.cuDevicePrimaryCtxRetain(0))
        must(driver.cuCtxSetCurrent(context))
        pool = must(driver.cuDeviceGetDefaultMemPool(0))
        keep = driver.CUmemPool_attribute.CU_MEMPOOL_ATTR_RELEASE_THRESHOLD
        must(driver.cuMemPoolSetAttribute(pool, keep, driver.cuuint64_t(2**63)))
        live = must(driver.cuMemAllocAsync({64 * MIB}, 0))
        pointer = must(driver.cuMemAllocAsync({4 * GIB}, 0))
        must(driver.cuMemFreeAsync(pointer, 0))
        must(driver.cuStreamSynchronize(0))
        ready(); wait()
        must(driver.cuMemFreeAsync(live, 0))
        print("unharmed", flush=True)
        """,
        needs="cuda.bindings",
    )
    receipt, took_s = program.trim()
    found = figures(receipt, "driver pools", took_s)
    record(**found)
    # CuPy calls the unused parts of chunks free that are partly in use; those cannot be returned.
    assert found["framework_returned"] >= 3 * GIB
    assert program.go() == "unharmed"
