"""The ledger under Windows' driver, written by hand: it balances, and it never invents."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from tests.ledger.world import RESERVED, World
from vram.ledger.build import build_ledger
from vram.ledger.deepen import Measured, deepen
from vram.ledger.indexed_survey import index_survey
from vram.ledger.wsl import match_adapters
from vram.model.files import DeviceFile, FilesFacts
from vram.model.gpu import GpuFacts
from vram.model.inside import CacheLine, Trimmed
from vram.model.ledger import Entry, GpuLedger, known_bytes
from vram.model.observation import Observation
from vram.model.process import ProcessRef
from vram.model.windows import AdapterFacts, WindowsMemoryFacts, WslFacts
from vram.units import GIB, MIB

LUID = "0x00000000_0x0000d3e4"
NAME = "NVIDIA Test"


class WslWorld(World):
    """A world whose GPUs are Windows'; like a real distribution it has a PID namespace of its own."""

    def __init__(self) -> None:
        super().__init__(initial_pid_namespace=False)
        self.host = replace(self.host, wsl=True, wsl_facts=WslFacts(2, gpu_device=True, interop=True))

    def adapter(
        self, luid: str = LUID, *, name: str | None = NAME, vendor: int | None = 0x10DE, **about: object
    ) -> WslWorld:
        self._see("windows.counters", facts=AdapterFacts(luid=luid, name=name, vendor=vendor, **about))  # type: ignore[arg-type]
        return self

    def windows(
        self, pid: int, local: int | None, name: str | None = "a.exe", *, luid: str = LUID
    ) -> WslWorld:
        self._see("windows.counters", facts=WindowsMemoryFacts(pid=pid, luid=luid, name=name, local=local))
        return self

    def guest(self, local: int, *, luid: str = LUID) -> WslWorld:
        return self.windows(9120, local, "vmmemWSL", luid=luid)

    def linux(self, pid: int, *, family: int | None = None, listed: bool = True, gpu: int = 0) -> WslWorld:
        """A process with the device open; one family has the very same open file."""
        self.process(pid)
        file = DeviceFile(5, "dxg", "/dev/dxg", None, family or pid)
        self._see("proc.files", process=ProcessRef(pid), facts=FilesFacts((file,), 0))
        if listed:
            self.charge(pid, None, gpu=gpu)
        return self


def world(used: int = 8 * GIB) -> WslWorld:
    made = WslWorld()
    made.gpu(used=used)
    return made.adapter()


def page(made: World, index: int = 0) -> GpuLedger:
    found = build_ledger(made.survey()).gpus[index]
    assert known_bytes(found.entries) == found.total_bytes
    return found


def kinds(found: GpuLedger) -> dict[str, int]:
    held = [entry for entry in found.entries if entry.kind not in ("free", "reserved")]
    return {kind: known_bytes(e for e in held if e.kind == kind) for kind in {e.kind for e in held}}


def only(found: GpuLedger, kind: str) -> Entry:
    (entry,) = [entry for entry in found.entries if entry.kind == kind]
    return entry


def test_everything_told_sums_to_what_is_used() -> None:
    found = page(world().windows(7, 3 * GIB).guest(5 * GIB).linux(100))
    assert kinds(found) == {"windows": 3 * GIB, "process": 5 * GIB}
    assert found.notes == ()


def test_a_child_with_the_same_open_file_shares_and_does_not_double() -> None:
    found = page(world().windows(7, 3 * GIB).guest(5 * GIB).linux(100).linux(101, family=100, listed=False))
    mine = only(found, "process")
    assert (mine.nbytes, mine.holder and mine.holder.pid) == (5 * GIB, 100)
    assert [co_holder.pid for co_holder in mine.co_holders] == [101]


def test_a_figure_that_the_driver_does_tell_counts_first() -> None:
    made = world().windows(7, 3 * GIB).guest(5 * GIB).linux(100, listed=False).linux(200)
    made.charge(100, 2 * GIB)
    found = page(made)
    assert {(e.holder.pid, e.nbytes, e.confidence) for e in found.entries if e.holder} == {
        (100, 2 * GIB, "fact"),
        (200, 3 * GIB, "likely"),
    }


def test_the_driver_lists_another_distributions_pid_and_it_is_not_taken_for_ours() -> None:
    """The same number can be somebody here who never touched a GPU."""
    made = world().guest(8 * GIB).linux(100)
    made.process(555)
    made.charge(555, None)
    found = page(made)
    assert kinds(found) == {"guest": 8 * GIB, "process": 0}
    assert {e.holder.pid for e in found.entries if e.holder} == {100}


def test_without_counters_nothing_is_given_to_the_only_process() -> None:
    """The rest may all be Windows': alone here is not alone on the GPU."""
    made = WslWorld()
    made.gpu(used=8 * GIB)
    found = page(made.linux(100))
    assert kinds(found) == {"hidden": 8 * GIB, "process": 0}
    assert only(found, "hidden").hidden_by == "windows"
    assert only(found, "process").confidence == "unknown"


def test_more_than_there_is_gives_way_and_is_told() -> None:
    found = page(world(used=4 * GIB).windows(7, 3 * GIB).guest(3 * GIB).linux(100))
    assert sum(kinds(found).values()) == 4 * GIB
    assert [note.code for note in found.notes if "2.0 GiB more" in note.text] == ["windows-apart"]
    assert {entry.claimed for entry in found.entries if entry.claimed} == {3 * GIB}


def test_small_differences_are_no_news() -> None:
    found = page(world().windows(7, 3 * GIB).guest(5 * GIB - 63 * MIB).linux(100))
    assert found.notes == ()
    assert only(found, "unattributed").nbytes == 63 * MIB


def test_other_vendors_adapters_are_nobodys_business() -> None:
    made = world().adapter("0x1_0x1", name="Intel UHD", vendor=0x8086).windows(7, GIB, luid="0x1_0x1")
    assert "windows" not in kinds(page(made.guest(8 * GIB).linux(100)))


def two_gpus(*places: str | None) -> WslWorld:
    made = WslWorld()
    for index, place in enumerate(places):
        made.gpu(index, used=GIB)
        facts = GpuFacts(uuid=f"GPU-{index}", name=NAME, minor=None, bus_id=place)
        made.observations.append(Observation(probe="nvml.gpu", gpu=index, facts=facts))
    return made


def test_adapters_are_joined_by_place_before_name() -> None:
    made = two_gpus("00000000:01:00.0", "00000000:41:00.0")
    made.adapter("A", bus=(0x41, 0, 0)).adapter("B", bus=(1, 0, 0))
    joined = match_adapters(index_survey(made.survey()))
    assert {index: each.adapter and each.adapter.luid for index, each in joined.items()} == {0: "B", 1: "A"}
    assert all(each.certain for each in joined.values())


def test_a_name_decides_where_it_is_the_only_one() -> None:
    made = two_gpus(None, None)
    other = GpuFacts(uuid="GPU-1", name="NVIDIA Other", minor=None)
    made.observations.append(Observation(probe="nvml.gpu", gpu=1, facts=other))
    made.adapter("A", name="NVIDIA Other").adapter("B", name=NAME)
    joined = match_adapters(index_survey(made.survey()))
    assert {index: each.adapter and each.adapter.luid for index, each in joined.items()} == {0: "B", 1: "A"}


def test_twins_without_places_stay_apart_from_both() -> None:
    joined = match_adapters(index_survey(two_gpus(None, None).adapter("A").adapter("B").survey()))
    assert all(each.adapter is None for each in joined.values())
    assert all({a.luid for a in each.candidates} == {"A", "B"} for each in joined.values())


def test_an_adapter_that_is_only_remembered_is_in_nobodys_way() -> None:
    """After a new driver the registry has the card twice; only the one that is there has counters."""
    made = WslWorld()
    made.gpu(used=GIB)
    facts = GpuFacts(uuid="GPU-0", name=NAME, minor=None)
    made.observations.append(Observation(probe="nvml.gpu", gpu=0, facts=facts))
    made.adapter("OLD").adapter("NEW", local=0).windows(7, GIB, luid="NEW")
    entry = only(page(made), "windows")
    assert (entry.nbytes, entry.confidence) == (GIB, "fact")


def test_the_only_adapter_is_the_likely_one_whatever_it_is_called() -> None:
    made = WslWorld()
    made.gpu(used=GIB)
    made.adapter(name=None, vendor=None).windows(7, GIB)
    entry = only(page(made), "windows")
    assert entry.confidence == "likely"


def test_linux_processes_of_several_gpus_are_told_apart_by_the_drivers_lists() -> None:
    made = (
        two_gpus("00000000:01:00.0", "00000000:02:00.0")
        .adapter("A", bus=(1, 0, 0))
        .adapter("B", bus=(2, 0, 0))
    )
    made.guest(GIB, luid="A").guest(GIB, luid="B").linux(100, gpu=0).linux(200, gpu=1)
    assert [only(page(made, at), "process").holder.pid for at in (0, 1)] == [100, 200]  # type: ignore[union-attr]


def test_asked_inside_processes_take_their_share_out_of_what_all_hold() -> None:
    ledger = build_ledger(world().guest(8 * GIB).linux(100).linux(200).survey())
    line = CacheLine(
        name="PyTorch",
        memory="device",
        device=0,
        held=3 * GIB,
        reclaimable=GIB,
        held_after=3 * GIB,
        used=2 * GIB,
    )
    inside = Measured("agent", Trimmed(status="done", devices={"0": "GPU-0"}, lines=(line,)))
    (found,) = deepen(ledger, {100: inside}).gpus
    assert known_bytes(found.entries) == found.total_bytes
    assert kinds(found) == {"live": 2 * GIB, "cached": GIB, "guest": 5 * GIB, "process": 0}


sizes = st.none() | st.integers(0, 40 * GIB)


@given(
    used=st.integers(0, 100 * GIB - RESERVED),
    others=st.lists(sizes, max_size=4),
    guests=st.lists(sizes, max_size=2),
    linux=st.lists(st.tuples(st.integers(0, 2), st.booleans()), max_size=3),
    told=st.booleans(),
)
def test_any_windows_balances(
    used: int, others: list[int | None], guests: list[int | None], linux: list[tuple[int, bool]], told: bool
) -> None:
    made = WslWorld()
    made.gpu(used=used)
    if told:
        made.adapter()
    for pid, local in enumerate(others):
        made.windows(10 + pid, local)
    for pid, local in enumerate(guests):
        made.windows(50 + pid, local, "vmmem")
    for at, (family, listed) in enumerate(linux):
        made.linux(100 + at, family=100 + family, listed=listed)
    found = page(made)
    assert all(entry.nbytes is None or entry.nbytes >= 0 for entry in found.entries)
    opened = {100 + at for at in range(len(linux))}
    named = {h.pid for e in found.entries for h in (e.holder, *e.co_holders) if h}
    assert named == opened
