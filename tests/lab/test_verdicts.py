"""Every experiment on the virtual GPU: what the model answers, and that nothing stays behind."""

from __future__ import annotations

from importlib.util import find_spec

import pytest

from tests.lab.conftest import Lab, assert_clean, results_of
from vram.lab.topics import CLAIMS, TOPICS
from vram.virtualgpu import VirtualGpu

TRUE, FALSE, UNKNOWN = "true here", "false here", "cannot tell"

# An H200 under driver 580.159.04 showed the same wherever docs/evidence has a row for it.
VERDICTS = {
    "kill-nine": FALSE,
    "exit-without-free": FALSE,
    "crash": FALSE,
    "zombie": FALSE,
    "stopped": TRUE,
    "context-outlives": FALSE,
    "exception-across-runs": FALSE,
    "managed-at-exit": TRUE,
    "reset-needed": FALSE,
    "fork-harmless": FALSE,
    "list-names-the-dead": FALSE,
    "forked-child-uses": FALSE,
    "fork-child-closes": TRUE,
    "subprocess-keeps": FALSE,
    "ipc-survives": TRUE,
    "ipc-counted-twice": FALSE,
    "exported-handle": TRUE,
    "dmabuf": TRUE,
    "pointer-elsewhere": FALSE,
    "ipc-contents": TRUE,
    "free-keeps": FALSE,
    "freed-for-others": FALSE,
    "free-waits": TRUE,
    "sync-before-free": FALSE,
    "free-null-fails": FALSE,
    "free-null-flushes": FALSE,
    "double-free": FALSE,
    "lost-pointer": FALSE,
    "small-fragments": FALSE,
    "large-fragments": FALSE,
    "release-frees": FALSE,
    "addresses-cost": FALSE,
    "pitched-keeps": FALSE,
    "free-waits-for-streams": TRUE,
    "failed-alloc-keeps": FALSE,
    "pool-keeps": TRUE,
    "pool-keeps-by-default": FALSE,
    "async-free-at-once": FALSE,
    "graph-memory": UNKNOWN,
    "context-free-of-charge": FALSE,
    "second-context": FALSE,
    "init-costs": TRUE,
    "stream-returns": FALSE,
    "context-close-frees": TRUE,
    "parked-leaves-nothing": TRUE,
    "reset-primary": TRUE,
    "reset-not-enough": TRUE,
    "reset-pools": FALSE,
    "reset-shared": FALSE,
    "reset-other-current": FALSE,
    "reset-green": FALSE,
    "reset-pinned": FALSE,
    "reset-reaches-others": FALSE,
    "fault-free": FALSE,
    "assert-free": FALSE,
    "launch-failed-free": FALSE,
    "fault-only-end": FALSE,
    "fault-reset": FALSE,
    "fault-other-context": FALSE,
    "fault-other-process": FALSE,
    "free-null-never-fails": FALSE,
    "free-reports-kernel": FALSE,
    "thread-end-frees": FALSE,
    "thread-frees": TRUE,
    "owner-object": TRUE,
    "free-in-other-thread": FALSE,
    "exception-in-process": TRUE,
    "old-data-plain": FALSE,
    "old-data-small": TRUE,
    "old-data-pool": TRUE,
    "zero-before-free": TRUE,
    "old-data-across": FALSE,
    "contents-stay": TRUE,
    "pinned-counts": FALSE,
    "managed-on-allocation": FALSE,
    "managed-returns": FALSE,
    "managed-listed": FALSE,
    "managed-first-touch": FALSE,
    "managed-prefetch": TRUE,
    "managed-pieces": FALSE,
    "managed-reserve": FALSE,
    "managed-prefetch-back": FALSE,
    "managed-larger-than-gpu": TRUE,
    "managed-slower": UNKNOWN,
    "managed-faults": UNKNOWN,
    "managed-both-sides": TRUE,
    "used-includes-reserved": TRUE,
    "list-sums": FALSE,
    "one-byte": FALSE,
    "larger-than-the-gpu": FALSE,
    "kernel-keeps": UNKNOWN,
    "launches-grow": UNKNOWN,
    "torch-del": UNKNOWN,
    "torch-empty-cache": UNKNOWN,
    "torch-cycle": UNKNOWN,
    "torch-exception": UNKNOWN,
    "torch-workspaces": UNKNOWN,
    "torch-old-data": UNKNOWN,
    "cupy-del": UNKNOWN,
    "jax-preallocates": UNKNOWN,
    "numba-del": FALSE if find_spec("numba") else UNKNOWN,
    "numba-close": TRUE if find_spec("numba") else UNKNOWN,
    "pycuda-thread": TRUE if find_spec("pycuda") else UNKNOWN,
    "pycuda-inner-function": TRUE if find_spec("pycuda") else UNKNOWN,
    "pycuda-free": TRUE if find_spec("pycuda") else UNKNOWN,
    "pycuda-autoinit-threads": FALSE if find_spec("pycuda") else UNKNOWN,
    "pycuda-mem-free": FALSE if find_spec("pycuda") else UNKNOWN,
}


def test_every_experiment_has_its_verdict_here() -> None:
    assert set(VERDICTS) == set(CLAIMS)


# One run each: starting the lab costs more than most experiments do.
RUNS = {
    "processes": ("When a process ends", "Forks and children", "Memory that is shared", "Contexts"),
    "memory": ("Freeing", "Pools and graphs", "Old data", "Host and managed memory"),
    "errors": ("Errors on the device",),
    "the rest": ("Threads and objects", "Figures and kernels", "Frameworks"),
}


def test_every_topic_is_in_a_run() -> None:
    assert sorted(topic for topics in RUNS.values() for topic in topics) == sorted(TOPICS)


@pytest.mark.parametrize("topics", RUNS.values(), ids=RUNS)
def test_the_model_answers(topics: tuple[str, ...], lab: Lab, virtual_gpu: VirtualGpu) -> None:
    """Every verdict of these topics, and then a clean GPU without a process on it."""
    names = [claim.name for topic in topics for claim in TOPICS[topic]]
    ended = lab("run", "--json", *names)
    results = results_of(ended)
    reasons = {name: result.because for name, result in results.items()}
    verdicts = {name: results[name].verdict for name in names}
    assert verdicts == {name: VERDICTS[name] for name in names}, reasons
    assert ended.returncode == (3 if UNKNOWN in verdicts.values() else 0)
    assert_clean(virtual_gpu)
    if "cupy-del" in reasons and not find_spec("cupy"):
        assert reasons["cupy-del"] == "CuPy is not installed"
    if "graph-memory" in reasons:
        assert "does not support" in reasons["graph-memory"]
    if "parked-leaves-nothing" in reasons:
        assert reasons["parked-leaves-nothing"].endswith(" MiB when it was back")
