"""Every wrong word gets a typed error with a hint, before anything was touched."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.guard.scoping import result
from tests.needs import skip_without
from tests.patience import PATIENCE_S
from vram.virtualgpu import VirtualGpu

WRONG = {
    # sizes
    "vram.scope('x', limit='8 apples')": "UsageError",
    "vram.scope('x', limit=-1)": "UsageError",
    "vram.scope('x', limit=1.5)": "UsageError",
    "vram.scope('x', limit=8)": "UsageError",
    "vram.scope('x', limit='8')": "UsageError",
    "vram.scope('x', tolerance=16)": "UsageError",
    "vram.scoped('x', limit=8)": "UsageError",
    "vram.Thread(target=print, limit='8')": "UsageError",
    "vram.Buffer('4096')": "UsageError",
    "vram.remanence_test(4)": "UsageError",
    "vram.reclaim.plan(20)": "UsageError",
    "vram.reclaim.plan('20')": "UsageError",
    "vram.reclaim.plan(more=20)": "UsageError",
    "vram.scope('x', limit=True)": "UsageError",
    "vram.scope('x', tolerance='-1GiB')": "UsageError",
    "vram.scoped('x', limit='much')": "UsageError",
    "vram.Thread(target=print, limit='much')": "UsageError",
    "vram.ThreadPoolExecutor(1, limit='much')": "UsageError",
    "vram.Buffer(-1)": "UsageError",
    "vram.Buffer('8 apples')": "UsageError",
    "vram.Buffer.pinned(0)": "UsageError",
    "vram.Buffer.managed(None)": "UsageError",
    "vram.Buffer.pitched('1KiB', -2)": "UsageError",
    "vram.remanence_test('8 apples')": "UsageError",
    "vram.remanence_test(-1)": "UsageError",
    # devices
    "vram.live(-1)": "NoSuchDevice",
    "vram.live(7)": "NoSuchDevice",
    "vram.live('cuda:0')": "NoSuchDevice",
    "vram.flush(-1)": "NoSuchDevice",
    "vram.flush(7)": "NoSuchDevice",
    "vram.flush(True)": "NoSuchDevice",
    "vram.Buffer(1, device=7)": "NoSuchDevice",
    "vram.Buffer(1, device='cuda:0')": "NoSuchDevice",
    # choices
    "vram.scope('x', leak='explode')": "UsageError",
    "vram.ThreadPoolExecutor(1, leak='explode')": "UsageError",
    "vram.scope(3)": "UsageError",
    "vram.scoped(3)": "UsageError",
    "vram.on_oom(most_files=-1)": "UsageError",
    "vram.on_oom('/proc/no/such/place')": "UsageError",
    # times
    "vram.scope('x', limit='1GiB', every_s=0)": "UsageError",
    "vram.scope('x', limit='1GiB', every_s='soon')": "UsageError",
    "vram.scope('x', limit='1GiB', every_s=1e300)": "UsageError",
    "vram.scope('x', every_s=1)": "UsageError",
    "vram.live(budget_s=-1)": "UsageError",
    "vram.live(budget_s='long')": "UsageError",
    "vram.flush(budget_s=None)": "UsageError",
    "vram.holders([], budget_s='long')": "UsageError",
    # things without GPU memory
    "vram.scrub([1, 2])": "UsageError",
    "vram.Buffer.from_dlpack(object())": "UsageError",
    "vram.Buffer.from_cuda_array_interface(b'')": "UsageError",
    # what is closed
    "closed.read()": "BufferClosed",
    "closed.close()": "BufferClosed",
    "vram.scrub(closed)": "BufferClosed",
}


def test_each_wrong_word_is_a_typed_error_with_a_hint(virtual_gpu: VirtualGpu) -> None:
    told = result(
        virtual_gpu,
        f"""
        closed = vram.Buffer(1)
        closed.close()

        def answer(call):
            try:
                eval(call)
            except vram.VramError as error:
                return [type(error).__name__, bool(error.hint)]
            except BaseException as error:
                return [repr(error), False]
            return ["no error", False]

        tell({{call: answer(call) for call in {list(WRONG)!r}}})
        """,
    )
    assert told == {call: [error, True] for call, error in WRONG.items()}


WITHOUT_DRIVER = """
import vram, json, warnings
warnings.simplefilter("always")
said = []
warnings.showwarning = lambda message, *rest, **more: said.append(str(message))
with vram.scope("x", leak="raise", limit="1GiB", every_s=1):
    pass
thread = vram.Thread(target=int)
thread.start()
thread.join()
answers = [len(vram.live()), len(vram.holders(said)) > 0, vram.flush().refused]
recorder = vram.on_oom()
recorder.close()
for call in (lambda: vram.Buffer(1), lambda: vram.Buffer.pinned(1), vram.remanence_test):
    try:
        answers.append(str(call()))
    except vram.VramError as error:
        answers.append([type(error).__name__, bool(error.hint)])
print(json.dumps([answers, said]))
"""


def test_without_a_driver_all_of_it_is_there_and_says_so_once(no_driver: dict[str, str]) -> None:
    import json

    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_DRIVER],
        env=no_driver,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )
    assert (done.returncode, done.stderr) == (0, "")
    answers, said = json.loads(done.stdout)
    assert answers[:2] == [0, True]
    assert "no NVIDIA driver" in answers[2]
    assert answers[3:] == [["DriverMissing", True]] * 3
    assert len(said) == 1


@pytest.fixture
def no_driver() -> dict[str, str]:
    """Variables of a process that finds no driver, whatever this machine has."""
    import os

    from vram.guard.memory import has_driver

    if has_driver():
        skip_without("no-driver", "this machine has a driver")
    return {name: value for name, value in os.environ.items() if name != "LD_LIBRARY_PATH"}
