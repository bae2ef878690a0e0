"""``vram trim`` from the outside: every refusal has its words and its number, and is written down."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.needs import require
from tests.patience import PATIENCE_S
from tests.reach.conftest import CACHED, World
from tests.reach.conftest import world as world  # the fixture


@pytest.fixture
def unrelated() -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(["cat"], stdin=subprocess.PIPE)
    yield process
    process.communicate()


def refusal(world: World, *words: object) -> tuple[int, str]:
    done = world.vram("trim", *words)
    assert done.stdout == ""
    return done.returncode, done.stderr


def test_nobody_has_that_pid(world: World, unrelated: subprocess.Popen[bytes]) -> None:
    gone = subprocess.Popen(["true"])
    gone.wait()
    assert refusal(world, gone.pid)[0] == 10


def test_not_on_the_gpu(world: World, unrelated: subprocess.Popen[bytes]) -> None:
    code, said = refusal(world, unrelated.pid)
    assert code == 11
    assert "holds no GPU memory" in said


@pytest.mark.parametrize("words", [("0",), ("-1",), ("x",)])
def test_not_a_pid(world: World, words: tuple[str, ...]) -> None:
    assert refusal(world, *words)[0] == 2


def test_a_part_of_the_system(world: World) -> None:
    code, said = refusal(world, 1)
    assert code in (12, 13)
    assert "pid 1" in said
    assert [line["event"] for line in world.audit()] == ["refused"]


def test_vram_itself_and_who_runs_it(world: World) -> None:
    assert refusal(world, os.getpid())[0] == 13


HOLDER = """
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
int main(void) {
    void *cuda = dlopen("libcuda.so.1", RTLD_NOW), *context;
    uint64_t pointer;
    ((int (*)(unsigned))dlsym(cuda, "cuInit"))(0);
    ((int (*)(void **, int))dlsym(cuda, "cuDevicePrimaryCtxRetain"))(&context, 0);
    ((int (*)(void *))dlsym(cuda, "cuCtxSetCurrent"))(context);
    puts(((int (*)(uint64_t *, size_t))dlsym(cuda, "cuMemAlloc_v2"))(&pointer, 1 << 30) ? "failed" : "ready");
    fflush(stdout);
    return getchar();
}
"""


def steps(world: World, pid: int) -> list[str]:
    """What `vram why PID` suggests."""
    findings = json.loads(world.vram("why", pid, "--json").stdout)["findings"]
    return [way["step"] for each in findings for way in each["remedies"]]


def test_no_python(world: World, tmp_path: Path) -> None:
    """Its pools are trimmed through one of its threads; what needs Python is refused."""
    require("cc")
    (tmp_path / "holder.c").write_text(HOLDER)
    subprocess.run(["cc", "-o", tmp_path / "holder", tmp_path / "holder.c", "-ldl"], check=True)
    holder = world.popen([str(tmp_path / "holder")])
    try:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"ready\n"
        code, said = refusal(world, holder.pid, "--via", "ptrace")
        assert code == 14
        assert "is not a Python process (holder)" in said
        done = world.vram("trim", holder.pid)
        assert (done.returncode, done.stderr) == (0, "")
        assert "driver pools" in done.stdout
        # It has no pool that could be trimmed, as it says itself: then that is no advice.
        assert "trim" not in steps(world, holder.pid)
    finally:
        holder.communicate(b"\n", timeout=PATIENCE_S)


def test_stopped(world: World) -> None:
    subject = world.subject("reading", "agent")
    subject.process.send_signal(signal.SIGSTOP)
    os.waitid(os.P_PID, subject.pid, os.WSTOPPED)
    code, said = refusal(world, subject.pid)
    assert code == 14
    assert f"kill -CONT {subject.pid}" in said


def test_several_at_once_and_the_report(world: World) -> None:
    one, other = world.subject("reading", "agent"), world.subject("reading", "agent")
    done = world.vram("trim", one.pid, other.pid, "--ascii")
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("2.0 GiB freed through its vram agent") == 2
    assert "driver pools" in done.stdout
    assert [line["event"] for line in world.audit()] == ["intend", "outcome"] * 2


def test_one_refused_and_nobody_is_touched(world: World, unrelated: subprocess.Popen[bytes]) -> None:
    subject = world.subject("reading", "agent")
    assert refusal(world, subject.pid, unrelated.pid)[0] == 11
    assert world.audit() == []
    (receipt,) = json.loads(world.vram("trim", subject.pid, "--json").stdout)["trimmed"]
    assert receipt["charged_before"] - receipt["charged_after"] >= CACHED


def test_no_log_no_action(world: World) -> None:
    subject = world.subject("reading", "agent")
    (world.state / "vram").mkdir(mode=0o700)
    (world.state / "vram" / "audit.jsonl").symlink_to("/dev/full")
    code, said = refusal(world, subject.pid)
    assert code == 17
    assert "audit" in said
    (world.state / "vram" / "audit.jsonl").unlink()
    receipt = world.trim(subject.pid)
    assert receipt["charged_before"] - receipt["charged_after"] >= CACHED


def test_what_is_written_down(world: World) -> None:
    subject = world.subject("reading", "agent")
    world.trim(subject.pid)
    intent, outcome = world.audit()
    assert intent["target"]["process"]["pid"] == subject.pid
    assert (intent["action"], intent["via"]) == ("trim", "agent")
    assert outcome["token"] == intent["token"]
    assert intent["charged_before"] - outcome["charged_after"] >= CACHED
