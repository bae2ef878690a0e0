"""Libraries that are unloaded, replaced or built again: each frame has the name of what ran there."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.tracer.conftest import Traced
from vram.trace.reader import open_trace
from vram.trace.symbols import function_names, with_names

pytestmark = pytest.mark.native

# Nothing is mapped between the two, so that the second library gets the addresses of the first.
UNLOADING = """
from _ctypes import dlclose
made = context()
where = ctypes.c_uint64()
call = ctypes.cast(cuda.cuMemAlloc_v2, ctypes.c_void_p)
def allocate(path, name, nbytes):
    library = ctypes.CDLL(path)
    function = getattr(library, name)
    check(function(call, ctypes.byref(where), ctypes.c_size_t(nbytes)))
    address = ctypes.cast(function, ctypes.c_void_p).value
    dlclose(library._handle)
    return address
"""


@pytest.fixture
def callers(compile_library: Callable[..., Path]) -> list[Path]:
    """Libraries whose code is the same and whose functions have other names."""
    source = """
        __attribute__((noinline)) static int hidden_NAME(int (*call)(void *, long), void *to, long nbytes) {
            int result = call(to, nbytes);
            __asm__ volatile("" ::: "memory");
            return result;
        }
        int allocate_NAME(int (*call)(void *, long), void *to, long nbytes) {
            int result = hidden_NAME(call, to, nbytes);
            __asm__ volatile("" ::: "memory");
            return result;
        }
    """
    return [
        compile_library(name, source.replace("NAME", name), "-Wl,--build-id=sha1") for name in ("one", "two")
    ]


def test_a_library_that_takes_the_place_of_another_has_its_own_names(
    traced: Traced, callers: list[Path]
) -> None:
    one, two = map(str, callers)
    pairs = 20
    said = traced.run(
        f"{UNLOADING}\n"
        f"for each in range({pairs}):\n"
        f"    addresses = allocate({one!r}, 'allocate_one', 4096), allocate({two!r}, 'allocate_two', 8192)\n"
        "    say(addresses[0] == addresses[1])\n",
        stacks="native",
    )
    assert "True" in said.split()  # usually all of them
    section = traced.section()
    found = [record for record in section.named("ALLOC") if record["kind"] == 0]
    assert len(found) == 2 * pairs
    for record in found:
        path, name = (one, "allocate_one") if record["size"] == 4096 else (two, "allocate_two")
        assert [frame[:2] for frame in record.stack[:2]] == [("", path), (name, path)]
        [hidden] = function_names(path, [record.stack[0][2]]).values()
        assert hidden == name.replace("allocate", "hidden")


def test_a_library_that_was_built_again_has_its_new_names(traced: Traced, callers: list[Path]) -> None:
    """At the same path and address."""
    path = str(callers[0])
    said = traced.run(
        f"{UNLOADING}\n"
        f"addresses = [allocate({path!r}, 'allocate_one', 4096)]\n"
        f"os.replace({str(callers[1])!r}, {path!r})\n"
        f"addresses.append(allocate({path!r}, 'allocate_two', 4096))\n"
        "say(addresses[0] == addresses[1])\n",
        stacks="native",
    )
    assert said.split() == ["True"]
    found = [record for record in traced.section().named("ALLOC") if record["kind"] == 0]
    assert [record.stack[1][0] for record in found] == ["allocate_one", "allocate_two"]
    with open_trace(traced.parts()) as trace:
        view = with_names(trace.view(), trace.builds())
    # Both functions lie at this offset of the file: a name would be wrong for one of them.
    hidden = {stack.frames[0] for stack in view.stacks if stack.frames and stack.frames[0].file == path}
    assert {frame.function for frame in hidden} == {""}


def test_a_library_that_was_built_again_later_gives_no_names(traced: Traced, callers: list[Path]) -> None:
    one, two = map(str, callers)
    traced.run(f"{UNLOADING}\nallocate({one!r}, 'allocate_one', 4096)", stacks="native")

    def hidden() -> str:
        with open_trace(traced.parts()) as trace:
            assert trace.builds()[one] == {build}
            view = with_names(trace.view(), trace.builds())
        [frame] = {stack.frames[0] for stack in view.stacks if stack.frames and stack.frames[0].file == one}
        return frame.function

    notes = subprocess.run(["readelf", "-n", one], capture_output=True, text=True, check=True).stdout
    build = notes.partition("Build ID: ")[2].split()[0]
    assert hidden() == "hidden_one"
    os.replace(two, one)
    assert hidden() == ""


def test_libraries_that_come_and_go_do_not_fill_the_trace(traced: Traced, callers: list[Path]) -> None:
    """What did not move is found again: it is defined once, whatever is unloaded meanwhile."""
    one = str(callers[0])
    program = f"{UNLOADING}\nfor each in range(COUNT): allocate({one!r}, 'allocate_one', 4096)\n"
    counts = []
    for count in (2, 50):
        traced.run(program.replace("COUNT", str(count)), stacks="native")
        section = traced.section()
        assert len([record for record in section.named("ALLOC") if record["kind"] == 0]) == count
        counts.append([len(section.named(name)) for name in ("PLACE", "NODE")])
        traced.parts()[0].unlink()
    assert counts[0] == counts[1]
