"""Run programs of this folder, and read the GPU's memory from outside at each of their steps.

    python examples/steps.py after-exit                       on this machine's GPU
    vram virtual -- python examples/steps.py flush/2_zero     on a virtual one
    python examples/steps.py --json all                       every figure, for programs

A program says where it is (``step("allocated")``) and waits; then NVML is read here, by a process that has
no context. The figure is the device memory in use, less what was in use before the program started. Reading
inside the program would change it: `cudaMemGetInfo` makes a context, and a program may not have one yet.

C++ is compiled by nvcc; where there is none, by the C++ compiler with the declarations in declarations/ and
the runtime library of the virtual GPU.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import select
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from datetime import datetime, timezone
from importlib.util import find_spec
from pathlib import Path
from typing import IO

import pynvml
from compiling import EXAMPLES, CannotRun, Toolchain, toolchain

MIB = 1024**2
ANSWER_S = 120.0

PROGRAM = re.compile(r"(?P<number>\d)_\w+?_(?P<version>as_written|entered|fixed)(?:_(?P<module>\w+))?")
LIBRARIES = {"pycuda": "PyCUDA", "cupy": "CuPy", "numba": "Numba"}

# Five threads that fail together write their tracebacks into each other; what they say is counted instead.
MESSAGES = (
    "cuMemAlloc failed: invalid device context",
    "module 'pycuda.driver' has no attribute 'mem_free'",
    "device_allocation in out-of-thread context could not be cleaned up",
)


@dataclass(frozen=True)
class Step:
    """One reading. ``listed_nbytes`` is what NVML's list charges the program, None where it is not listed."""

    step: str
    nbytes: int
    mib: int
    listed_nbytes: int | None


@dataclass
class Result:
    """What one program did; ``runtime`` says how the CUDA runtime was linked, shared or static."""

    program: str
    question: str
    number: int
    version: str
    uses: str
    runtime: str | None = None
    compiled_as: str | None = None
    compile_error: str | None = None
    steps: list[Step] = field(default_factory=list)
    exit_code: int | None = None
    output: list[str] = field(default_factory=list)
    seconds: float = 0.0
    skipped: str | None = None


# ---- which programs there are ----


def sources(suffix: str = "") -> list[Path]:
    """Every program of the articles, as written and fixed; those that end in *suffix*."""
    found = (path for kind in ("cpp", "py") for path in EXAMPLES.glob(f"*/*.{kind}"))
    return sorted(path for path in found if path.name.endswith(suffix) and PROGRAM.fullmatch(path.stem))


def find(word: str) -> list[Path]:
    """The programs whose name below examples/ starts with *word*; "all" are all."""
    wanted = word.removeprefix("examples/").removesuffix("/").removesuffix(".cpp").removesuffix(".py")
    found = [path for path in sources() if wanted == "all" or name(path).startswith(wanted)]
    if not found:
        raise CannotRun(f"no program is called {word!r}; there are: {', '.join(map(name, sources()))}")
    return found


def name(path: Path) -> str:
    """The program's path below examples/, without its ending."""
    return str(path.relative_to(EXAMPLES).with_suffix(""))


def _module(path: Path) -> str | None:
    """The library that a Python program imports; None for C++."""
    parts = PROGRAM.fullmatch(path.stem)
    return None if path.suffix == ".cpp" else (parts and parts["module"]) or "pycuda"


def _blank(path: Path) -> Result:
    parts, module = PROGRAM.fullmatch(path.stem), _module(path)
    assert parts is not None
    uses = LIBRARIES[module] if module else "CUDA runtime"
    return Result(
        name(path), path.parent.name, int(parts["number"]), parts["version"].replace("_", " "), uses
    )


# ---- running ----


class Gpu:
    """The first GPU, read through NVML. Whatever else uses it meanwhile is in the figures too."""

    def __init__(self) -> None:
        pynvml.nvmlInit()
        self._handle = pynvml.nvmlDeviceGetHandleByIndex(0)
        self.name = str(pynvml.nvmlDeviceGetName(self._handle))
        self.uuid = str(pynvml.nvmlDeviceGetUUID(self._handle))
        self.driver = str(pynvml.nvmlSystemGetDriverVersion())

    def used(self) -> int:
        return int(pynvml.nvmlDeviceGetMemoryInfo(self._handle, version=pynvml.nvmlMemory_v2).used)

    def listed(self, pid: int) -> int | None:
        running = pynvml.nvmlDeviceGetComputeRunningProcesses_v3(self._handle)
        return next((each.usedGpuMemory for each in running if each.pid == pid), None)


def run(gpu: Gpu, path: Path, tools: Toolchain) -> Result:
    """Run one program to its end, reading *gpu* at each step."""
    result, module, libraries = _blank(path), _module(path), ""
    if module is None:
        program = tools.build(path)
        result.compiled_as, result.compile_error = program.compiled_as, program.compile_error
        result.runtime, libraries = tools.runtime, tools.libraries
        argv = [str(program.path)]
    elif find_spec(module) is None:
        result.skipped = f"{module} is not installed"
        return result
    else:
        argv = [sys.executable, str(path)]
    began = time.monotonic()
    _follow(gpu, argv, libraries, result)
    result.seconds = round(time.monotonic() - began, 3)
    return result


def run_all(gpu: Gpu, paths: Sequence[Path], toolchains: Sequence[Toolchain]) -> Iterator[Result]:
    """Run C++ once for each of *toolchains*, which compile it while the Python programs run."""
    cpp = [path for path in paths if path.suffix == ".cpp"]
    with ThreadPoolExecutor(1) as background:
        compiled = background.submit(lambda: [tools.build_all(cpp) for tools in toolchains])
        yield from (run(gpu, path, toolchains[0]) for path in paths if path.suffix == ".py")
        compiled.result()
    yield from (run(gpu, path, tools) for tools in toolchains for path in cpp)


def _follow(gpu: Gpu, argv: Sequence[str], libraries: str, result: Result) -> None:
    names, program_names = os.pipe()
    program_answers, answers = os.pipe()
    with (
        tempfile.TemporaryFile() as out,
        tempfile.TemporaryFile() as errors,
        os.fdopen(names, "rb", 0) as steps,
    ):
        before = gpu.used()
        process = subprocess.Popen(
            argv,
            env=_environment(gpu, libraries) | {"EXAMPLE_STEPS": f"{program_names},{program_answers}"},
            pass_fds=(program_names, program_answers),
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=errors,
        )
        os.close(program_names)
        os.close(program_answers)
        try:
            for step in _lines(steps, result.program):
                result.steps.append(_read(gpu, step, before, process.pid))
                with suppress(BrokenPipeError):  # it was killed meanwhile
                    os.write(answers, b".")
            result.exit_code = process.wait(ANSWER_S)
        finally:
            os.close(answers)
            if process.poll() is None:
                process.kill()
                process.wait()
        result.steps.append(_read(gpu, "ended", before, process.pid))
        result.output = _said(_text(out), _text(errors))


def _read(gpu: Gpu, step: str, before: int, pid: int) -> Step:
    nbytes = gpu.used() - before
    return Step(step, nbytes, round(nbytes / MIB), gpu.listed(pid))


def _lines(steps: IO[bytes], program: str) -> Iterator[str]:
    """The steps as they come, until the program has closed its end."""
    unread = b""
    while True:
        ready, _, _ = select.select([steps], [], [], ANSWER_S)
        if not ready:
            raise CannotRun(f"{program} reached no further step in {ANSWER_S:.0f} s")
        part = steps.read(4096)
        if not part:
            return
        *whole, unread = (unread + part).split(b"\n")
        yield from (line.decode() for line in whole)


def _environment(gpu: Gpu, libraries: str) -> dict[str, str]:
    """Ours, with the GPU that is read as the only one.

    The toolkit's *libraries* are searched last, so that a virtual GPU's come first.
    """
    searched = ":".join(filter(None, [os.environ.get("LD_LIBRARY_PATH", ""), libraries]))
    return dict(os.environ) | {"LD_LIBRARY_PATH": searched, "CUDA_VISIBLE_DEVICES": gpu.uuid}


def _text(file: IO[bytes]) -> str:
    file.seek(0)
    return file.read().decode(errors="replace")


def _said(out: str, errors: str) -> list[str]:
    """The lines of both; of tracebacks only what was raised, and how often."""
    counted = [f"{errors.count(message)} × {message}" for message in MESSAGES if message in errors]
    if not counted and "Traceback" in errors:
        counted = errors.strip().splitlines()[-1:]
    return [*out.splitlines(), *(counted or errors.splitlines())]


# ---- the command ----


def record(gpu: Gpu, results: Iterable[Result]) -> str:
    """Every figure as JSON, with the GPU and the driver that it is valid for; a line for each program."""
    head = {
        "gpu": gpu.name,
        "driver": gpu.driver,
        "virtual": "VRAM_VIRTUAL_GPU" in os.environ,
        "date": f"{datetime.now(timezone.utc):%Y-%m-%d}",
    }
    programs = ",\n".join(json.dumps(asdict(result), ensure_ascii=False) for result in results)
    return f'{json.dumps(head)[:-1]}, "programs": [\n{programs}\n]}}'


def shown(result: Result) -> str:
    """A line for each step, and what the program printed."""
    title = f"{result.program} ({result.uses})"
    if result.skipped:
        return f"{title}: skipped, {result.skipped}"
    lines = [title, *([f"    as C++: {result.compile_error}"] if result.compile_error else [])]
    lines += [f"    {step.mib:6} MiB  {step.step}" for step in result.steps]
    lines += [f"    | {line}" for line in result.output]
    return "\n".join([*lines, f"    exit code {result.exit_code}"])


def main() -> int:
    parser = argparse.ArgumentParser(description="Run examples, and read the GPU's memory at each step.")
    parser.add_argument("program", nargs="+", help='how a program\'s name starts, such as flush/2; or "all"')
    parser.add_argument("--json", action="store_true", help="every figure, as JSON")
    parser.add_argument(
        "--cudart", choices=["shared", "static", "both"], default="shared", help="which runtime nvcc links"
    )
    parser.add_argument("--declarations", action="store_true", help="compile without nvcc, also where it is")
    args = parser.parse_args()
    runtimes = ("shared", "static") if args.cudart == "both" else (args.cudart,)
    results = []
    try:
        paths = [path for word in args.program for path in find(word)]
        tools = [toolchain(runtime, declarations=args.declarations) for runtime in runtimes]
        gpu = Gpu()
        for result in run_all(gpu, paths, tools):
            results.append(result)
            if not args.json:
                print(shown(result), flush=True)
    except CannotRun as error:
        print(f"steps.py: {error}", file=sys.stderr)
        return 1
    except pynvml.NVMLError as error:
        print(f"steps.py: {error}; without a GPU, put `vram virtual --` before the command", file=sys.stderr)
        return 1
    if args.json:
        print(record(gpu, results))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
