"""`vram watch`: real processes on a virtual GPU, each change once, as text, as JSON and for a hook."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import random
import re
import select
import shlex
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import msgspec
import pytest
from jsonschema import validate

from tests.cli.conftest import PROGRAM, Run
from tests.patience import PATIENCE_S, until, until_ended, until_gone, until_readable
from tests.virtualgpu.conftest import HOLDER as HOLDING
from tests.virtualgpu.conftest import Hold
from tests.virtualgpu.conftest import hold as hold  # a fixture
from tests.virtualgpu.programs import Program
from vram.model.change import GROUPS
from vram.report.schema import shipped
from vram.units import GIB, MIB
from vram.virtualgpu import VirtualGpu
from vram.virtualgpu.demos import DemoProgram

HOLDER = """
    cuda.start()
    held = [cuda.alloc(512 * MIB)]
    cuda.tell("ready")
    while True:
        held.append(cuda.alloc(int(cuda.heard())))
        cuda.tell("grown")
"""


class Watch:
    """A running `vram watch`, read line by line."""

    def __init__(self, gpu: VirtualGpu, *words: str, **options: Any) -> None:
        self.process = gpu.popen(
            [*PROGRAM, "watch", *words],
            **{"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **options},
        )
        self._unread = b""

    def line(self) -> str:
        """The next line; fails where none comes, and where the watch has ended."""
        assert self.process.stdout is not None
        while b"\n" not in self._unread:
            until_readable(self.process.stdout, lambda: self._unread)
            part = os.read(self.process.stdout.fileno(), 65536)
            assert part, f"it ended: {self.process.communicate()}"
            self._unread += part
        line, _, self._unread = self._unread.partition(b"\n")
        return line.decode()

    def record(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.line())
        return found

    def until(self, event: str, **values: object) -> dict[str, Any]:
        """The next change with this event and these values; others may come before it."""
        while True:
            found = self.record()
            if found["event"] == event and all(found[name] == value for name, value in values.items()):
                return found

    def line_with(self, words: str) -> str:
        while words not in (line := self.line()):
            pass
        return line

    def end(self, number: int = signal.SIGINT) -> tuple[int, str, str]:
        """End it by a signal; its exit code and what else it wrote."""
        self.process.send_signal(number)
        out, err = self.process.communicate(timeout=PATIENCE_S)
        return self.process.returncode, (self._unread + (out or b"")).decode(), (err or b"").decode()

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.communicate()


Start = Callable[..., Watch]


@pytest.fixture
def watch() -> Iterator[Start]:
    """Start a watch that reads often; it is ended after the test."""
    with ExitStack() as stack:

        def start(gpu: VirtualGpu, *words: str, **options: Any) -> Watch:
            started = Watch(gpu, "--every", "0.1s", *words, **options)
            stack.callback(started.close)
            return started

        yield start


def watched_json(watch: Start, gpu: VirtualGpu, *words: str, **options: Any) -> Watch:
    """A watch whose state has been read."""
    started = watch(gpu, "--json", *words, **options)
    assert started.record()["record"] == "state"
    return started


@pytest.fixture
def holder(virtual_gpu: VirtualGpu) -> Iterator[Program]:
    with Program(virtual_gpu, HOLDER) as program:
        assert program.told() == "ready"
        yield program


# ---- what is reported ----


def test_the_first_line_is_the_state_and_every_line_fits_the_schema(
    watch: Start, virtual_gpu: VirtualGpu, holder: Program
) -> None:
    schema = json.loads(shipped("watch").read_bytes())
    watching = watch(virtual_gpu, "--json")
    state = watching.record()
    validate(state, schema)
    assert (state["record"], state["schema"]) == ("state", 1)
    assert [(gpu["index"], gpu["processes"]) for gpu in state["gpus"]] == [(0, 1)]
    assert [(each["event"], each["pid"]) for each in state["present"]] == [("started", holder.pid)]
    holder.kill()
    ended = watching.record()
    validate(ended, schema)
    assert ended["event"] == "ended"


def test_an_importer_takes_over_the_charge_of_its_exporter(watch: Start, virtual_gpu: VirtualGpu) -> None:
    with DemoProgram(virtual_gpu, "imports.ipc", 4 * GIB) as demo:
        demo.go()
        watching = watched_json(watch, virtual_gpu)
        shown = watch(virtual_gpu)
        shown.line_with("free of")
        demo.go()
        exporter, importer = demo.pids["exporter"], demo.pids["importer"]
        grew = watching.until("grew", pid=importer)
        assert (grew["nbytes"], grew["taken_over_from"]) == (4 * GIB, exporter)
        validate(grew, json.loads(shipped("watch").read_bytes()))
        assert f"likely memory shared with pid {exporter}, which ended" in shown.line_with("grew")


def test_a_process_starts_grows_and_ends(watch: Start, virtual_gpu: VirtualGpu) -> None:
    watching = watched_json(watch, virtual_gpu)
    with Program(virtual_gpu, HOLDER) as program:
        assert program.told() == "ready"
        watching.until("started", pid=program.pid, gpus=[0])
        program.go(str(4 * GIB))
        assert program.told() == "grown"
        grown = watching.until("grew", pid=program.pid)
        while grown["held_bytes"] < 4 * GIB + 512 * MIB:
            grown = watching.until("grew", pid=program.pid)
    ended = watching.until("ended", pid=program.pid)
    assert ended["nbytes"] == -grown["held_bytes"]
    assert watching.until("freed")["nbytes"] >= 4 * GIB
    assert watching.end() == (130, "", "")


def test_a_slow_leak_is_reported_when_it_adds_up(
    watch: Start, virtual_gpu: VirtualGpu, holder: Program
) -> None:
    watching = watched_json(watch, virtual_gpu, "--min", "100MiB")
    for _ in range(5):
        holder.go(str(20 * MIB))
        assert holder.told() == "grown"
    assert watching.until("grew", pid=holder.pid)["nbytes"] >= 100 * MIB


def test_a_fork_leaves_a_ghost_and_the_ghost_ends(watch: Start, virtual_gpu: VirtualGpu) -> None:
    watching = watched_json(watch, virtual_gpu)
    with DemoProgram(virtual_gpu, "forks.orphan", "4GiB") as program:
        watching.until("started", pid=program.pids["parent"])
        program.kill("parent")
        watching.until("ended", pid=program.pids["parent"])
        ghost = watching.record()
        assert (ghost["event"], ghost["code"], ghost["confidence"]) == ("ghost", "VR101", "fact")
        assert (ghost["pid"], ghost["dead_pid"]) == (program.pids["child"], program.pids["parent"])
        assert ghost["nbytes"] > 4 * GIB
        program.kill("child")
        assert watching.record()["event"] == "ghost-gone"
        freed = watching.record()
        assert (freed["event"], freed["nbytes"] > 4 * GIB) == ("freed", True)
    assert watching.end() == (130, "", "")


def test_an_exported_allocation_is_a_ghost_of_its_own_kind(watch: Start, virtual_gpu: VirtualGpu) -> None:
    watching = watched_json(watch, virtual_gpu, "--events", "ghosts")
    with DemoProgram(virtual_gpu, "exports.handle", "4GiB") as program:
        program.go()
        program.go()
        ghost = watching.until("ghost")
        assert (ghost["code"], ghost["pid"]) == ("VR103", program.pids["holder"])
        program.go()
        assert watching.record()["event"] == "ghost-gone"


def test_a_ghost_that_is_there_already_is_part_of_the_state(watch: Start, virtual_gpu: VirtualGpu) -> None:
    with DemoProgram(virtual_gpu, "forks.orphan", "4GiB") as program:
        program.kill("parent")
        watching = watch(virtual_gpu)
        assert " GPU 0 state " in watching.line()
        told = watching.line()
        assert f"ghost: pid {program.pids['child']} holds memory of dead pid {program.pids['parent']}" in told
        program.kill("child")
        assert " ghost-gone " in watching.line()


def test_a_process_stops_and_continues(watch: Start, virtual_gpu: VirtualGpu, holder: Program) -> None:
    watching = watched_json(watch, virtual_gpu)
    os.kill(holder.pid, signal.SIGSTOP)
    assert watching.record()["event"] == "stopped"
    os.kill(holder.pid, signal.SIGCONT)
    continued = watching.record()
    assert (continued["event"], continued["pid"], continued["gpus"]) == ("continued", holder.pid, [0])


def test_parking_is_told_as_parking(
    watch: Start, virtual_gpu: VirtualGpu, holder: Program, tmp_path: Path
) -> None:
    homes = {"XDG_STATE_HOME": str(tmp_path), "XDG_RUNTIME_DIR": str(tmp_path)}
    environment = {**os.environ, **homes}
    watching = watched_json(watch, virtual_gpu, env=environment)

    def vram(*words: object) -> None:
        done = virtual_gpu.run(
            [*PROGRAM, *map(str, words)], env=environment, capture_output=True, timeout=PATIENCE_S
        )
        assert done.returncode == 0, done.stderr

    vram("park", holder.pid)
    seen = [watching.record()]
    while seen[-1]["event"] != "freed":
        seen.append(watching.record())
    vram("unpark", holder.pid)
    while seen[-1]["event"] != "unparked":
        seen.append(watching.record())
    # vram's own checkpoint worker may be seen for a moment, in a context of its own.
    of_holder = [each["event"] for each in seen if each["pid"] == holder.pid]
    assert of_holder == ["parked", "unparked"]
    assert watching.end()[0] == 130


def test_a_lost_gpu_and_a_lost_driver_are_states_and_end_nothing(
    watch: Start, virtual_gpu: VirtualGpu, holder: Program
) -> None:
    watching = watched_json(watch, virtual_gpu)
    virtual_gpu.fail("nvmlDeviceGet*", gpu=0, error="GPU_IS_LOST")
    lost = watching.record()
    assert (lost["event"], lost["gpus"], lost["code"]) == ("gpu-lost", [0], "nvml-15")
    virtual_gpu.clear_faults()
    assert watching.record()["event"] == "gpu-back"
    virtual_gpu.fail("nvmlInit*", error="DRIVER_NOT_LOADED")
    assert watching.record()["event"] == "driver-gone"
    virtual_gpu.clear_faults()
    assert watching.record()["event"] == "driver-back"
    holder.kill()
    assert watching.record()["event"] == "ended"


def test_without_a_driver_it_waits_for_one(watch: Start, virtual_gpu: VirtualGpu, holder: Program) -> None:
    virtual_gpu.fail("nvmlInit*", error="DRIVER_NOT_LOADED")
    watching = watch(virtual_gpu, "--json")
    assert [each["event"] for each in watching.record()["present"]] == ["driver-gone"]
    virtual_gpu.clear_faults()
    assert [watching.record()["event"] for _ in range(3)] == ["driver-back", "gpu-added", "started"]


def test_lists_that_are_denied_end_nothing(watch: Start, virtual_gpu: VirtualGpu, holder: Program) -> None:
    watching = watched_json(watch, virtual_gpu)
    virtual_gpu.fail("nvmlDeviceGetComputeRunningProcesses*", error="NO_PERMISSION")
    assert watching.record()["event"] == "gpu-unreadable"
    virtual_gpu.clear_faults()
    assert watching.record()["event"] == "gpu-back"
    assert watching.end() == (130, "", "")


FAULTS: dict[str, dict[str, Any]] = {
    "nvmlInit*": {"error": "DRIVER_NOT_LOADED"},
    "nvmlDeviceGetCount*": {"error": "UNKNOWN"},
    "nvmlDeviceGetHandleByIndex*": {"error": "GPU_IS_LOST"},
    "nvmlDeviceGetMemoryInfo*": {"hang": True},
    "nvmlDeviceGetComputeRunningProcesses*": {"error": "NO_PERMISSION"},
    "nvmlDeviceGetGraphicsRunningProcesses*": {"error": "UNKNOWN"},
}


def test_whatever_fails_nothing_is_reported_as_ended_that_lives(
    watch: Start, virtual_gpu: VirtualGpu, holder: Program
) -> None:
    with DemoProgram(virtual_gpu, "forks.orphan", "4GiB") as program:
        program.kill("parent")
        watching = watched_json(watch, virtual_gpu, "--deadline", "1s")
        seen = []
        for function, fault in FAULTS.items():
            virtual_gpu.fail(function, **fault)
            seen.append(watching.record())
            assert seen[-1]["event"] in ("driver-gone", "gpu-lost", "gpu-unreadable"), function
            virtual_gpu.clear_faults()
            while not seen[-1]["event"].endswith("-back"):
                seen.append(watching.record())
        holder.kill()
        assert watching.until("ended")["pid"] == holder.pid
    assert {each["event"] for each in seen} <= {*GROUPS["gpus"], *GROUPS["driver"]}
    assert "gpu-removed" not in {each["event"] for each in seen}
    assert watching.until("ghost-gone")["pid"] == program.pids["child"]


def test_only_the_chosen_gpu_is_watched(watch: Start, two_virtual_gpus: VirtualGpu, hold: Hold) -> None:
    watching = watched_json(watch, two_virtual_gpus, "--gpu", "1")
    other = hold(two_virtual_gpus, GIB, 0)
    chosen = hold(two_virtual_gpus, GIB, 1)
    assert watching.until("started")["pid"] == chosen.pid
    other.end()
    chosen.end()
    assert watching.until("ended")["pid"] == chosen.pid


def test_a_mig_device_is_watched_alone(watch: Start, native_libraries: Path) -> None:
    with VirtualGpu.create(mig="3g.71gb,2g.35gb") as gpu:
        of_one, of_both = (watched_json(watch, gpu, "--gpu", word) for word in ("0:1", "0:0,0:1"))
        # Without a choice of its own a process runs on the first device.
        with Program(gpu, HOLDER) as program:
            assert program.told() == "ready"
            assert of_both.until("started", pid=program.pid)["mig"] == "0:0"
        assert of_both.until("ended", pid=program.pid)["mig"] == "0:0"
        assert of_one.end() == (130, "", "")


def test_only_the_chosen_events_are_reported_and_counted(
    watch: Start, virtual_gpu: VirtualGpu, holder: Program
) -> None:
    watching = watched_json(watch, virtual_gpu, "--events", "freed", "--count", "1")
    holder.kill()
    assert watching.record()["event"] == "freed"
    assert watching.process.wait(PATIENCE_S) == 0


# ---- hostile text ----

HOSTILE = (
    b"\x1b]0;owned\x07\x1b[2J\r\n2026-01-01T00:00:00Z GPU 0 ghost\xff\xe2\x80\xae"
    b"$(touch owned)`touch owned`;touch owned"
)


def test_what_a_process_calls_itself_steers_nothing(
    watch: Start, virtual_gpu: VirtualGpu, tmp_path: Path
) -> None:
    seen = tmp_path / "seen"
    script = tmp_path / "hook.sh"
    script.write_text(f'#!/bin/sh\nprintf "%s\\n" "$VRAM_COMMAND" >> {seen}\ncat >> {seen}.json\n')
    script.chmod(0o755)
    text = watch(virtual_gpu, "--exec", str(script), cwd=tmp_path)
    assert "state" in text.line()
    watching = watched_json(watch, virtual_gpu)
    hostile = virtual_gpu.popen(
        [sys.executable, str(HOLDING), str(GIB), "0", HOSTILE], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    started = watching.line()
    line = text.line()
    for shown in (started, line):
        assert str(hostile.pid) in shown
        assert shown.isprintable()
    # The line of text has the first words of such a command: how many depends on the clone's path.
    assert (json.loads(started)["event"], "touch owned" in started) == ("started", True)
    hostile.communicate()
    assert " ended " in text.line_with(" ended ")
    received = tmp_path / "seen.json"
    until(lambda: received.exists() and len(received.read_text().splitlines()) >= 2)
    commands = seen.read_text().splitlines()
    assert commands[0] == commands[1]
    assert "$(touch owned)" in commands[0]
    assert commands[0].isprintable()
    events = [json.loads(line)["event"] for line in received.read_text().splitlines()]
    assert (events[0], "ended" in events) == ("started", True)
    assert not (tmp_path / "owned").exists()


# ---- hooks ----

HOOK = """\
#!{python}
import json, os, sys
change = json.load(sys.stdin)
told = {{name: value for name, value in os.environ.items() if name.startswith("VRAM_")}}
with open({path!r}, "a") as file:
    file.write(json.dumps([change, told, os.getpid()]) + "\\n")
{rest}
"""


class Hook:
    """A script for --exec that writes down what it got."""

    def __init__(self, folder: Path, rest: str = "") -> None:
        self.seen = folder / "seen.jsonl"
        self.path = folder / "hook with blanks.py"
        self.path.write_text(HOOK.format(python=sys.executable, path=str(self.seen), rest=rest))
        self.path.chmod(0o755)

    @property
    def word(self) -> str:
        return shlex.quote(str(self.path))

    def calls(self, count: int) -> list[Any]:
        def lines() -> list[str]:
            # What comes after the last newline is still being written.
            return self.seen.read_text().rpartition("\n")[0].splitlines() if self.seen.exists() else []

        until(lambda: len(lines()) >= count)
        return [json.loads(line) for line in lines()]


def test_a_hook_gets_every_change(watch: Start, virtual_gpu: VirtualGpu, tmp_path: Path) -> None:
    hook = Hook(tmp_path)
    watching = watched_json(watch, virtual_gpu, "--exec", hook.word)
    with DemoProgram(virtual_gpu, "forks.orphan", "4GiB") as program:
        reported = [watching.until("started")]
        program.kill("parent")
        reported += [watching.record() for _ in range(2)]
        program.kill("child")
        reported += [watching.record() for _ in range(2)]
    calls = hook.calls(5)
    assert [change["event"] for change in reported] == ["started", "ended", "ghost", "ghost-gone", "freed"]
    assert [change for change, _, _ in calls[-5:]][1:] == reported[1:]
    told = calls[2][1]
    ghost = reported[2]
    assert told["VRAM_EVENT"] == "ghost"
    assert (told["VRAM_GPU"], told["VRAM_CODE"]) == ("0", "VR101")
    assert int(told["VRAM_PID"]) == ghost["pid"]
    assert int(told["VRAM_DEAD_PID"]) == ghost["dead_pid"]
    assert int(told["VRAM_NBYTES"]) == ghost["nbytes"]
    assert told["VRAM_COMMAND"] == ghost["command"]
    assert watching.end() == (130, "", "")


def test_what_a_hook_prints_is_not_among_the_changes(
    watch: Start, virtual_gpu: VirtualGpu, holder: Program, tmp_path: Path
) -> None:
    hook = Hook(tmp_path, "print('from the hook', flush=True)")
    watching = watched_json(watch, virtual_gpu, "--exec", hook.word, "--count", "1")
    holder.kill()
    assert watching.record()["event"] == "ended"
    out, err = watching.process.communicate(timeout=PATIENCE_S)
    assert (watching.process.returncode, out, err) == (0, b"", b"from the hook\n")


def test_a_failing_hook_is_reported_and_the_watch_goes_on(
    watch: Start, virtual_gpu: VirtualGpu, holder: Program, tmp_path: Path
) -> None:
    hook = Hook(tmp_path, "sys.exit(7)")
    watching = watched_json(watch, virtual_gpu, "--exec", hook.word)
    holder.kill()
    assert watching.record()["event"] == "ended"
    assert watching.record()["event"] == "freed"
    hook.calls(2)
    code, _, err = watching.end()
    assert code == 130
    assert "failed on 'ended': exit code 7" in err


def test_a_hook_that_hangs_is_ended_with_all_that_it_started(
    watch: Start, virtual_gpu: VirtualGpu, holder: Program, tmp_path: Path
) -> None:
    pid_file = tmp_path / "pid"
    # A shell: it must have started its child before it is ended.
    script = f"trap '' TERM; sleep 600 & echo $! >{shlex.quote(str(pid_file))}; wait"
    hook = shlex.join(["sh", "-c", script])
    watching = watched_json(
        watch, virtual_gpu, "--exec", hook, "--exec-timeout", "3s", "--events", "ended", "--count", "1"
    )
    # Reading goes on while the hook hangs; after the last change its end is waited for.
    holder.kill()
    assert watching.record()["event"] == "ended"
    _, err = watching.process.communicate(timeout=PATIENCE_S)
    assert watching.process.returncode == 0
    assert b"took longer than 3 s on 'ended'" in err
    until_gone(int(pid_file.read_text()))


def test_the_watch_reads_on_while_a_hook_hangs(
    watch: Start, virtual_gpu: VirtualGpu, holder: Program, tmp_path: Path
) -> None:
    hook = Hook(tmp_path, "import time; time.sleep(600)")
    watching = watched_json(watch, virtual_gpu, "--exec", hook.word)
    os.kill(holder.pid, signal.SIGSTOP)
    assert watching.record()["event"] == "stopped"
    (_, _, pid) = hook.calls(1)[0]
    running = os.pidfd_open(pid)
    os.kill(holder.pid, signal.SIGCONT)
    assert watching.record()["event"] == "continued"
    code, _, err = watching.end(signal.SIGTERM)
    assert code == 143
    assert "since the watch ends: 1 change\n" in err
    until_ended(running)
    os.close(running)
    assert len(hook.calls(1)) == 1


def test_hooks_run_one_at_a_time(
    watch: Start, two_virtual_gpus: VirtualGpu, hold: Hold, tmp_path: Path
) -> None:
    lock = tmp_path / "lock"
    rest = f"""
import time
os.close(os.open({str(lock)!r}, os.O_CREAT | os.O_EXCL))
time.sleep(0.05)
os.unlink({str(lock)!r})
"""
    hook = Hook(tmp_path, rest)
    watching = watched_json(watch, two_virtual_gpus, "--exec", hook.word, "--events", "started,ended")
    holders = [hold(two_virtual_gpus, GIB, at % 2) for at in range(4)]
    assert {watching.record()["pid"] for _ in holders} == {each.pid for each in holders}
    for holder in holders:
        holder.end()
    seen = [watching.until("ended")["pid"] for _ in holders]
    assert len(set(seen)) == 4
    hook.calls(8)
    until(lambda: not lock.exists())
    assert "failed" not in watching.end()[2]


def test_more_changes_than_a_hook_handles_are_counted(tmp_path: Path) -> None:
    program = f"""
from vram.cli import hooks
from vram.model.change import Change
hooks.MAX_WAITING = 3
command = [{sys.executable!r}, "-c", "import sys; sys.stdin.read(); open('go').read()"]
running = hooks.Hooks(command, {PATIENCE_S})
for number in range(10):
    running.add(Change(at="", event="freed", nbytes=number))
    running.step()
open("go.ready", "w").close()
import time
while not running.is_idle:
    running.step()
    time.sleep(0.01)
running.close()
"""
    os.mkfifo(tmp_path / "go")
    process = subprocess.Popen([sys.executable, "-c", program], cwd=tmp_path, stderr=subprocess.PIPE)
    until((tmp_path / "go.ready").exists)

    def has_ended_with_one_more() -> bool:
        with suppress(OSError):  # each of the four opens the FIFO once
            os.close(os.open(tmp_path / "go", os.O_WRONLY | os.O_NONBLOCK))
        return process.poll() is not None

    until(has_ended_with_one_more)
    assert process.stderr is not None
    told = process.stderr.read().decode()
    process.stderr.close()
    assert "3 wait, further ones are dropped" in told
    assert "which is too slow: 6 changes" in told


STARTING_HOOKS = """
from vram.cli.app import exit_on_signals
from vram.cli.hooks import Hooks
from vram.model.change import Change

with exit_on_signals():
    hooks = Hooks(["sleep", "600"], 0.001)
    try:
        print("ready", flush=True)
        while True:
            if hooks.is_idle:
                hooks.add(Change(at="", event="freed"))
            hooks.step()
    finally:
        hooks.close()
"""


def test_a_signal_while_hooks_are_started_leaves_none_behind() -> None:
    """Each hook is ended after a moment and the next is started: many moments to be hit in."""
    chance = random.Random(3)
    for attempt in range(20):
        mark = f"VRAM_TEST_HOOK={os.getpid()}-{attempt}"
        process = subprocess.Popen(
            [sys.executable, "-c", STARTING_HOOKS],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=dict([*os.environ.items(), tuple(mark.split("="))]),
        )
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        time.sleep(chance.random() / 20)  # any moment will do
        process.send_signal(chance.choice((signal.SIGINT, signal.SIGTERM, signal.SIGHUP)))
        process.communicate(timeout=PATIENCE_S)
        assert not _processes_with(mark.encode())


def _processes_with(variable: bytes) -> list[int]:
    found = []
    for name in os.listdir("/proc"):
        if name.isdigit():
            with suppress(OSError):
                if variable in Path(f"/proc/{name}/environ").read_bytes().split(b"\0"):
                    found.append(int(name))
    return found


# ---- how it ends ----


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)]
)
def test_a_signal_ends_it_without_a_word(
    watch: Start, virtual_gpu: VirtualGpu, number: int, code: int
) -> None:
    watching = watched_json(watch, virtual_gpu)
    assert watching.end(number) == (code, "", "")


def test_it_ends_when_nobody_reads_any_more(watch: Start, virtual_gpu: VirtualGpu) -> None:
    """Also while nothing changes: `vram watch | head -1` comes back."""
    watching = watched_json(watch, virtual_gpu)
    assert watching.process.stdout is not None
    watching.process.stdout.close()
    assert watching.process.wait(PATIENCE_S) == 141
    assert watching.process.stderr is not None
    assert watching.process.stderr.read() == b""


def test_it_ends_after_a_time(watch: Start, virtual_gpu: VirtualGpu) -> None:
    watching = watch(virtual_gpu, "--for", "0.3s")
    out, err = watching.process.communicate(timeout=PATIENCE_S)
    assert (watching.process.returncode, len(out.splitlines()), err) == (0, 1, b"")


def test_waiting_for_a_change_that_does_not_come_has_an_exit_code(
    watch: Start, virtual_gpu: VirtualGpu
) -> None:
    watching = watch(virtual_gpu, "--for", "0.3s", "--count", "1")
    watching.process.communicate(timeout=PATIENCE_S)
    assert watching.process.returncode == 21


def test_killed_at_any_moment_it_leaves_no_process_behind(
    watch: Start, virtual_gpu: VirtualGpu, holder: Program
) -> None:
    chance = random.Random(9)
    for _ in range(6):
        # A group of its own names all that it has started, whoever their parent is then.
        watching = watch(virtual_gpu, "--json", start_new_session=True)
        assert watching.record()["record"] == "state"
        select.select([watching.process.stdout], [], [], chance.random() / 4)
        watching.process.kill()
        watching.process.wait()
        until(lambda group=watching.process.pid: not _members(group))  # type: ignore[misc]
    assert holder.process.poll() is None


def _members(group: int) -> list[int]:
    found = []
    for name in os.listdir("/proc"):
        if name.isdigit():
            with suppress(OSError, ValueError):
                fields = Path(f"/proc/{name}/stat").read_text().rpartition(")")[2].split()
                if int(fields[2]) == group and fields[0] != "Z":
                    found.append(int(name))
    return found


# ---- wrong words ----


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--every", "0s"], "--every: '0s' is too short"),
        (["--every", "2"], "--every: '2' has no unit\n  hint: write 2s\n"),
        (["--every", "0.01s"], "--every needs at least 100ms"),
        (["--min", "abc"], "'abc' is not a size"),
        (["--min", "5"], "has no unit"),
        (["--events", "ghost,gohst"], "there is no event 'gohst'"),
        (["--events", ""], "there is no event ''"),
        (["--count", "0"], "is not a number of changes"),
        (["--for", "-1"], "'-1' is not a duration"),
        (["--for=-1s"], "'-1s' is not a duration"),
        (["--exec", ""], "--exec needs a command"),
        (["--exec", "  "], "--exec needs a command"),
        (["--exec", "'"], "cannot be split into words"),
        (["--exec", "no-such-program-anywhere --x"], "there is no program 'no-such-program-anywhere'"),
        (["--exec", "/etc/passwd"], "there is no program '/etc/passwd'"),
        (["--exec", "true", "--exec-timeout", "0s"], "'0s' is too short"),
        (["--from", "x.json"], "unrecognized arguments"),
    ],
)
def test_wrong_words_are_refused_before_anything_is_read(vram: Run, words: list[str], said: str) -> None:
    answer = vram("watch", *words)
    assert (answer.code, answer.out) == (2, "")
    assert said in answer.err


def test_a_gpu_that_is_not_there_is_refused_at_the_start(watch: Start, virtual_gpu: VirtualGpu) -> None:
    watching = watch(virtual_gpu, "--gpu", "7")
    out, err = watching.process.communicate(timeout=PATIENCE_S)
    assert (watching.process.returncode, out) == (2, b"")
    assert b"there is no GPU 7" in err


# ---- on a terminal ----


@pytest.mark.parametrize("words", [[], ["--color=never"], ["--ascii"]])
def test_on_a_terminal_lines_fit_and_have_colour(virtual_gpu: VirtualGpu, words: list[str]) -> None:
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("4H", 24, 90, 0, 0))
    environment = {key: value for key, value in os.environ.items() if key not in ("NO_COLOR", "FORCE_COLOR")}
    with DemoProgram(virtual_gpu, "forks.orphan", "4GiB") as program:
        program.kill("parent")
        process = virtual_gpu.popen(
            [*PROGRAM, "watch", "--for", "0.1s", *words], stdout=theirs, env={**environment, "TERM": "xterm"}
        )
        os.close(theirs)
        written = b""
        with suppress(OSError):  # Linux says EIO where the other end of a terminal is closed
            while chunk := os.read(ours, 65536):
                written += chunk
        os.close(ours)
        assert process.wait(PATIENCE_S) == 0
    text = written.decode()
    assert ("\x1b[" in text) == (words != ["--color=never"])
    assert text.isascii() or words != ["--ascii"]
    lines = re.sub(r"\x1b\[[0-9;]*m", "", text).splitlines()
    assert len(lines) == 2
    assert len(lines[1]) == 90, "the words are shortened to the width"


# ---- over time ----


def test_further_readings_do_not_grow_its_memory(
    watch: Start, virtual_gpu: VirtualGpu, holder: Program
) -> None:
    """After the first ones, further readings add next to nothing."""
    watching = watched_json(watch, virtual_gpu)

    def readings(count: int) -> None:
        for _ in range(count):
            os.kill(holder.pid, signal.SIGSTOP)
            assert watching.record()["event"] == "stopped"
            os.kill(holder.pid, signal.SIGCONT)
            assert watching.record()["event"] == "continued"

    readings(10)
    before = _resident(watching.process.pid)
    readings(20)
    assert _resident(watching.process.pid) - before < MIB


def _resident(pid: int) -> int:
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def test_text_and_json_report_the_same(watch: Start, virtual_gpu: VirtualGpu, holder: Program) -> None:
    text = watch(virtual_gpu)
    assert text.line().split()[3] == "state"
    watching = watched_json(watch, virtual_gpu)
    os.kill(holder.pid, signal.SIGSTOP)
    told = watching.record()
    line = text.line()
    assert line.split()[1:4] == ["GPU", "0", "stopped"]
    assert f"pid {told['pid']}" in line
    assert msgspec.json.decode(msgspec.json.encode(told)) == told
    os.kill(holder.pid, signal.SIGCONT)
    assert " continued " in text.line()
