"""Which parts of each framework the virtual GPU carries: run, and kept on virtual-gpu-frameworks.md."""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from tests.patience import PATIENCE_S
from vram.virtualgpu import VirtualGpu

HERE = Path(__file__).parent
PAGE = HERE.parents[2] / "docs" / "reference" / "virtual-gpu-frameworks.md"


VERSION = """
import importlib.metadata, importlib.util, json, sys
try:
    found = importlib.util.find_spec(sys.argv[1]) is not None
except ModuleNotFoundError:
    found = False
names = [name for name in sys.argv[2:] if found]
for name in names:
    try:
        print(json.dumps([importlib.metadata.version(name), "%d.%d" % sys.version_info[:2]]))
        break
    except importlib.metadata.PackageNotFoundError:
        pass
"""


class Framework(NamedTuple):
    title: str
    module: str
    distributions: tuple[str, ...]
    programs: str

    def parts(self) -> dict[str, str]:
        """What is run, and its row of the page: read from the source, since it may not be installed."""
        tree = ast.parse((HERE / self.programs).read_text())
        functions = [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.decorator_list]
        return {function.name: ast.get_docstring(function) or "" for function in functions}

    def version(self, python: str) -> tuple[str, str] | None:
        """Its version and the Python's, or None where *python* does not have it."""
        argv = [python, "-c", VERSION, self.module, *self.distributions]
        done = subprocess.run(argv, capture_output=True, text=True, check=True)
        return tuple(json.loads(done.stdout)) if done.stdout else None


FRAMEWORKS = (
    Framework("PyCUDA", "pycuda", ("pycuda",), "pycuda_parts.py"),
    Framework("numba-cuda", "numba_cuda", ("numba-cuda",), "numba_parts.py"),
    Framework("cuda.core", "cuda.core", ("cuda-core",), "core_parts.py"),
    Framework("cuda.bindings, driver", "cuda.bindings", ("cuda-bindings",), "bindings_driver_parts.py"),
    Framework("cuda.bindings, runtime", "cuda.bindings", ("cuda-bindings",), "bindings_runtime_parts.py"),
    Framework("CuPy", "cupy", ("cupy-cuda13x", "cupy-cuda12x"), "cupy_parts.py"),
    Framework("PyTorch", "torch", ("torch",), "torch_parts.py"),
)


class Outcome(NamedTuple):
    carried: bool
    instead: str  # what the program met, where it is not carried
    told: str  # what the virtual GPU wrote to stderr about NVIDIA's runtime

    def cell(self) -> str:
        return "yes" if self.carried else f"no: {self.instead}"


def run_part(framework: Framework, name: str, python: str = sys.executable) -> Outcome:
    """Run one part in a process of its own, on a virtual GPU of its own."""
    with VirtualGpu.create() as gpu:
        argv = [python, str(HERE / framework.programs), name]
        done = gpu.run(argv, capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=PATIENCE_S)
    told = "".join(line for line in done.stderr.splitlines(keepends=True) if line.startswith("vram: "))
    carried = done.returncode == 0
    return Outcome(carried, "" if carried else _reason(done.stderr, done.returncode), told)


def _reason(stderr: str, code: int) -> str:
    """The exception that ended it, in one cell of a table."""
    lines = [line for line in stderr.splitlines() if re.match(r"[\w.]*(Error|Exception)\b", line)]
    text = lines[-1].strip().rstrip(" -") if lines else f"exit code {code}"
    # The exception's module and the explanation after its name help nobody here.
    text = re.sub(r"^[\w.]*\.(?=\w)", "", text)
    text = re.sub(r"(CUDA_ERROR_\w+): .*", r"\1", text)
    return text.replace("|", "\\|")


# ---- the page: prose, then a section per framework with one table ----


class Section(NamedTuple):
    version: str
    python: str
    rows: dict[str, str]  # part: cell


HEADING = re.compile(r"## (?P<title>.+?) (?P<version>[\d.]+\S*) \(Python (?P<python>[\d.]+)\)$")
ROW = re.compile(r"\| (?P<part>.+) \| (?P<cell>(?:yes|no).*) \|$")


def read_page(text: str) -> dict[str, Section]:
    sections: dict[str, Section] = {}
    current: Section | None = None
    for line in text.splitlines():
        if heading := HEADING.match(line):
            current = Section(heading["version"], heading["python"], {})
            sections[heading["title"]] = current
        elif current and (row := ROW.match(line)):
            current.rows[row["part"]] = row["cell"]
    return sections


def write_page(text: str, sections: dict[str, Section]) -> str:
    """The page with its prose as it is and *sections* in the order of FRAMEWORKS."""
    prose = text.partition("\n## ")[0].rstrip("\n")
    return "\n".join([prose, *_section_lines(sections)]) + "\n"


def _section_lines(sections: dict[str, Section]) -> Iterator[str]:
    for framework in FRAMEWORKS:
        section = sections.get(framework.title)
        if section is None:
            continue
        yield from ("", f"## {framework.title} {section.version} (Python {section.python})", "")
        yield from ("| part | on the virtual GPU |", "|---|---|")
        for part, cell in section.rows.items():
            yield f"| {part} | {cell} |"


def record(python: str, only: Sequence[str] = ()) -> Iterator[tuple[Framework, Section]]:
    """Run every part of every framework that *python* has."""
    for framework in FRAMEWORKS:
        found = None if only and framework.title not in only else framework.version(python)
        if found:
            outcomes = {row: run_part(framework, name, python) for name, row in framework.parts().items()}
            false_alarms = [row for row, outcome in outcomes.items() if outcome.carried and outcome.told]
            assert not false_alarms, false_alarms
            yield framework, Section(*found, {row: outcome.cell() for row, outcome in outcomes.items()})
