"""PyTorch's window, from what PyTorch 2.11 said of tests/hardware/tracer/steady_program.py to `vram attach`.

It held 64 MiB and six times 8 MiB, took and freed 32 MiB in each of 58 steps, and kept 29 MiB more.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.trace.frameworks.recorded import packed
from tests.trace.writer import TraceFile
from vram.model.trace import TraceView, Window, WindowPlace
from vram.trace.frameworks import with_frameworks
from vram.trace.frameworks.held_arrays import decode
from vram.trace.reader import open_trace
from vram.units import MIB
from vram.untrusted import Rejected

HERE = Path(__file__).parent
EMBEDDING, LAYERS, LOG = (
    f"serve.py:50 local {name} in main()"
    for name in ("'model'.embedding", "'model'.layers[0…5]", "'log'[0…20]")
)


def content(name: str) -> Any:
    return json.loads((HERE / f"{name}.json").read_text())


@pytest.fixture
def said() -> Any:
    return content("torch-2.11-attached")


@pytest.fixture
def arrays() -> Any:
    return content("arrays-attached")


def merged(folder: Path, said: Any, arrays: Any = None, *, how: int = 2) -> TraceView:
    """The trace of a process that asked the driver for nothing while it was recorded."""
    began_us = said["traces"][0]["time_us"][0] - 60_000
    lasted_ns = said["wall_ns"] - began_us * 1000
    trace = TraceFile()
    writer = trace.section(wall_ns=began_us * 1000, how=how).writer()
    writer.device(0, "0000:01:00.0", "GPU", 80 << 30)
    writer.before(1000, 0, 700 * MIB, "the driver, its context included")
    if arrays is not None:
        writer.blob("arrays", packed(arrays))
    writer.blob("torch", packed(said))
    writer.end(lasted_ns)
    path = folder / "t.vram"
    path.write_bytes(trace.bytes())
    with open_trace([path]) as opened:
        return with_frameworks(opened.view(), opened)


def torch_window(view: TraceView) -> Window:
    (found,) = (each for each in view.windows if each.framework == "torch")
    return found


def lines(view: TraceView, window: Window) -> dict[int, WindowPlace]:
    """By the line that called ``tensor``."""
    return {frames[1].line: each for each in window.places if (frames := view.stacks[each.site.stack].frames)}


def names(window: Window) -> dict[str, tuple[int, int]]:
    return {
        each.name: (each.base_count, each.base_nbytes // MIB) for each in window.places if not each.site.stack
    }


def test_what_was_there_before_has_its_name(said: Any, arrays: Any, tmp_path: Path) -> None:
    view = merged(tmp_path, said, arrays)
    window = torch_window(view)
    assert names(window) == {EMBEDDING: (1, 64), LAYERS: (6, 48), LOG: (15, 15)}
    assert window.base_nbytes == 127 * MIB
    assert {each.name: each.count for each in view.held} == {EMBEDDING: 1, LAYERS: 6, LOG: 21}


def test_without_names_it_is_one_place_without_a_stack(said: Any, tmp_path: Path) -> None:
    window = torch_window(merged(tmp_path, said))
    assert names(window) == {"": (22, 127)}


def test_what_grew_and_what_churns_is_told_by_line(said: Any, arrays: Any, tmp_path: Path) -> None:
    view = merged(tmp_path, said, arrays)
    window = torch_window(view)
    found = lines(view, window)
    assert window.trend == "growing"
    assert [line for line, each in found.items() if each.growing] == [34]
    assert (found[34].made, found[34].freed, found[34].change) == (29, 0, 29 * MIB)
    assert {line: each.made for line, each in found.items() if each.churns} == {28: 348, 29: 58}
    assert (found[28].change, found[28].freed) == (0, 348)
    assert 10_000 < (found[28].median_life_ns or 0) < 50_000_000


def test_the_highest_moment_is_what_its_places_sum_to(said: Any, arrays: Any, tmp_path: Path) -> None:
    window = torch_window(merged(tmp_path, said, arrays))
    assert window.highest_nbytes == 187 * MIB == sum(each.site.nbytes for each in window.places)
    assert window.end_nbytes == 156 * MIB == sum(each.end_nbytes for each in window.places)
    assert window.begin_ns < window.highest_ns < window.end_ns
    assert list(window.lowest) == sorted(window.lowest)


def test_the_drivers_window_says_how_much_was_held(said: Any, arrays: Any, tmp_path: Path) -> None:
    view = merged(tmp_path, said, arrays)
    (driver,) = (each for each in view.windows if each.framework is None)
    assert (driver.before_nbytes, driver.highest_nbytes, driver.places) == (700 * MIB, 0, ())
    assert not any(use.at == "peak" for use in view.frameworks), (
        "the driver had no peak while it was recorded"
    )


def test_a_history_that_kept_only_the_newest_begins_where_it_begins(said: Any, tmp_path: Path) -> None:
    """As of `vram run` of a long program: what was live then is the base, by line where that is known."""
    cut = 400
    dropped = said["traces"][0]["action"][:cut]
    said["traces"] = [{name: column[cut:] for name, column in said["traces"][0].items()}]
    view = merged(tmp_path, said)
    window = torch_window(view)
    assert window.begin_ns == pytest.approx(60_000_000, abs=2000)
    kept = lines(view, window)[34]
    assert dropped
    assert (kept.base_count, kept.end_count) == (29 - kept.made, 29)
    assert 0 < kept.base_count < 29
    assert window.base_nbytes + sum(each.change for each in window.places) == window.end_nbytes


def test_a_run_from_the_start_has_its_second_half(said: Any, tmp_path: Path) -> None:
    view = merged(tmp_path, said, how=1)
    window = torch_window(view)
    assert window.begin_ns == view.duration_ns // 2
    kept = lines(view, window)[34]
    assert 10 < kept.base_count < 20
    assert kept.made == 29 - kept.base_count
    assert kept.growing


def test_an_address_that_was_given_out_again_has_no_name(said: Any, arrays: Any, tmp_path: Path) -> None:
    """The array that was read there is another one than the block of before."""
    events = said["traces"][0]
    # A block of before that is freed early, and whose address the arrays name.
    address = arrays["arrays"][0][0]
    for name, value in {"action": 1, "address": address, "nbytes": 64 * MIB, "stack": 0}.items():
        events[name].insert(1, value)
    events["time_us"].insert(1, events["time_us"][0])
    window = torch_window(merged(tmp_path, said, arrays))
    freed = [each for each in window.places if not each.site.stack and each.freed]
    assert [(each.name, each.base_nbytes) for each in freed] == [("", 64 * MIB)]


def test_a_program_that_rests_has_a_window_of_what_it_holds(said: Any, arrays: Any, tmp_path: Path) -> None:
    first = {name: column[:1] for name, column in said["traces"][0].items()}
    view = merged(tmp_path, said | {"traces": [first | {"action": [6]}]}, arrays)
    window = torch_window(view)
    assert window.trend == "steady"
    assert window.base_nbytes == window.highest_nbytes == window.end_nbytes == 156 * MIB


IMPOSSIBLE = {
    "another form": {"form": 2},
    "no clock": {"wall_ns": None},
    "a name that is not there": {"arrays": [[1, 1, 0, 0, 99]]},
    "a framework that is not there": {"arrays": [[1, 1, 0, -1, 0]]},
    "a negative size": {"arrays": [[1, -1, 0, 0, 0]]},
    "an address beyond memory": {"arrays": [[1 << 64, 1, 0, 0, 0]]},
    "text for numbers": {"arrays": [["1", 1, 0, 0, 0]]},
    "a GPU that cannot be": {"arrays": [[1, 1, 9999, 0, 0]]},
}


@pytest.mark.parametrize("changes", IMPOSSIBLE.values(), ids=IMPOSSIBLE)
def test_arrays_that_cannot_be_are_refused(changes: dict[str, Any], arrays: Any) -> None:
    with pytest.raises(Rejected):
        decode(packed(arrays | changes))


@pytest.mark.parametrize("data", [b"", b"plain", packed([])[:-3]], ids=["empty", "not packed", "cut"])
def test_what_is_no_blob_is_refused(data: bytes) -> None:
    with pytest.raises(Rejected):
        decode(data)


def test_unreadable_names_are_damage_and_nothing_else(said: Any, tmp_path: Path) -> None:
    view = merged(tmp_path, said, {"form": 9})
    assert len(view.damage) == 1
    assert torch_window(view).base_nbytes == 127 * MIB
