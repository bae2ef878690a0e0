"""Programs that work all the time are parked and brought back again and again, and none of them notices.

Each of them has threads that ask for events and streams without a pause: what kills a program whose memory
is away. ``VRAM_CYCLES=50`` makes it as long as the promise is.

python -m pytest --real-gpu -s tests/hardware/test_parked_programs.py
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from importlib.util import find_spec
from pathlib import Path
from textwrap import dedent

import pytest

from tests.hardware.conftest import Record
from tests.hardware.test_park import Subject
from tests.needs import skip_without
from vram.errors import CannotPark
from vram.host.local import LocalHost
from vram.model.parking import Parked
from vram.reclaim.parking import Parking
from vram.reclaim.preflight import identify_parkable, read_driver

pytestmark = pytest.mark.gpu

CYCLES = int(os.environ.get("VRAM_CYCLES", "3"))

# What a program is made of: `unit()` does some work and says whether its result was right.
AROUND = """
import sys, threading, time
done, wrong = [0], [0]
def work():
    while True:
        wrong[0] += not unit()
        done[0] += 1
def again(call, pause_s):
    def loop():
        while True:
            call()
            time.sleep(pause_s)
    threading.Thread(target=loop, daemon=True).start()
def answer():
    threading.Thread(target=work, daemon=True).start()
    while not done[0]:
        time.sleep(0.01)
    print("ready", flush=True)
    while sys.stdin.readline():
        print(done[0], wrong[0], flush=True)
"""
TORCH_THREADS = """
event = torch.cuda.Event()
event.record()
again(event.query, 0.0)
again(torch.cuda.synchronize, 0.001)
again(torch.cuda.mem_get_info, 0.01)
answer()
"""
PROGRAMS = {
    "PyTorch, training": """
import torch
data, wanted = torch.randn(256, 512, device="cuda"), torch.randn(256, 512, device="cuda")
def trained():
    torch.manual_seed(0)
    model = torch.nn.Sequential(*[torch.nn.Linear(512, 512) for _ in range(4)]).cuda()
    optimizer = torch.optim.Adam(model.parameters())
    for _ in range(20):
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(model(data), wanted).backward()
        optimizer.step()
    return [float(each.detach().double().sum()) for each in model.parameters()]
reference = trained()
def unit():
    return trained() == reference
"""
    + TORCH_THREADS,
    "PyTorch, idle": """
import torch
kept = torch.arange(1 << 26, device="cuda")
reference = int(kept.sum())
def unit():
    time.sleep(0.05)
    return int(kept.sum()) == reference
"""
    + TORCH_THREADS,
    "PyTorch, DataLoader with pin_memory": """
import torch
class Numbers(torch.utils.data.Dataset):
    def __len__(self):
        return 64
    def __getitem__(self, at):
        return torch.full((1 << 16,), at, dtype=torch.int64)
# Forked before there are other threads: a fork among them may hang, parked or not.
batches = torch.utils.data.DataLoader(
    Numbers(), batch_size=8, num_workers=2, pin_memory=True, persistent_workers=True
)
next(iter(batches))
def unit():
    sums = [int(batch.cuda(non_blocking=True).sum()) for batch in batches]
    return sums == [sum(range(first, first + 8)) << 16 for first in range(0, 64, 8)]
"""
    + TORCH_THREADS,
    "CuPy": """
import cupy
a = cupy.arange(1 << 22, dtype=cupy.int64)
stream, event = cupy.cuda.Stream(non_blocking=True), cupy.cuda.Event()
event.record(stream)
reference = int((a * 3).sum())
def unit():
    return int((a * 3).sum()) == reference
again(lambda: event.done, 0.0)
again(stream.synchronize, 0.001)
answer()
""",
    "JAX": """
import os
os.environ["XLA_PYTHON_CLIENT_PREALLOCATE"] = "false"
import jax, jax.numpy as jnp
a = jnp.arange(1 << 20, dtype=jnp.float32)
step = jax.jit(lambda a: (a * 2 + 1).sum())
reference = float(step(a))
def unit():
    return float(step(a)) == reference
again(lambda: step(a).block_until_ready(), 0.001)
answer()
""",
}
MODULES = {"PyTorch": "torch", "CuPy": "cupy", "JAX": "jax"}


@pytest.fixture
def subjects() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


@pytest.mark.shares_gpu
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_python_program_works_on(
    name: str, subjects: ExitStack, record: Record, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    module = next(module for begins, module in MODULES.items() if name.startswith(begins))
    if find_spec(module) is None:
        skip_without("torch" if module == "torch" else "frameworks", f"{module} is not installed")
    subject = Subject(AROUND + PROGRAMS[name])
    subjects.callback(subject.close)
    record(program=name, **cycled(subject, monkeypatch, tmp_path))


@pytest.mark.shares_gpu
def test_a_cpp_program_works_on(
    subjects: ExitStack, record: Record, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    if shutil.which("nvcc") is None:
        skip_without("nvcc", "nvcc is not installed")
    source, program = Path(__file__).parent / "working" / "adder.cu", tmp_path / "adder"
    subprocess.run(["nvcc", "-o", program, source], check=True, capture_output=True)
    subject = Subject.__new__(Subject)
    subject.process = subprocess.Popen(
        [program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    subjects.callback(subject.close)
    assert subject.hear() == "ready"
    record(program="C++", **cycled(subject, monkeypatch, tmp_path))


def cycled(subject: Subject, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> dict[str, object]:
    """Park and bring back; after each the program must have gone on, with right results only."""
    state = tmp_path / "state"
    state.mkdir(mode=0o700)
    monkeypatch.setenv("XDG_STATE_HOME", str(state))
    host, chance = LocalHost(), random.Random(25)
    there, back, nbytes = [], [], 0
    with Parking(host) as parking:
        for _ in range(CYCLES):
            target, shares = identify_parkable(host, read_driver(host), subject.pid)
            moved = parking.park(target, shares)
            there.append(moved.took_s)
            nbytes = moved.entry.nbytes
            assert process_state(subject.pid) == "T"
            time.sleep(chance.uniform(0.0, 0.05))
            back.append(parking.unpark(moved.entry).took_s)
            went_on(subject)
    return {
        "cycles": CYCLES,
        "mib": nbytes >> 20,
        "park_s": round(statistics.median(there), 3),
        "unpark_s": round(statistics.median(back), 3),
        "slowest_s": round(max(there + back), 3),
        "said": subject.asked(),
    }


def went_on(subject: Subject) -> None:
    before, wrong = numbers(subject)
    deadline = time.monotonic() + 30
    while numbers(subject)[0] < before + 2:
        assert time.monotonic() < deadline, "it does not work on"
        time.sleep(0.01)
    assert wrong == numbers(subject)[1] == 0


def numbers(subject: Subject) -> tuple[int, int]:
    said = subject.asked()
    assert said, f"the program has ended: {subject.process.poll()}"
    done, wrong = map(int, said.split())
    return done, wrong


def process_state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0]


KILLED = """
import sys
from vram.host.local import LocalHost
from vram.reclaim.parking import Parking
from vram.reclaim.preflight import identify_parkable, read_driver
host, pid = LocalHost(), int(sys.argv[2])
parking = Parking(host)
parking.worker.state(pid, 10.0)
print(parking.worker._child.pid, flush=True)
sys.stdin.readline()
if sys.argv[1] == "park":
    parking.park(*identify_parkable(host, read_driver(host), pid))
else:
    parking.unpark(parking.journal.find(pid))
"""


@pytest.mark.shares_gpu
def test_whoever_moves_a_program_is_killed_and_it_works_on(
    subjects: ExitStack, record: Record, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Both vram and its checkpoint worker, at a random moment; the next vram finishes or undoes the move."""
    if find_spec("cupy") is None:
        skip_without("frameworks", "CuPy is not installed")
    subject = Subject(AROUND + PROGRAMS["CuPy"])
    subjects.callback(subject.close)
    state = tmp_path / "state"
    state.mkdir(mode=0o700)
    monkeypatch.setenv("XDG_STATE_HOME", str(state))
    chance, found = random.Random(25), dict[str, int]()
    for _ in range(2 * CYCLES):
        for verb in ("park", "unpark"):
            found_now = killed_while(verb, subject.pid, chance)
            found[f"{verb}: {found_now}"] = found.get(f"{verb}: {found_now}", 0) + 1
            if found_now != "parked":
                break
        went_on(subject)
    record(program="CuPy", kills=sum(found.values()), found=found)


def killed_while(verb: str, pid: int, chance: random.Random) -> str:
    """Kill the movers in the midst; what the next vram finds. An unfinished unpark is finished here."""
    vram = subprocess.Popen(
        [sys.executable, "-c", dedent(KILLED), verb, str(pid)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert vram.stdout is not None
    assert vram.stdin is not None
    worker = os.pidfd_open(int(vram.stdout.readline()))
    vram.stdin.write("\n")
    vram.stdin.flush()
    time.sleep(chance.uniform(0.0, 1.0 if verb == "park" else 0.5))
    signal.pidfd_send_signal(worker, signal.SIGKILL)
    vram.kill()
    vram.communicate()
    os.close(worker)
    with Parking(LocalHost()) as parking:
        (recovered,) = parking.recover() or (None,)
        if recovered is None or recovered.done != "parked":
            return recovered.done if recovered else "running"
        if verb == "park":
            return "parked"
        parking.unpark(entry_of(parking, pid))
        return "still parked"


def entry_of(parking: Parking, pid: int) -> Parked:
    entry = parking.journal.find(pid)
    assert entry is not None
    return entry


@pytest.mark.shares_gpu
def test_a_program_in_which_a_profiler_was_is_refused_with_the_reason(
    subjects: ExitStack, record: Record, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """CUPTI leaves its mark for good: also when nobody is subscribed any more."""
    if find_spec("torch") is None:
        skip_without("torch", "PyTorch is not installed")
    code = """
import torch
from torch.profiler import ProfilerActivity, profile
kept = torch.ones(1 << 20, device="cuda")
with profile(activities=[ProfilerActivity.CUDA]):
    kept.sum().item()
def unit():
    time.sleep(0.01)
    return int(kept.sum()) == 1 << 20
answer()
"""
    subject = Subject(AROUND + code)
    subjects.callback(subject.close)
    state = tmp_path / "state"
    state.mkdir(mode=0o700)
    monkeypatch.setenv("XDG_STATE_HOME", str(state))
    host = LocalHost()
    with Parking(host) as parking, pytest.raises(CannotPark) as refused:
        parking.park(*identify_parkable(host, read_driver(host), subject.pid))
    record(said=str(refused.value), hint=refused.value.hint)
    assert "CUPTI" in str(refused.value)
    assert process_state(subject.pid) != "T"
    went_on(subject)
