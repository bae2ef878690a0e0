"""The catalogue: every claim is in it once, its page is whole, and its calls exist."""

from __future__ import annotations

import ast
import inspect
import json
import os
import subprocess
import sys

import pytest

from vram.errors import UsageError
from vram.lab import topics
from vram.lab.claim import DEFINED
from vram.lab.topics import CLAIMS, TOPICS, chosen, to_run
from vram.units import GIB
from vram.virtualgpu.demos import PROGRAMS

MODULES = [sys.modules[name] for name in sys.modules if name.startswith(f"{topics.__name__}.")]


def test_every_module_is_a_topic_and_every_claim_has_one() -> None:
    files = {name.removesuffix(".py") for name in os.listdir(os.path.dirname(topics.__file__))}
    assert files - {"__init__", "__pycache__"} == {module.__name__.rpartition(".")[2] for module in MODULES}
    assert set(TOPICS) == {module.TOPIC for module in MODULES}
    assert set(CLAIMS) == set(DEFINED)
    assert len(CLAIMS) >= 70


@pytest.mark.parametrize("name", CLAIMS)
def test_a_page_has_claim_source_method_and_reading(name: str) -> None:
    page = CLAIMS[name].describe()
    assert CLAIMS[name].measure.__name__ == name.replace("-", "_")
    assert 10 < len(page.claim) <= 100
    assert not page.claim.endswith(".")
    assert page.source.startswith(("Folklore", "Question", "Questions"))
    assert page.source.endswith(".")
    assert len(page.method) > 20
    assert len(page.reading) > 20
    assert page.takes_bytes <= 3 * GIB
    assert page.deadline_s <= 60


def test_lines_for_a_framework_are_python() -> None:
    """Most machines lack the framework, and would never run them."""
    found = [
        value
        for module in ("frameworks", "pycuda")
        for name, value in vars(sys.modules[f"{topics.__name__}.{module}"]).items()
        if name.isupper() and isinstance(value, str) and name != "TOPIC"
    ]
    assert len(found) > 12
    for lines in found:
        compile(lines, "<lab>", "exec")


def test_every_operation_that_is_called_exists() -> None:
    """Some claims get no further than a framework or a call that is missing here."""
    with subprocess.Popen(
        [sys.executable, str(PROGRAMS / "worker.py")], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as worker:
        assert worker.stdout is not None
        known = json.loads(worker.stdout.readline())
        assert worker.stdin is not None
        worker.stdin.close()
    called = {
        node.args[0].value
        for module in MODULES
        for node in ast.walk(ast.parse(inspect.getsource(module)))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr in ("call", "end_by", "allocator")
        and node.args
        and isinstance(node.args[0], ast.Constant)
    }
    assert called <= {*known["operations"], *known["child"]}
    unused = set(known["operations"]) - called - {"fork", "spawn", "call_child", "send_descriptor"}
    assert unused == set()
    assert {*known["allocate"], *known["free"]} <= set(known["operations"])


def test_names_may_be_written_with_underscores_and_come_in_order() -> None:
    assert [claim.name for claim in chosen(["zombie", "kill-nine", "KILL_NINE"])] == ["kill-nine", "zombie"]
    assert chosen([]) == tuple(CLAIMS.values())


def test_an_unknown_name_gets_a_suggestion() -> None:
    with pytest.raises(UsageError) as caught:
        chosen(["zombi"])
    assert caught.value.hint == "did you mean zombie?"


def test_what_makes_a_kernel_fail_is_run_only_where_it_was_asked_for() -> None:
    """Each failure is an Xid in the kernel's log, and some monitors drain a node for that."""
    failing = {name for name, each in CLAIMS.items() if _breaks(each.measure)}
    assert {name for name, each in CLAIMS.items() if each.fails_kernels} == failing
    assert len(failing) == 9
    kept, left_out = to_run([], faults=False)
    assert {each.name for each in left_out} == failing
    assert {each.name for each in kept} == CLAIMS.keys() - failing
    assert to_run([], faults=True) == (chosen([]), ())
    assert to_run(["fault-free"], faults=False) == (chosen(["fault-free"]), ())


def _breaks(measure: object) -> bool:
    source = inspect.getsource(measure)  # type: ignore[arg-type]
    return any(word in source for word in ("break_context", "faulty_", "freed_after", "fail_kernel"))
