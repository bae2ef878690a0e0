"""What runs inside other people's programs: real libraries release memory, none is started, nothing stays."""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.needs import require, require_python
from tests.patience import PATIENCE_S
from tests.reach import soak
from tests.reach.conftest import SOURCES, World
from vram.payloads import delivery
from vram.payloads.pace import Pace
from vram.reach import payload
from vram.units import MIB

PAYLOADS = SOURCES / "vram" / "payloads"
PAYLOAD = PAYLOADS / "trim"
IMPORTS_AST = re.compile(r"^\s*(import|from) ast\b", re.MULTILINE)
CARRIED = [
    PAYLOADS / "delivery.py",
    PAYLOADS / "pace.py",
    PAYLOADS / "inside.py",
    *(path for name in ("trim", "arrays") for path in sorted((PAYLOADS / name).rglob("*.py"))),
]

ANSWER = """
import json, os, sys
request = {"verb": sys.argv[1], "pid": os.getpid(), "until": float("inf"), "collect": len(sys.argv) > 3}
print(json.dumps(eval(open(sys.argv[2]).read(), {"request": request})))
"""

NOT_IMPORTED = """
import sys
before = set(sys.modules)
(note,) = eval(sys.stdin.read())["notes"]
added = {"typing", "collections.abc"} & (set(sys.modules) - before)
# Later releases of 3.13 only give a loaded module that name.
print(note, sorted(name for name in added if sys.modules[name] is not sys.modules["_collections_abc"]))
"""


def run(
    world: World, tmp_path: Path, program: str, verb: str = "trim", *, collect: bool = False
) -> dict[str, Any]:
    """Run *program*, then the payload as it travels, in a Python that has no vram."""
    text = payload.expression("trim", "answered", {"verb": "HERE"})
    (tmp_path / "payload").write_text(text.replace("{'verb': 'HERE'}", "request"))
    environment = {**world.environment, "PYTHONPATH": str(SOURCES / "vram" / "virtualgpu" / "programs")}
    done = subprocess.run(
        [sys.executable, "-c", program + ANSWER, verb, str(tmp_path / "payload"), *["collect"] * collect],
        env=environment,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )
    assert done.returncode == 0, done.stderr
    answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return answer


def held(answer: dict[str, Any], name: str) -> dict[str, Any]:
    (found,) = [line for line in answer["lines"] if line["name"] == name]
    return dict(found)


def test_a_program_without_cuda_is_not_given_any(world: World, tmp_path: Path) -> None:
    program = "import sys, atexit\natexit.register(lambda: print(sorted(sys.modules), file=sys.stderr))\n"
    answer = run(world, tmp_path, program)
    assert answer["lines"] == []
    assert answer["notes"] == []


def test_no_context_is_made_on_devices_that_sleep(world: World, tmp_path: Path) -> None:
    program = """
import driver, ctypes
driver.call("cuInit", 0)
import atexit
def asleep():
    flags, active = ctypes.c_uint(), ctypes.c_int()
    driver.call("cuDevicePrimaryCtxGetState", 0, ctypes.byref(flags), ctypes.byref(active))
    assert active.value == 0
"""
    answer = run(world, tmp_path, program + "\natexit.register(asleep)\n")
    assert answer["lines"] == []


def test_it_leaves_no_module_behind(world: World, tmp_path: Path) -> None:
    program = """
import sys, atexit, os, types
def clean():
    if any("vram" in name for name in sys.modules): os._exit(9)
atexit.register(clean)
"""
    assert run(world, tmp_path, program)["status"] == "done"


def test_the_drivers_pool_and_what_is_live_in_it(world: World, tmp_path: Path) -> None:
    program = f"""
import driver
driver.context()
driver.keep_everything(driver.pool())
live = driver.alloc_async({64 * MIB})
driver.free_async(driver.alloc_async({512 * MIB}))
"""
    measured = held(run(world, tmp_path, program, "measure"), "driver pools")
    assert (measured["reclaimable"], measured["held_after"]) == (512 * MIB, measured["held"])
    trimmed = held(run(world, tmp_path, program), "driver pools")
    assert trimmed["held_after"] == trimmed["held"] - 512 * MIB


def test_cuda_core_pools_of_the_programs_own(world: World, tmp_path: Path) -> None:
    require("cuda.core")
    program = f"""
from cuda.core import Device, DeviceMemoryResource, DeviceMemoryResourceOptions
device = Device(); device.set_current()
options = DeviceMemoryResourceOptions(max_size=0)
pool = DeviceMemoryResource(device, options)
import driver, ctypes
driver.call("cuMemPoolSetAttribute", ctypes.c_void_p(int(pool.handle)), 4,
    ctypes.byref(ctypes.c_uint64(2**64 - 1)))
stream = device.create_stream()
buffer = pool.allocate({256 * MIB}, stream=stream)
buffer.close(stream); stream.sync()
"""
    line = held(run(world, tmp_path, program), "cuda.core")
    assert line["reclaimable"] == 256 * MIB
    assert line["held_after"] == line["held"] - 256 * MIB


def test_numbas_put_off_frees(world: World, tmp_path: Path) -> None:
    require("numba.cuda")
    program = f"""
from numba import cuda
import numpy
array = cuda.device_array({128 * MIB}, dtype=numpy.uint8)
del array
"""
    line = held(run(world, tmp_path, program), "Numba")
    assert line["reclaimable"] == 128 * MIB
    assert line["held_after"] == 0


def test_garbage_in_cycles_goes_first_where_that_is_asked_for(world: World, tmp_path: Path) -> None:
    """A tensor in a reference cycle is freed by the collection, into the pool, which is trimmed after it.

    All threads of the program wait for a collection, so that there is none otherwise.
    """
    program = f"""
import driver, gc
gc.disable()
driver.context()
driver.keep_everything(driver.pool())
class Tensor:
    def __init__(self): self.pointer, self.me = driver.alloc_async({128 * MIB}), self
    def __del__(self): driver.free_async(self.pointer)
Tensor()
"""
    answer = run(world, tmp_path, program, collect=True)
    line = held(answer, "driver pools")
    assert (line["reclaimable"], line["held_after"]) == (0, line["held"] - 128 * MIB)
    assert answer["collected"] >= 1
    answer = run(world, tmp_path, program)
    line = held(answer, "driver pools")
    assert (line["held_after"], answer["collected"]) == (line["held"], 0)


def test_a_library_that_fails_is_a_note_and_no_harm(world: World, tmp_path: Path) -> None:
    """Whoever shadows a framework's name, or a version that nobody foresaw, must not break the program."""
    program = "import sys, types\nsys.modules['cupy'] = types.ModuleType('cupy')\n"
    answer = run(world, tmp_path, program)
    assert answer["status"] == "done"
    assert any(note.startswith("CuPy: AttributeError") for note in answer["notes"])


class TestCalledOff:
    def answer(self, **changes: Any) -> dict[str, Any]:
        wanted = {"pid": os.getpid(), "until": float("inf"), **changes}
        return delivery.answered(lambda request, _: {"status": "done", "asked": request}, wanted)

    def test_in_another_process(self) -> None:
        assert self.answer(pid=1) == {
            "status": "cancelled",
            "notes": ["this is not the process that was meant"],
        }

    def test_too_late(self) -> None:
        assert self.answer(until=time.monotonic() - 1)["notes"] == ["it came too late"]

    def test_not_otherwise(self) -> None:
        told = self.answer(verb="measure")
        assert (told["status"], told["asked"]["verb"]) == ("done", "measure")
        assert told["waited_s"] >= 0

    def test_a_payload_that_fails_says_so(self) -> None:
        def broken(request: dict[str, Any], _: Pace) -> dict[str, Any]:
            raise KeyError(request["pid"])

        told = delivery.answered(broken, {"pid": os.getpid(), "until": float("inf")})
        assert (told["status"], told["notes"]) == ("failed", [f"KeyError: {os.getpid()}"])


@pytest.mark.parametrize(
    "told", [{}, {"a": []}, {"status": "done", "b": [1, "é\n", {"c": None}], "d": {"e": [2]}}]
)
def test_an_answer_in_pieces_is_json_on_one_line(told: dict[str, Any]) -> None:
    body = b"".join(delivery.portions(delivery.encode(told)))
    assert json.loads(body) == told
    assert body.index(b"\n") == len(body) - 1


@pytest.mark.parametrize("path", CARRIED, ids=lambda path: str(path.relative_to(PAYLOADS)))
def test_older_pythons_can_read_it(path: Path) -> None:
    """Programs on Python 3.8 are trimmed too; what is under TYPE_CHECKING never runs."""
    tree = ast.parse(path.read_text(), feature_version=(3, 8))
    imported = {
        name.name.partition(".")[0]
        for node in ast.walk(tree)
        if isinstance(node, ast.Import)
        for name in node.names
    }
    imported |= {
        (node.module or "").partition(".")[0]
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and not node.level
    }
    if path.name == "record.py":  # in vram's own process alone
        imported.discard("msgspec")
    assert imported <= set(sys.stdlib_module_names)


@pytest.mark.parametrize("version", soak.VERSIONS)
@pytest.mark.parametrize("name", ["trim", "inside", "tracer.control"])
def test_what_only_annotations_need_is_not_imported(name: str, version: str) -> None:
    """Two threads that import collections.abc for the first time at once may both fail (Python 3.13.0)."""
    loaded = payload.expression(name, "answered", {"pid": 0, "until": 0})
    said = subprocess.run(
        [require_python(version), "-ISc", NOT_IMPORTED],
        input=loaded,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )
    assert (said.stdout, said.stderr) == ("this is not the process that was meant []\n", "")


def test_every_module_travels_after_what_it_imports() -> None:
    names = [name for name, _ in payload.sources("trim")]
    assert (names[0], names[-1]) == ("", ".trim")
    assert names[1:3] == [".pace", ".delivery"]
    outside = {".libcuda", ".tracked_objects"}
    assert set(names[3:]) == {*outside, *(_dotted(path) for path in PAYLOAD.rglob("*.py"))}
    assert names.index(".trim.driver") < names.index(".trim.framework") < names.index(".trim.frameworks")


def test_many_threads_read_the_sources_once() -> None:
    """In Python 3.11 threads that parse at once may fail: `vram free --caches` has 32."""
    payload._sources.cache_clear()
    together = threading.Barrier(8)

    def read() -> object:
        together.wait()
        return payload.sources("inside")

    with ThreadPoolExecutor(8) as pool:
        found = [pool.submit(read) for _ in range(8)]
    assert len({id(each.result()) for each in found}) == 1


def test_no_payload_uses_ast() -> None:
    """It would fail threads of the program that use it, in Python 3.11."""
    users = [path.name for path in PAYLOADS.rglob("*.py") if IMPORTS_AST.search(path.read_text())]
    assert users == []


def test_a_payload_may_use_another_ones_modules() -> None:
    names = [name for name, _ in payload.sources("inside")]
    assert names.index(".trim.driver") < names.index(".arrays.heap.walk") < names.index(".inside")


def _dotted(path: Path) -> str:
    parts = path.relative_to(PAYLOAD.parent).with_suffix("").parts
    parts = parts[:-1] if parts[-1] == "__init__" else parts
    return "".join(f".{part}" for part in parts)


def test_whoever_cannot_tell_whether_it_objects_keeps_everything_as_it_is() -> None:
    """A broken answer about a running capture must not be taken for permission."""
    from vram.payloads import trim
    from vram.payloads.trim.framework import Framework

    class Doubtful(Framework):
        name = "doubtful"
        released = False

        def objections(self) -> Iterator[str]:
            raise RuntimeError("captures cannot be asked about")

        def release(self) -> Iterator[str]:
            self.released = True
            yield ""

    doubtful, notes = Doubtful(), list[str]()
    assert trim.release_all([doubtful], notes, forget=True, collect=True) == ([], 0)
    assert notes == ["doubtful: RuntimeError: captures cannot be asked about"]
    assert not doubtful.released


COUNTED = """
import importlib, json, sys, types
for name, folder in (("payloads", sys.argv[1]), ("payloads.trim", sys.argv[1] + "/trim")):
    sys.modules[name] = types.ModuleType(name)
    sys.modules[name].__path__ = [folder]
framework = importlib.import_module("payloads.trim.framework")
module = types.ModuleType("graphs")
exec("class graph:\\n default = None\\n def __enter__(self): return self", module.__dict__)
sys.modules["graphs"] = sys.modules["graphs.again"] = module
told = [framework.may_have_instances(module, "graph")]
capture = module.graph()
told.append(framework.may_have_instances(module, "graph"))
del capture
told.append(framework.may_have_instances(module, "graph"))
class Derived(module.graph): pass
told.append(framework.may_have_instances(module, "graph"))
print(json.dumps(told))
"""


@pytest.mark.parametrize("minor", [9, 10, 11, 12, 13, 14, 15], ids=lambda minor: f"3.{minor}")
def test_a_class_without_instances_is_known_without_a_search(minor: int) -> None:
    """A graph that is being captured has such an instance: one that exists must never be overlooked."""
    python = require_python(f"3.{minor}")
    done = subprocess.run([python, "-c", COUNTED, str(PAYLOADS)], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == [False, True, False, True]
