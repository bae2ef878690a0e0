"""Every experiment on the virtual GPU: what the model answers, and that nothing stays behind."""

from __future__ import annotations

from importlib.util import find_spec

import pytest

from tests.lab.conftest import Lab, assert_clean, results_of
from vram.lab.catalogue import EXPERIMENTS, TOPICS, shown
from vram.virtualgpu import VirtualGpu

TRUE, FALSE, UNKNOWN = "true here", "false here", "cannot tell"

# An H200 under driver 580.159.04 showed the same wherever docs/evidence has a row for it.
VERDICTS = {
    "kill_nine": FALSE,
    "exit_without_free": FALSE,
    "crash": FALSE,
    "zombie": FALSE,
    "stopped": TRUE,
    "context_outlives": FALSE,
    "exception_across_runs": FALSE,
    "managed_at_exit": TRUE,
    "reset_needed": FALSE,
    "fork_harmless": FALSE,
    "list_names_the_dead": FALSE,
    "forked_child_uses": FALSE,
    "fork_child_closes": TRUE,
    "subprocess_keeps": FALSE,
    "ipc_survives": TRUE,
    "ipc_counted_twice": FALSE,
    "exported_handle": TRUE,
    "dmabuf": TRUE,
    "pointer_elsewhere": FALSE,
    "free_keeps": FALSE,
    "freed_for_others": FALSE,
    "free_waits": TRUE,
    "sync_before_free": FALSE,
    "free_null_fails": FALSE,
    "free_null_flushes": FALSE,
    "double_free": FALSE,
    "lost_pointer": FALSE,
    "small_fragments": FALSE,
    "large_fragments": FALSE,
    "release_frees": FALSE,
    "addresses_cost": FALSE,
    "pool_keeps": TRUE,
    "pool_keeps_by_default": FALSE,
    "async_free_at_once": FALSE,
    "graph_memory": UNKNOWN,
    "context_free_of_charge": FALSE,
    "second_context": FALSE,
    "init_costs": TRUE,
    "reset_not_enough": FALSE,
    "reset_reaches_others": FALSE,
    "context_close_frees": TRUE,
    "parked_leaves_nothing": TRUE,
    "thread_end_frees": FALSE,
    "thread_frees": TRUE,
    "owner_object": TRUE,
    "free_in_other_thread": FALSE,
    "exception_in_process": TRUE,
    "old_data_plain": FALSE,
    "old_data_pool": TRUE,
    "zero_before_free": TRUE,
    "old_data_across": FALSE,
    "pinned_counts": FALSE,
    "managed_on_allocation": FALSE,
    "managed_returns": FALSE,
    "managed_listed": FALSE,
    "used_includes_reserved": TRUE,
    "list_sums": FALSE,
    "one_byte": FALSE,
    "larger_than_the_gpu": FALSE,
    "kernel_keeps": UNKNOWN,
    "launches_grow": UNKNOWN,
    "torch_del": UNKNOWN,
    "torch_empty_cache": UNKNOWN,
    "torch_cycle": UNKNOWN,
    "torch_exception": UNKNOWN,
    "torch_workspaces": UNKNOWN,
    "torch_old_data": UNKNOWN,
    "cupy_del": UNKNOWN,
    "jax_preallocates": UNKNOWN,
    "numba_del": FALSE if find_spec("numba") else UNKNOWN,
    "numba_close": TRUE if find_spec("numba") else UNKNOWN,
    "pycuda_thread": TRUE if find_spec("pycuda") else UNKNOWN,
}


def test_every_experiment_has_its_verdict_here() -> None:
    assert set(VERDICTS) == set(EXPERIMENTS)


@pytest.mark.parametrize("topic", TOPICS)
def test_the_model_answers(topic: str, lab: Lab, virtual_gpu: VirtualGpu) -> None:
    """Every verdict of a topic, and then a clean GPU without a process on it."""
    ended = lab("run", "--json", *TOPICS[topic])
    results = results_of(ended)
    told = {name: results[shown(name)].verdict for name in TOPICS[topic]}
    assert told == {name: VERDICTS[name] for name in TOPICS[topic]}, {
        name: result.because for name, result in results.items()
    }
    assert ended.returncode == (3 if UNKNOWN in told.values() else 0)
    assert_clean(virtual_gpu)


def test_a_library_that_is_missing_is_a_reason(lab: Lab) -> None:
    if find_spec("cupy"):
        pytest.skip("CuPy is installed here")
    results = results_of(lab("run", "--json", "cupy-del"))
    assert results["cupy-del"].because == "CuPy is not installed"


def test_a_call_that_the_driver_lacks_is_a_reason(lab: Lab) -> None:
    results = results_of(lab("run", "--json", "graph-memory"))
    assert "does not support" in results["graph-memory"].because


def test_a_parked_process_that_came_back_is_told_in_words(lab: Lab) -> None:
    results = results_of(lab("run", "--json", "parked-leaves-nothing"))
    assert results["parked-leaves-nothing"].because.endswith(" MiB when it was back")
