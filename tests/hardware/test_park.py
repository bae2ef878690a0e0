"""Park, unpark and borrow on real hardware, contents compared, times kept.

python -m pytest --real-gpu -s tests/hardware/test_park.py
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from importlib.util import find_spec
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest

from tests.hardware.conftest import Record
from tests.hardware.prestart import start_with
from tests.needs import skip_without
from tests.search_path import search_path
from vram.units import GIB, MIB

pytestmark = pytest.mark.gpu

MAX_ADDED_S = 0.1  # whatever its size
LEFT_BYTES = 4 * MIB  # of others: NVML's readers come and go

PLAIN = """
    import ctypes, os, sys
    cuda, nbytes = ctypes.CDLL("libcuda.so.1"), int(sys.argv[1])
    context, pointer = ctypes.c_void_p(), ctypes.c_uint64()
    def must(code): assert code == 0, code
    must(cuda.cuInit(0))
    must(cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0))
    must(cuda.cuCtxSetCurrent(context))
    must(cuda.cuMemAlloc_v2(ctypes.byref(pointer), ctypes.c_size_t(nbytes)))
    part = 64 << 20
    written, found = ctypes.create_string_buffer(os.urandom(part), part), ctypes.create_string_buffer(part)
    def pieces():  # random bytes, and in front of each piece where it lies
        for at in range(0, nbytes, part):
            written[:8] = at.to_bytes(8, "little")
            yield ctypes.c_uint64(pointer.value + at)
    for place in pieces():
        must(cuda.cuMemcpyHtoD_v2(place, written, ctypes.c_size_t(part)))
    def compared():
        for place in pieces():
            must(cuda.cuMemcpyDtoH_v2(found, place, ctypes.c_size_t(part)))
            if ctypes.CDLL(None).memcmp(found, written, ctypes.c_size_t(part)):
                return f"other bytes at {place.value - pointer.value}"
        return "every byte as written"
    print(compared(), flush=True)
    while sys.stdin.readline():
        print(compared(), flush=True)
"""
MANAGED = """
    import ctypes, sys
    cuda = ctypes.CDLL("libcuda.so.1")
    context, pointer = ctypes.c_void_p(), ctypes.c_uint64()
    def must(code): assert code == 0, code
    must(cuda.cuInit(0))
    must(cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0))
    must(cuda.cuCtxSetCurrent(context))
    must(cuda.cuMemAllocManaged(ctypes.byref(pointer), ctypes.c_size_t(64 << 20), ctypes.c_uint(1)))
    ctypes.memset(pointer.value, 0x5A, 64 << 20)
    print("ready", flush=True)
    while sys.stdin.readline():
        must(cuda.cuCtxSynchronize())
        print(ctypes.string_at(pointer.value, 64 << 20) == b"Z" * (64 << 20), flush=True)
"""
GRAPH_TRAINING = """
    import sys, torch
    torch.manual_seed(0)
    model = torch.nn.Sequential(*[torch.nn.Linear(2048, 2048) for _ in range(16)]).cuda()
    optimizer = torch.optim.Adam(model.parameters(), capturable=True)
    data, wanted = torch.randn(64, 2048, device="cuda"), torch.randn(64, 2048, device="cuda")
    def step():
        optimizer.zero_grad(set_to_none=False)
        loss = torch.nn.functional.mse_loss(model(data), wanted)
        loss.backward()
        optimizer.step()
        return loss
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        loss = step()
    print("ready", flush=True)
    while line := sys.stdin.readline():
        for _ in range(int(line)):
            graph.replay()
        torch.cuda.synchronize()
        weights = sum(float(each.double().sum()) for each in model.parameters())
        print(float(loss), weights, flush=True)
"""
RAW = """
    import ctypes, json, sys, time
    cuda, pid, took = ctypes.CDLL("libcuda.so.1"), int(sys.argv[1]), {}
    assert cuda.cuInit(0) == 0
    for word in ("Lock", "Checkpoint", "Restore", "Unlock"):
        arguments = (ctypes.c_uint64 * 8)(10_000) if word == "Lock" else None
        began = time.monotonic()
        assert getattr(cuda, "cuCheckpointProcess" + word)(pid, arguments) == 0, word
        took[word] = time.monotonic() - began
    print(json.dumps(took))
"""


class Subject:
    """A program on the GPU that answers one line for each that it is sent."""

    def __init__(self, code: str, *arguments: object) -> None:
        if code is GRAPH_TRAINING:
            self.process = start_with("torch", dedent(code), {})
        else:
            self.process = subprocess.Popen(
                [sys.executable, "-c", dedent(code), *map(str, arguments)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
        self.first = self.hear()
        assert self.first, "the program ended early"

    @property
    def pid(self) -> int:
        return self.process.pid

    def hear(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def send(self, line: str = "") -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()

    def asked(self, line: str = "") -> str:
        self.send(line)
        return self.hear()

    def close(self) -> None:
        self.process.kill()
        self.process.communicate()


class Machine:
    """This machine, with a state folder of the test's own."""

    def __init__(self, state: Path) -> None:
        self.environment = {**os.environ, "PYTHONPATH": search_path(), "XDG_STATE_HOME": str(state)}

    def vram(self, *words: object) -> subprocess.CompletedProcess[str]:
        argv = [sys.executable, "-m", "vram", *map(str, words)]
        return subprocess.run(argv, env=self.environment, capture_output=True, text=True, timeout=300)

    def moved(self, verb: str, pid: int) -> dict[str, Any]:
        """Park or unpark; what the command says of it, and how long all of it took."""
        began = time.monotonic()
        done = self.vram(verb, "--json", pid)
        wall_s = time.monotonic() - began
        assert done.returncode == 0, done.stdout + done.stderr
        (line,) = json.loads(done.stdout)["moved"]
        return {"wall_s": round(wall_s, 3), **line}

    def used(self) -> int:
        import pynvml

        pynvml.nvmlInit()
        try:
            handle = pynvml.nvmlDeviceGetHandleByIndex(0)
            return int(pynvml.nvmlDeviceGetMemoryInfo(handle, version=pynvml.nvmlMemory_v2).used)
        finally:
            pynvml.nvmlShutdown()


Start = Callable[..., Subject]


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    state = tmp_path / "state"
    state.mkdir(mode=0o700)
    return Machine(state)


@pytest.fixture
def start() -> Iterator[Start]:
    with ExitStack() as stack:

        def begin(code: str, *arguments: object) -> Subject:
            subject = Subject(code, *arguments)
            stack.callback(subject.close)
            return subject

        yield begin


@pytest.mark.parametrize("gib", [1, 4])
def test_a_plain_process_comes_back_byte_for_byte(
    machine: Machine, start: Start, record: Record, gib: int
) -> None:
    """Nothing is left on the GPU, and vram adds next to nothing to the driver's own calls."""
    idle = machine.used()
    subject = start(PLAIN, gib * GIB)
    raw_calls = subprocess.run(
        [sys.executable, "-c", dedent(RAW), str(subject.pid)], capture_output=True, text=True, check=True
    )
    raw = json.loads(raw_calls.stdout)
    there = machine.moved("park", subject.pid)
    left = machine.used() - idle
    subject.send()
    back = machine.moved("unpark", subject.pid)
    assert subject.hear() == subject.first, "the call that waited goes on and finds the same bytes"
    record(gib=gib, raw_s=raw, park=there, unpark=back, left_mib=round(left / MIB, 1))
    assert left <= LEFT_BYTES
    for move in (there, back):
        added_s = move["took_s"] - move["driver_s"]
        assert added_s <= MAX_ADDED_S


def test_training_through_a_cuda_graph_goes_on_as_if_nothing_had_been(
    machine: Machine, start: Start, record: Record
) -> None:
    """Two trainings alike; one is parked in the middle. Their weights stay the same."""
    if find_spec("torch") is None:
        skip_without("torch", "PyTorch is not installed")
    undisturbed, parked = start(GRAPH_TRAINING), start(GRAPH_TRAINING)
    assert undisturbed.asked("20") == parked.asked("20")
    there = machine.moved("park", parked.pid)
    parked.send("20")
    back = machine.moved("unpark", parked.pid)
    after = parked.hear()
    record(park=there, unpark=back, loss_and_weights=after)
    assert after == undisturbed.asked("20")


def test_managed_memory_is_refused_and_the_process_runs_on(
    machine: Machine, start: Start, record: Record
) -> None:
    """Seen by its mappings, untouched; and by the driver itself, unlocked."""
    subject = start(MANAGED)
    for words in (("park",), ("park", "--anyway")):
        done = machine.vram(*words, subject.pid)
        record(words=words, exit_code=done.returncode, said=done.stderr.strip())
        assert (done.returncode, "managed memory" in done.stderr) == (20, True)
        assert subject.asked() == "True"
    assert machine.vram("park").stdout == "Nothing is parked.\n"


def test_vram_killed_in_the_middle_leaves_the_process_running(
    machine: Machine, start: Start, record: Record
) -> None:
    """The checkpoint worker lets the driver finish, brings the process back and leaves."""
    subject = start(PLAIN, 2 * GIB)
    argv = [sys.executable, "-m", "vram", "park", str(subject.pid)]
    vram = subprocess.Popen(
        argv, env=machine.environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    journal = Path(machine.environment["XDG_STATE_HOME"]) / "vram"
    while not list(journal.glob("parked-*")):
        assert vram.poll() is None
    vram.kill()
    vram.wait()
    began = time.monotonic()
    assert subject.asked() == subject.first
    record(back_after_s=round(time.monotonic() - began, 2))
    while json.loads(machine.vram("park", "--json").stdout)["parked"]:
        assert time.monotonic() - began < 60


def test_a_parked_process_without_a_journal_entry_is_found_and_brought_back(
    machine: Machine, start: Start, record: Record
) -> None:
    """It has closed its device files, and only the driver knows of it."""
    subject = start(PLAIN, 2 * GIB)
    machine.moved("park", subject.pid)
    for file in (Path(machine.environment["XDG_STATE_HOME"]) / "vram").glob("parked-*"):
        file.unlink()
    began = time.monotonic()
    lines = json.loads(machine.vram("park", "--json").stdout)["parked"]
    record(listed_after_s=round(time.monotonic() - began, 2))
    assert [(line["pid"], line["state"], line["known_from"]) for line in lines] == [
        (subject.pid, "parked", "driver")
    ]
    machine.moved("unpark", subject.pid)
    assert subject.asked() == subject.first


def test_a_training_run_borrows_the_room_of_an_idle_process(
    machine: Machine, start: Start, record: Record
) -> None:
    if find_spec("torch") is None:
        skip_without("torch", "PyTorch is not installed")
    lender = start(PLAIN, 4 * GIB)
    import pynvml

    pynvml.nvmlInit()
    handle = pynvml.nvmlDeviceGetHandleByIndex(0)
    free = int(pynvml.nvmlDeviceGetMemoryInfo(handle, version=pynvml.nvmlMemory_v2).free)
    pynvml.nvmlShutdown()
    train = dedent(f"""
        import torch
        ballast = torch.empty({free - GIB // 2}, dtype=torch.uint8, device="cuda")
        model = torch.nn.Linear(4096, 4096).cuda()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(20):
            optimizer.zero_grad()
            loss = model(torch.randn(256, 4096, device="cuda")).square().mean()
            loss.backward()
            optimizer.step()
        torch.cuda.synchronize()
        raise SystemExit(7)
    """)
    argv = [sys.executable, "-c", train]
    began = time.monotonic()
    done = machine.vram("borrow", f"{free + 2 * GIB}B", "--pid", lender.pid, "--", *argv)
    record(wall_s=round(time.monotonic() - began, 2), exit_code=done.returncode, said=done.stderr.strip())
    assert done.returncode == 7, done.stderr
    assert f"parked pid {lender.pid}" in done.stderr
    assert lender.asked() == lender.first
    assert machine.vram("park").stdout == "Nothing is parked.\n"
