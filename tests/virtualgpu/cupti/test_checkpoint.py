"""A process in which a tool has subscribed cannot be locked any more: as on an H200, driver 580.159.04."""

from __future__ import annotations

import pytest

from tests.virtualgpu.checkpoints import ILLEGAL_STATE, NOT_SUPPORTED, RUNNING, verbs
from tests.virtualgpu.cupti.programs import HERE, PREAMBLE
from tests.virtualgpu.programs import running
from vram.virtualgpu import VirtualGpu

pytestmark = pytest.mark.native

LATER = {
    "nothing": "",
    "its callbacks are turned off": "one.enable_domain(DRIVER, 0)",
    "it unsubscribes": "one.unsubscribe()",
    "CUPTI is finalized": "one.cupti.cuptiFinalize()",
}


def locked_after(gpu: VirtualGpu, first: str, later: str) -> list[int]:
    program = f"""
    sys.path.insert(0, {str(HERE)!r})
    {PREAMBLE.replace(chr(10), chr(10) + "    ")}
    start()
    one = Subscriber()
    {first}
    {later}
    tell("ready")
    sys.stdin.readline()
"""
    with running(gpu, program) as worker:
        worker.told()
        return verbs(gpu, worker.pid, "Lock", "Checkpoint", "Unlock", "State")


@pytest.mark.parametrize("later", LATER)
def test_a_subscriber_refuses_locks_for_good(virtual_gpu: VirtualGpu, later: str) -> None:
    answers = locked_after(virtual_gpu, "one.subscribe(DRIVER)", LATER[later])
    assert answers == [NOT_SUPPORTED, ILLEGAL_STATE, ILLEGAL_STATE, RUNNING]


def test_loading_cupti_refuses_nothing(virtual_gpu: VirtualGpu) -> None:
    assert locked_after(virtual_gpu, "", "")[:2] == [0, 0]
