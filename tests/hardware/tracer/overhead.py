"""What recording costs: pairs of calls, kernel launches, torch.empty, a training step; beside other tools.

    python -m tests.hardware.tracer.overhead [--out FILE]

All contenders in one run of less than a minute, interleaved where they share a process: the recorder is
started and stopped in between. Medians of nanoseconds. The result is JSON, on standard output and in FILE.
"""

from __future__ import annotations

import argparse
import ctypes
import glob
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from vram.host.local.system_info import cupti_places

HERE = Path(__file__).parent
RECORDER = HERE.parents[2] / "src" / "vram" / "trace" / "lib" / "libvramtracer.so"
ROUNDS = 5
# Short rounds and many: a host's clock changes within a second by more than what is measured here.
PAIR_ROUNDS = 41
TRAINING_PAIRS = 40
DEPTH = 20
MODES = ("off", "none", "python", "native")

Figures = dict[str, float]


class InProcess:
    """The recorder, started and stopped from inside."""

    def __init__(self, folder: Path) -> None:
        self._library = ctypes.CDLL(str(RECORDER))
        self._library.vram_tracer_error.restype = ctypes.c_char_p
        self._folder, self._count = folder, 0

    @contextmanager
    def recording(self, mode: str) -> Iterator[None]:
        """Record with these stacks; "off": nothing."""
        if mode == "off":
            yield
            return
        self._count += 1
        output = self._folder / f"{os.getpid()}-{self._count}"
        settings = f"output={output}\nstacks={mode}\ncupti={os.environ.get('OVERHEAD_CUPTI', '')}\n"
        code = self._library.vram_tracer_start(settings.encode())
        assert code == 0, self._library.vram_tracer_error().decode()
        try:
            yield
        finally:
            assert self._library.vram_tracer_stop() == 0
            for part in glob.glob(f"{output}*"):
                os.unlink(part)


def deep(depth: int, call: Callable[[], float]) -> float:
    """*call* below so many Python frames."""
    return call() if depth <= 0 else deep(depth - 1, call)


def medians(rounds: dict[str, list[float]]) -> Figures:
    return {name: round(statistics.median(values), 1) for name, values in rounds.items()}


# ---- pairs and launches ----


def measure_pairs(library: str, runtime: str, folder: Path) -> dict[str, Any]:
    pairs = ctypes.CDLL(library)
    counts = {"async_pairs": 2_500, "plain_pairs": 20, "launches": 512}
    for name in counts:
        getattr(pairs, name).restype = ctypes.c_double
    assert pairs.begin(runtime.encode()) == 0, "no runtime, or no GPU"

    def measured(name: str, count: int) -> float:
        return deep(DEPTH - 3, lambda: float(getattr(pairs, name)(ctypes.c_long(count))))

    for name in counts:
        measured(name, 100)
    untouched = {name: round(measured(name, count), 1) for name, count in counts.items()}
    recorder = InProcess(folder)
    found: dict[str, Any] = {}
    for name, count in counts.items():
        rounds: dict[str, list[float]] = {mode: [] for mode in MODES}
        for _ in range(PAIR_ROUNDS):
            for mode in MODES:
                with recorder.recording(mode):
                    measured(name, max(1, count // 25))
                    rounds[mode].append(measured(name, count))
        added = {f"added by {mode}": differences(rounds[mode], rounds["off"]) for mode in MODES[1:]}
        found[name] = medians(rounds | added) | {"before the recorder was loaded": untouched[name]}
    return found


def differences(values: list[float], neighbours: list[float]) -> list[float]:
    """What each round took more than the one beside it."""
    return [value - neighbour for value, neighbour in zip(values, neighbours, strict=True)]


# ---- PyTorch ----


def measure_torch(folder: Path) -> dict[str, Any]:
    import torch

    torch.empty(1024, device="cuda")
    recorder = InProcess(folder)
    return {
        "torch.empty": measure_empty(torch, recorder),
        "training step": measure_training(torch, recorder),
        "version": torch.__version__,
    }


def measure_empty(torch: Any, recorder: InProcess) -> Figures:
    """A block of PyTorch's cache, below 20 frames. With --framework torch we use its history, less of it."""
    import time

    def loop() -> float:
        began = time.perf_counter_ns()
        for _ in range(5000):
            torch.empty(1024, device="cuda")
        return (time.perf_counter_ns() - began) / 5000

    def with_history(context: str) -> float:
        history = torch.cuda.memory._record_memory_history
        history(enabled="all", context=context, stacks="python", max_entries=250_000)
        try:
            return deep(DEPTH, loop)
        finally:
            history(enabled=None)

    rounds: dict[str, list[float]] = {
        name: [] for name in ("off", "recorded", "recorded with --framework torch", "PyTorch's own history")
    }
    deep(DEPTH, loop)
    for _ in range(ROUNDS):
        rounds["off"].append(deep(DEPTH, loop))
        with recorder.recording("python"):
            rounds["recorded"].append(deep(DEPTH, loop))
            rounds["recorded with --framework torch"].append(with_history("alloc"))
        rounds["PyTorch's own history"].append(with_history("all"))
    return medians(rounds)


def measure_training(torch: Any, recorder: InProcess) -> Figures:
    """Steps of some 25 ms on an H200, half of them recorded, in turn."""
    import time

    width = int(os.environ.get("OVERHEAD_WIDTH", "4096"))
    layers = [torch.nn.Linear(width, width, device="cuda", dtype=torch.bfloat16) for _ in range(12)]
    model = torch.nn.Sequential(*(each for layer in layers for each in (layer, torch.nn.GELU())))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    batch = torch.randn(8192, width, device="cuda", dtype=torch.bfloat16)

    def step() -> float:
        began = time.perf_counter_ns()
        loss = model(batch).float().square().mean()
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        torch.cuda.synchronize()
        return float(time.perf_counter_ns() - began)

    for _ in range(10):
        step()
    rounds: dict[str, list[float]] = {"off": [], "recorded": []}
    for number in range(TRAINING_PAIRS):
        # Each way goes first as often as the other; the first step of each is not counted.
        for name in ("off", "recorded") if number % 2 else ("recorded", "off"):
            with recorder.recording("python" if name == "recorded" else "off"):
                step()
                rounds[name].append(statistics.median(step() for _ in range(4)))
    # The GPU's clock drifts by more than what is looked for: neighbours are compared.
    ratios = [after / before for before, after in zip(rounds["off"], rounds["recorded"], strict=True)]
    found = medians(rounds)
    found["ratio"] = round(statistics.median(ratios), 5)
    return found


# ---- all of it ----


def measured_apart(*words: str) -> Any:
    """What a process of its own says; its last line is JSON."""
    line = [sys.executable, "-m", "tests.hardware.tracer.overhead", *words]
    variables = {"OVERHEAD_CUPTI": ":".join(cupti_places("", os.environ)), **os.environ}
    done = subprocess.run(line, env=variables, capture_output=True, text=True, check=False)
    if done.returncode:
        return {"failed": done.stderr[-2000:]}
    return json.loads(done.stdout.splitlines()[-1])


def sanitizer() -> str | None:
    return shutil.which("compute-sanitizer") or shutil.which("compute-sanitizer", path="/usr/local/cuda/bin")


def measure_programs(program: str, runtime: str) -> dict[str, Any]:
    """The same calls without Python: alone, and under compute-sanitizer."""
    lines = {"alone": [program, runtime]}
    tool = sanitizer()
    if tool is not None:
        flags = ["--tool", "memcheck", "--leak-check", "full"]
        lines["compute-sanitizer"] = [tool, *flags, program, runtime]
    found: dict[str, Any] = {}
    for name, line in lines.items():
        done = subprocess.run(line, capture_output=True, text=True, check=False)
        said = [each for each in done.stdout.splitlines() if each.startswith("{")]
        found[name] = json.loads(said[-1]) if said else {"failed": (done.stdout + done.stderr)[-1000:]}
    return found


def find_runtime() -> str:
    """A CUDA runtime to load: PyTorch's or a wheel's, the toolkit's, or whatever the loader finds."""
    folders = [f"{path}/nvidia/*/lib" for path in sys.path] + ["/usr/local/cuda/lib64"]
    found = [path for folder in folders for path in sorted(glob.glob(f"{folder}/libcudart.so.1[23]"))]
    return os.environ.get("OVERHEAD_RUNTIME") or next(iter(found), "libcudart.so.13")


def per_event(figures: dict[str, Any]) -> Figures:
    """What recording adds to one event, in ns: a pair is two."""
    pairs = figures.get("async_pairs", {})
    return {mode: round(pairs[f"added by {mode}"] / 2, 1) for mode in MODES[1:] if mode in pairs}


def everything() -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="vram-overhead-") as name:
        folder = Path(name)
        source, library, program = str(HERE / "pairs.c"), f"{name}/libpairs.so", f"{name}/pairs"
        subprocess.run(["cc", "-O2", "-shared", "-fPIC", source, "-o", library, "-ldl"], check=True)
        subprocess.run(["cc", "-O2", "-DPROGRAM", source, "-o", program, "-ldl"], check=True)
        runtime = find_runtime()
        in_python = measured_apart("pairs", library, runtime, name)
        found = {
            "python, 20 frames": in_python,
            "added to an event": per_event(in_python),
            "program": measure_programs(program, runtime),
        }
        if find_spec("torch") is not None:
            found["PyTorch"] = measured_apart("torch", str(folder))
        return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path)
    parser.add_argument("words", nargs="*", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.words[:1] == ["pairs"]:
        library, runtime, folder = args.words[1:]
        print(json.dumps(measure_pairs(library, runtime, Path(folder))))
    elif args.words[:1] == ["torch"]:
        print(json.dumps(measure_torch(Path(args.words[1]))))
    else:
        text = json.dumps(everything(), indent=1)
        print(text)
        if args.out is not None:
            args.out.write_text(text + "\n")


if __name__ == "__main__":
    main()
