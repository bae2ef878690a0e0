"""What frameworks are asked inside a traced program, with stand-ins that follow the frameworks' own rules.

The real ones run in tests/hardware/test_tracer.py.
"""

from __future__ import annotations

import json
import os
import sys
import zlib
from collections.abc import Callable
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest

from tests.hardware.tracer import programs
from tests.needs import needs
from tests.search_path import search_path
from vram.payloads.tracer import frameworks
from vram.reach import injectors
from vram.trace.reader import open_trace
from vram.virtualgpu import VirtualGpu

STANDINS = Path(__file__).parent / "standins"
PAUSE_THREAD = Path(__file__).parent / "pause_thread.py"
PAYLOAD = Path(frameworks.__file__)

Blobs = list[tuple[str, bytes]]
Run = Callable[..., Blobs]


@pytest.fixture
def run(virtual_gpu: VirtualGpu, tmp_path: Path) -> Run:
    """Run a program with the recorder; the accounts that it left."""
    base = {**os.environ, **virtual_gpu.environment()}
    base["PYTHONPATH"] = os.pathsep.join([str(STANDINS), str(programs.HERE)])

    def run(text: str, wanted: str = "auto") -> Blobs:
        program = tmp_path / "program.txt"
        program.write_text(dedent(text))
        variables = {"VRAM_TRACE_FRAMEWORKS": wanted}
        running = programs.start([sys.executable, str(program)], tmp_path, base, **variables)
        running.finish()
        with open_trace(sorted(tmp_path.glob("trace.*.part"))) as trace:
            return [(name, data) for _, name, data in trace.blobs()]

    return run


def torch_accounts(blobs: Blobs) -> list[dict[str, Any]]:
    return [json.loads(zlib.decompress(data)) for name, data in blobs if name == "torch"]


def moments(blobs: Blobs) -> list[str]:
    return [said["at"] for said in torch_accounts(blobs)]


def test_pytorch_begins_in_the_middle_of_its_initialisation_and_ends_with_the_program(run: Run) -> None:
    """The recorder's call comes while PyTorch holds its lock: waiting for it would hang the program."""
    blobs = run(
        """
        import torch
        torch.cuda.init()
        (settings,) = torch._C.history
        assert settings["stacks"] == "python" and settings["enabled"] == "all", settings
        """
    )
    assert moments(blobs) == ["begin", "exit"]
    account = torch_accounts(blobs)[-1]
    assert account["ours"]
    assert account["segments"] == [[0, 4096, 2 << 20, False, [512, 500, 0, 1]]]
    assert account["traces"][0]["action"] == [0]


def test_pytorch_that_is_imported_after_cuda_was_used_is_noticed(run: Run) -> None:
    blobs = run(
        """
        import driver_program as driver
        driver.begin()
        import torch
        import sched  # the next import of anything
        assert not torch._C.history
        torch.cuda.init()
        assert torch._C.history
        """
    )
    assert moments(blobs) == ["begin", "exit"]


def test_what_frameworks_hand_over_at_exit_is_no_part_of_the_programs_time(
    virtual_gpu: VirtualGpu, tmp_path: Path
) -> None:
    """A long history takes seconds: a leak that went on to the end would seem to have stopped before."""
    program = tmp_path / "program.txt"
    text = """
        import time
        import driver_program as driver
        import torch
        from pace import Pace
        torch.cuda.init()
        snapshot = torch.cuda.memory._snapshot
        torch.cuda.memory._snapshot = lambda *args, **names: (time.sleep(2.0), snapshot(*args, **names))[1]
        pace = Pace()
        driver.begin()
        kept = [driver.alloc(1 << 20) for _ in pace.steps(12)]
    """
    program.write_text(dedent(text))
    base = {**os.environ, **virtual_gpu.environment()}
    base["PYTHONPATH"] = os.pathsep.join([str(STANDINS), str(programs.HERE)])
    running = programs.start([sys.executable, str(program)], tmp_path, base)
    running.finish()
    with open_trace(sorted(tmp_path.glob("trace.*.part"))) as trace:
        (row,) = programs.leaks(trace.view())
    assert (row.verdict, row.site.count) == ("growing", 12)


DETACHED = """
    import os, sys, threading
    import torch
    torch.cuda.init()
    finish = sys.modules["_vram_tracer_frameworks"].finish
"""


@pytest.mark.fault(38)
def test_a_history_ends_with_its_stacks_first(run: Run) -> None:
    """Threads that allocate meanwhile would call what PyTorch forgets."""
    text = """
    finish("detach")
    begun, *ended = torch._C.history
    assert begun["context"] == "alloc", begun
    assert [(each["enabled"], each.get("context")) for each in ended] == [("state", None), (None, None)]
    """
    assert moments(run(DETACHED + text)) == ["begin", "detach"]


@needs("ptrace", there="ptrace" in injectors.BY_NAME, detail="there is no injector by ptrace")
@pytest.mark.fault(38)
def test_a_history_stays_on_where_a_thread_is_paused(run: Run) -> None:
    """It may be between the two. After another recording, it is off."""
    text = f"""
    import hashlib, subprocess
    tids = []
    def work():
        tids.append(threading.get_native_id())
        hashlib.pbkdf2_hmac("sha256", b"", b"", 1 << 30)
    threading.Thread(target=work, daemon=True).start()
    while not tids:
        pass
    words = [sys.executable, {str(PAUSE_THREAD)!r}, str(tids[0])]
    environment = dict(os.environ, PYTHONPATH={search_path()!r})
    for name in ("LD_PRELOAD", "CUDA_INJECTION64_PATH"):
        environment.pop(name, None)
    pausing = subprocess.Popen(words, stdin=-1, stdout=-1, env=environment)
    assert pausing.stdout.readline() == b"stopped\\n"
    finish("detach")
    assert [each["enabled"] for each in torch._C.history] == ["all", "state"], torch._C.history
    pausing.communicate()

    names = {{"__name__": "again"}}
    exec(compile(open({str(PAYLOAD)!r}).read(), "again", "exec"), names)
    account = names["TorchAccount"](type("Recorder", (), {{"blob": lambda *_: True}}))
    account._begin()
    assert account.ours
    account.finish("detach")
    assert [each["enabled"] for each in torch._C.history[2:]] == ["all", "state", None], torch._C.history
    os._exit(0)
    """
    run(DETACHED + text)


def test_a_history_that_the_program_keeps_itself_is_left_alone(run: Run) -> None:
    blobs = run(
        """
        import torch
        torch.cuda.memory._record_memory_history(enabled="state", max_entries=7)
        torch.cuda.init()
        assert len(torch._C.history) == 1
        """
    )
    assert moments(blobs) == ["begin", "exit"]
    assert not torch_accounts(blobs)[-1]["ours"]


def test_pytorch_without_cuda_is_left_alone(run: Run) -> None:
    blobs = run(
        """
        import torch
        del torch._C._cuda_record_memory_history
        import driver_program as driver
        driver.begin()
        assert not torch.cuda._queued_calls and not torch._C.history
        """
    )
    assert blobs == []


def test_memory_that_runs_out_again_and_again_is_told_once(run: Run) -> None:
    blobs = run(
        """
        import torch
        torch.cuda.init()
        (observer,) = torch._C.observers
        for _ in range(50):
            observer(0, 1, 2, 3)
        """
    )
    assert moments(blobs) == ["begin", "oom", "exit"]


def test_trouble_in_a_framework_is_not_the_programs(run: Run) -> None:
    blobs = run(
        """
        import torch
        torch.cuda.init()
        torch.cuda.memory.trouble = RuntimeError("not today")
        torch._C.observers[0](0, 1, 2, 3)
        """
    )
    assert moments(blobs) == ["begin"]


def test_only_what_was_asked_for_is_asked(run: Run) -> None:
    text = """
        import torch, jax
        jax.xla_bridge._backends["cuda"] = jax.xla_bridge.Backend()
        torch.cuda.init()
        """
    assert {name for name, _ in run(text, "jax")} == {"jax", "jax-pools"}


def test_none_asks_no_framework(run: Run) -> None:
    text = """
        import sys, torch
        torch.cuda.init()
        assert not torch._C.history
        assert not any(type(each).__name__ == "Watch" for each in sys.meta_path)
        """
    assert run(text, "none") == []


def test_a_forked_child_hands_nothing_over(run: Run) -> None:
    blobs = run(
        """
        import os, sys, torch
        torch.cuda.init()
        child = os.fork()
        if not child:
            sys.exit(0)
        assert os.waitpid(child, 0)[1] == 0
        """
    )
    assert moments(blobs) == ["begin", "exit"]


def test_jax_is_asked_only_where_it_uses_a_gpu(run: Run) -> None:
    text = """
        import driver_program as driver, jax
        {backend}
        driver.begin()
        """
    assert run(text.format(backend="")) == []
    (tmp,) = {
        data
        for name, data in run(
            text.format(backend="jax.xla_bridge._backends['cuda'] = jax.xla_bridge.Backend()")
        )
        if name == "jax-pools"
    }
    assert json.loads(tmp)["pools"] == [[0, 7, 3]]


CUPY = """
    import threading
    import cupy, driver_program as driver
    from pace import Pace
    pace = Pace()
    driver.begin()
    def leak():
        kept.append(cupy.use(1 << 20))
    def thread():
        driver.begin()
        leak()
    kept = []
    for step in pace.steps(16):
        cupy.drop(4096, cupy.use(4096))
        leak()
        worker = threading.Thread(target=thread)
        worker.start()
        worker.join()
    assert threading._profile_hook is not None
"""


def test_cupys_blocks_are_seen_in_every_thread(run: Run, tmp_path: Path) -> None:
    run(CUPY)
    view = programs.read(tmp_path)
    leaks = programs.leaks(view)
    assert {row.site.kind for row in leaks} == {"cupy block"}, "the chunks below them are no leaks"
    assert sorted(row.site.count for row in leaks) == [16, 16]
    innermost = [view.stacks[row.site.stack].frames[0].function for row in leaks]
    assert innermost == ["use", "use"], "no frame of vram's own"


def test_a_program_that_profiles_its_threads_keeps_its_function(run: Run) -> None:
    run(
        """
        import threading, cupy, driver_program as driver
        seen = []
        threading.setprofile(lambda *_: seen.append(1))
        driver.begin()
        worker = threading.Thread(target=len, args=("",))
        worker.start()
        worker.join()
        assert seen
        """
    )
