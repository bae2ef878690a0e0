"""PyTorch's snapshot: read as it was meant, and refused where it is impossible."""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable
from typing import Any

import pytest

from tests.trace.frameworks.recorded import KINDS, content, packed
from vram.trace.frameworks.torch_history import MAX_TEXT, GpuHistory, decode, stack_of
from vram.units import MIB
from vram.untrusted import Rejected


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_what_is_live_at_the_end_is_what_the_program_kept(kind: str) -> None:
    history = GpuHistory(decode(packed(content(kind))), 0)
    assert sorted(nbytes for nbytes, _ in history.live.values()) == [3 * MIB] * 12 + [8 * MIB] * 6
    assert history.reserved_end >= sum(nbytes for nbytes, _ in history.live.values())


def test_every_block_knows_its_stack_innermost_first(kind: str) -> None:
    snapshot = decode(packed(content(kind)))
    innermost = {stack_of(snapshot, each.stack).frames[0].function for each in GpuHistory(snapshot, 0).blocks}
    assert innermost == {"tensor", "remember"}


def test_undoing_the_history_leads_to_an_empty_gpu(kind: str) -> None:
    """So that a history that begins in the middle can be told from one that is whole."""
    snapshot = decode(packed(content(kind)))
    history = GpuHistory(snapshot, 0)
    before = history.moment_of_most_use(0)
    assert before is not None
    assert list(history.live_at(-1)) == []


def test_the_fullest_moment_is_before_a_segment_returns(kind: str) -> None:
    """The last step: the model, its own two tensors, and all that leaked before."""
    snapshot = decode(packed(content(kind)))
    history = GpuHistory(snapshot, 0)
    moment = history.moment_of_most_use(history.events.time_us[0])
    assert moment is not None
    live = sum(each.nbytes for each in history.live_at(moment.event))
    assert live == moment.used == (6 * 8 + 5 + 30 + 12 * 3) * MIB


def test_a_history_that_begins_after_the_peak_says_so(kind: str) -> None:
    said = content(kind)
    for name, column in said["traces"][0].items():
        said["traces"][0][name] = column[60:]
    history = GpuHistory(decode(packed(said)), 0)
    assert history.moment_of_most_use(history.events.time_us[0] - 10**7) is None
    assert history.moment_of_most_use(history.events.time_us[0]) is not None


# ---- from a program that wants to harm its reader ----


def without(name: str) -> Any:
    said = content("plain")
    del said[name]
    return said


def changed(**more: Any) -> Any:
    return content("plain") | more


def event(**columns: list[int]) -> Any:
    one = {"action": [0], "address": [4096], "nbytes": [1], "time_us": [1], "stack": [0]}
    return changed(traces=[one | columns])


IMPOSSIBLE = {
    "no object": [],
    "no clock": without("wall_ns"),
    "a newer form": changed(form=2),
    "another moment": changed(at="never"),
    "text for a number": changed(wall_ns="1"),
    "frames without texts": changed(texts=[]),
    "stacks without frames": changed(frames=[]),
    "a negative frame": changed(stacks=[[], [-1]]),
    "a line below zero": changed(frames=[[0, 0, -1]]),
    "a block without a stack": changed(stacks=[[]]),
    "blocks of three numbers": changed(segments=[[0, 4096, 10, False, [1, 1, 0]]]),
    "a segment on GPU -1": changed(segments=[[-1, 4096, 10, False, []]]),
    "a segment beyond memory": changed(segments=[[0, 2**64 - 1, 10, False, []]]),
    "more blocks than segment": changed(segments=[[0, 4096, 10, False, [20, 20, 0, 0]]]),
    "an unknown state": changed(segments=[[0, 4096, 10, False, [5, 5, 9, 0]]]),
    "a negative block": changed(segments=[[0, 4096, 10, False, [-5, 5, 0, 0]]]),
    "columns of two lengths": event(action=[0, 1]),
    "an unknown action": event(action=[7]),
    "a negative action": event(action=[-1]),
    "an unknown stack": event(stack=[10_000]),
    "a negative size": event(nbytes=[-1]),
    "a time after the end of time": event(time_us=[2**60]),
    "a number of 65 bits": event(address=[2**65]),
}


@pytest.mark.parametrize("said", IMPOSSIBLE.values(), ids=IMPOSSIBLE)
def test_what_cannot_be_is_refused(said: Any) -> None:
    with pytest.raises(Rejected):
        decode(packed(said))


@pytest.mark.parametrize(
    "data",
    [  # packed when they are needed: some are large
        lambda: b"",
        lambda: b"not packed",
        lambda: packed(content("plain"))[:-20],
        lambda: zlib.compress(b"[" * 100_000),
        lambda: zlib.compress(b"[" + b"[]," * 8_000_001),
        lambda: zlib.compress(bytes(MAX_TEXT + 1), 1),
        lambda: zlib.compress(json.dumps(content("plain")).encode("utf-16")),
    ],
    ids=["empty", "not packed", "cut", "deep", "many", "large", "no utf-8"],
)
def test_what_is_no_snapshot_is_refused(data: Callable[[], bytes]) -> None:
    with pytest.raises(Rejected):
        decode(data())


def test_an_event_beyond_the_history_of_memory_does_no_harm() -> None:
    """Frees without allocations, twice the same address: sums stay what they are, nothing is raised."""
    said = event(
        action=[1, 0, 0, 1, 3, 6],
        address=[1, 2, 2, 2, 5, 0],
        nbytes=[9, 9, 9, 9, 2**63, 1],
        time_us=[5, 4, 3, 2, 1, 0],
        stack=[0] * 6,
    )
    history = GpuHistory(decode(packed(said)), 0)
    moment = history.moment_of_most_use(0)
    assert moment is None or moment.event < 6
