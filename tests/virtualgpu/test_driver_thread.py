"""The driver's own threads: what they are called, and that one of them carries out every checkpoint call."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from tests.patience import until
from tests.virtualgpu.checkpoints import (
    CHECKPOINTED,
    DRIVER_THREAD,
    EVENT_THREAD,
    LOCKED,
    NANOSLEEP,
    NO_LIMIT,
    OPERATING_SYSTEM,
    POLL,
    RUNNING,
    asking,
    has_told,
    is_in,
    only_the_driver_runs,
    thread_state,
    threads,
    verbs,
)
from tests.virtualgpu.conftest import ask
from tests.virtualgpu.programs import result, running
from vram.virtualgpu import VirtualGpu

pytestmark = pytest.mark.native

HOLDER = """
    cuda.start()
    cuda.alloc(4 * GIB)
    cuda.tell("ready")
    cuda.heard()
"""

WAYS_THERE = {
    "State": [],
    "Lock": [],
    "Checkpoint": ["Lock"],
    "Restore": ["Lock", "Checkpoint"],
    "Unlock": ["Lock"],
}


def test_one_thread_comes_with_cuinit_and_one_with_the_first_context(two_virtual_gpus: VirtualGpu) -> None:
    """One of each in a process, however many GPUs and contexts it uses. They block no signals."""
    program = """
        cuda.tell("loaded")
        cuda.heard()
        cuda.call("cuInit", 0)
        cuda.call("cuInit", 0)
        cuda.tell("initialised")
        cuda.heard()
        for device in (0, 1):
            cuda.out(ctypes.c_uint64, "cuDevicePrimaryCtxRetain", device)
        cuda.tell("contexts")
        cuda.heard()
    """
    names = []
    with running(two_virtual_gpus, program) as worker:
        for _ in range(3):
            worker.told()
            names.append(sorted(threads(worker.pid)))
            if len(names) < 3:
                worker.go()
        own = [name for name in names[0] if not name.startswith("cuda")]
        assert names == [own, sorted([*own, DRIVER_THREAD]), sorted([*own, DRIVER_THREAD, EVENT_THREAD])]
        # Until a new thread has begun, the C library keeps all signals from it.
        until(lambda: all(blocks_nothing(worker.pid, tid) for tid in threads(worker.pid).values()))


def blocks_nothing(pid: int, tid: int) -> bool:
    return "SigBlk:\t0000000000000000\n" in Path(f"/proc/{pid}/task/{tid}/status").read_text()


def test_a_forked_child_has_no_thread_of_the_drivers(virtual_gpu: VirtualGpu) -> None:
    program = """
        cuda.start()
        cuda.tell(cuda.forked(lambda: len(os.listdir("/proc/self/task"))))
    """
    assert result(virtual_gpu, program) == 1


def test_without_its_thread_the_driver_is_not_initialised(virtual_gpu: VirtualGpu) -> None:
    virtual_gpu.add_fault("step.thread nth=1 error=2")
    program = """
        codes = [cuda.code("cuInit", 0), cuda.code("cuCtxSynchronize"), cuda.code("cuInit", 0)]
        cuda.tell([codes, len(os.listdir("/proc/self/task"))])
    """
    assert result(virtual_gpu, program) == [[OPERATING_SYSTEM, 3, 0], 2]


def test_the_library_stays_when_the_program_closes_it(virtual_gpu: VirtualGpu) -> None:
    program = """
        import _ctypes
        cuda.start()
        for _ in range(5):
            _ctypes.dlclose(cuda.lib._handle)
        cuda.tell("closed")
        cuda.heard()
    """
    with running(virtual_gpu, program) as worker:
        worker.told()
        assert verbs(virtual_gpu, worker.pid, "Lock", "State") == [0, LOCKED]


@pytest.mark.parametrize("verb", WAYS_THERE)
def test_nothing_is_answered_while_the_process_is_stopped(virtual_gpu: VirtualGpu, verb: str) -> None:
    with running(virtual_gpu, HOLDER) as worker:
        worker.told()
        verbs(virtual_gpu, worker.pid, *WAYS_THERE[verb])
        os.kill(worker.pid, signal.SIGSTOP)
        with asking(virtual_gpu, worker.pid, verb) as asker:
            assert not has_told(asker)
            os.kill(worker.pid, signal.SIGCONT)
            assert asker.told() == 0


def test_a_stopped_process_is_parked_while_its_driver_thread_runs(virtual_gpu: VirtualGpu) -> None:
    with running(virtual_gpu, HOLDER) as worker:
        worker.told()
        with only_the_driver_runs(worker.pid):
            words = ("Lock", "Checkpoint", "State", "Restore", "State", "Unlock", "State")
            assert verbs(virtual_gpu, worker.pid, *words) == [0, 0, CHECKPOINTED, 0, LOCKED, 0, RUNNING]
            assert thread_state(worker.pid, worker.pid) == "T"
        worker.go()
        worker.process.wait()
        assert worker.process.returncode == 0


def test_the_program_may_be_stopped_anywhere(virtual_gpu: VirtualGpu) -> None:
    """Its threads are inside malloc and inside calls; the driver's thread waits for none of them."""
    program = """
        context = cuda.start()
        def churn():
            cuda.call("cuCtxSetCurrent", context)
            while True:
                cuda.call("cuMemFree_v2", cuda.alloc(4 * MIB))
                [bytes(5000 * size) for size in range(20)]
        for _ in range(4):
            threading.Thread(target=churn, daemon=True).start()
        cuda.tell("ready")
        cuda.heard()
        os._exit(0)
    """
    with running(virtual_gpu, program) as worker:
        worker.told()
        for _ in range(5):
            assert verbs(virtual_gpu, worker.pid, "Lock") == [0]
            with only_the_driver_runs(worker.pid):
                assert verbs(virtual_gpu, worker.pid, "Checkpoint", "Restore", "Unlock") == [0, 0, 0]


@pytest.mark.parametrize(
    ("verb", "before", "after"),
    [("Checkpoint", ["Lock"], CHECKPOINTED), ("Restore", ["Lock", "Checkpoint"], LOCKED)],
)
def test_what_was_begun_is_finished_though_the_caller_was_killed(
    virtual_gpu: VirtualGpu, verb: str, before: list[str], after: int
) -> None:
    """As on an H200: 52 of 52 killed callers left their target checkpointed."""
    with running(virtual_gpu, HOLDER) as worker:
        worker.told()
        verbs(virtual_gpu, worker.pid, *before)
        virtual_gpu.fail(f"step.{verb.lower()}", slow_s=1000)
        with asking(virtual_gpu, worker.pid, verb) as asker:
            until(lambda: is_in(NANOSLEEP, worker.pid, threads(worker.pid)[DRIVER_THREAD]))
            asker.kill()
        with asking(virtual_gpu, worker.pid, "State") as another:
            assert not has_told(another), "one order at a time"
            virtual_gpu.clear_faults()
            assert another.told() == after


def test_a_caller_that_died_does_not_block_the_next(virtual_gpu: VirtualGpu) -> None:
    """Its order was given while the target was stopped, and is carried out later."""
    with running(virtual_gpu, HOLDER) as worker:
        worker.told()
        os.kill(worker.pid, signal.SIGSTOP)
        with asking(virtual_gpu, worker.pid, "Lock"):
            pass
        with asking(virtual_gpu, worker.pid, "State") as another:
            os.kill(worker.pid, signal.SIGCONT)
            until(lambda: has_told(another))
            assert another.told() == LOCKED
        assert verbs(virtual_gpu, worker.pid, "Unlock", "State") == [0, RUNNING]


def test_a_caller_notices_that_its_target_has_died(virtual_gpu: VirtualGpu) -> None:
    """Also where nobody has waited for the dead process yet."""
    with running(virtual_gpu, HOLDER) as worker:
        worker.told()
        os.kill(worker.pid, signal.SIGSTOP)
        with asking(virtual_gpu, worker.pid, "Lock") as asker:
            os.kill(worker.pid, signal.SIGKILL)
            until(lambda: has_told(asker))
            assert asker.told() == OPERATING_SYSTEM
        assert worker.process.returncode is None


def test_a_child_that_holds_a_dead_processs_memory_answers_for_nobody(virtual_gpu: VirtualGpu) -> None:
    program = """
        cuda.start()
        if os.fork() == 0:
            cuda.tell(os.getpid())
            cuda.heard()
            os._exit(0)
        os._exit(0)
    """
    with running(virtual_gpu, program) as worker:
        child = worker.told()
        until(lambda: worker.process.poll() is not None)
        assert verbs(virtual_gpu, worker.pid, "State", "Lock") == [OPERATING_SYSTEM] * 2
        assert verbs(virtual_gpu, child, "State") == [3]
        worker.go()


def test_many_callers_each_get_their_own_answer(virtual_gpu: VirtualGpu) -> None:
    program = """
        cuda.call("cuInit", 0)
        target, state = TARGET, ctypes.c_int(-1)
        answers = set()
        def ask_again_and_again():
            mine = ctypes.c_int(-1)
            for _ in range(300):
                code = cuda.code("cuCheckpointProcessGetState", target, ctypes.byref(mine))
                answers.add((code, mine.value))
                answers.add((cuda.code("cuCheckpointProcessRestore", target, None), "refused"))
        threads = [threading.Thread(target=ask_again_and_again) for _ in range(8)]
        [thread.start() for thread in threads]
        [thread.join() for thread in threads]
        cuda.tell(sorted(answers))
    """
    with running(virtual_gpu, HOLDER) as worker:
        worker.told()
        answers = result(virtual_gpu, program.replace("TARGET", str(worker.pid)))
        assert answers == [[0, RUNNING], [401, "refused"]]


def test_one_thread_parks_a_process_on_all_its_gpus(two_virtual_gpus: VirtualGpu) -> None:
    program = """
        cuda.start(1)
        cuda.alloc(GIB)
        cuda.start(0)
        cuda.alloc(GIB)
        cuda.tell("ready")
        cuda.heard()
    """
    with running(two_virtual_gpus, program) as worker:
        worker.told()
        assert verbs(two_virtual_gpus, worker.pid, "Lock", "Checkpoint") == [0, 0]
        assert ask(two_virtual_gpus, "[processes(0), processes(1)]") == [[], []]
        assert verbs(two_virtual_gpus, worker.pid, "Restore", "Unlock") == [0, 0]
        listed = ask(two_virtual_gpus, "[[pid for pid, _ in processes(gpu)] for gpu in (0, 1)]")
        assert listed == [[worker.pid], [worker.pid]]


def test_the_thread_of_a_restore_is_the_drivers(virtual_gpu: VirtualGpu) -> None:
    with running(virtual_gpu, HOLDER) as worker:
        worker.told()
        program = f"""
            cuda.call("cuInit", 0)
            thread = ctypes.c_int()
            cuda.call("cuCheckpointProcessGetRestoreThreadId", {worker.pid}, ctypes.byref(thread))
            cuda.tell(thread.value)
        """
        assert result(virtual_gpu, program) == threads(worker.pid)[DRIVER_THREAD]


def test_an_idle_process_is_left_asleep(virtual_gpu: VirtualGpu) -> None:
    """Its driver's thread waits without a time limit: no process wakes up for nothing."""
    with running(virtual_gpu, HOLDER) as worker:
        worker.told()
        verbs(virtual_gpu, worker.pid, "State")
        driver = threads(worker.pid)[DRIVER_THREAD]
        until(lambda: is_in(POLL, worker.pid, driver))
        words = Path(f"/proc/{worker.pid}/task/{driver}/syscall").read_text().split()
        assert int(words[3], 16) == NO_LIMIT, "the third argument is the time limit"
