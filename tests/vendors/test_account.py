"""The account of AMD's and Intel's GPUs: every byte once, to the byte, whoever has it open."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from tests.vendors.conftest import balances, held_by, ledger_of, only_gpu, take
from tests.vendors.fdinfo_styles import AMDGPU_KERNELS, Use
from tests.vendors.machine import Card, Machine
from vram.ledger.build import build_ledger
from vram.model.files import CapacityFacts, ClientFacts, ComputeFacts, Region, SystemMemoryFacts
from vram.model.gpu import GpuFacts, MemoryFacts
from vram.model.ledger import known_bytes
from vram.model.observation import HostFacts, Observation, Survey
from vram.model.process import ProcessFacts, ProcessRef
from vram.units import GIB, MIB

AMD = "0000:03:00.0"


def amd(machine: Machine, used: int, total: int = 24 * GIB, gtt: tuple[int, int] | None = None) -> Card:
    return machine.card("amdgpu", AMD, total=total, used=used, gtt=gtt)


def test_memory_that_a_driver_reserves_has_a_line_of_its_own() -> None:
    """No driver of AMD's or Intel's tells such a figure today; a snapshot can."""
    facts = GpuFacts(uuid="PCI", name="x", bus_id=AMD, vendor="amd", driver="amdgpu")
    memory = MemoryFacts(total=24 * GIB, free=20 * GIB, used=3 * GIB, reserved=GIB)
    host = HostFacts(name="h", kernel="k", user="u", uid=0)
    observations = (
        Observation(probe="drm.gpu", gpu=0, facts=facts),
        Observation(probe="drm.memory", gpu=0, facts=memory),
        Observation(
            probe="drm.clients",
            process=ProcessRef(5, 50),
            facts=ClientFacts(fd=3, address=AMD, client=1, regions=(Region("vram", True, 3 * GIB),)),
        ),
        Observation(probe="proc", process=ProcessRef(5, 50), facts=ProcessFacts(command="x")),
    )
    survey = Survey(program="p", taken_at="t", host=host, observations=observations, probes=())
    (gpu,) = build_ledger(survey).gpus
    assert balances(gpu)
    assert [(entry.kind, entry.nbytes) for entry in gpu.entries] == [
        ("process", 3 * GIB),
        ("reserved", GIB),
        ("free", 20 * GIB),
    ]


@pytest.mark.parametrize("kernel", AMDGPU_KERNELS)
def test_every_kernel_tells_the_same(machine: Machine, kernel: str) -> None:
    card = amd(machine, 8 * GIB)
    machine.client(machine.process(5), card, Use(vram=6 * GIB, system=GIB), kernel=kernel)
    machine.client(machine.process(6), card, Use(vram=2 * GIB), kernel=kernel)
    gpu = only_gpu(machine)
    assert balances(gpu)
    assert [(entry.kind, entry.nbytes) for entry in gpu.entries] == [
        ("process", 6 * GIB),
        ("process", 2 * GIB),
        ("free", 16 * GIB),
    ]
    assert {entry.confidence for entry in gpu.entries} == {"fact"}


def test_descriptors_of_one_client_count_once(machine: Machine) -> None:
    """By dup, on both of its device files, and in a forked child."""
    card = amd(machine, 4 * GIB)
    parent = machine.process(5)
    number = machine.client(parent, card, Use(vram=4 * GIB))
    machine.client(parent, card, Use(vram=4 * GIB), number=number)
    machine.client(parent, card, Use(vram=4 * GIB), number=number, node="card")
    machine.client(machine.process(6, parent=5), card, Use(vram=4 * GIB), number=number)
    gpu = only_gpu(machine)
    (entry,) = held_by(gpu, 5)
    assert entry.nbytes == 4 * GIB
    assert [co_holder.pid for co_holder in entry.co_holders] == [6]
    assert [(each.holder.pid, each.inherited_from) for each in gpu.open_only] == [(6, 5)]
    assert balances(gpu)


def test_several_that_share_a_client_have_it(machine: Machine) -> None:
    card = amd(machine, GIB)
    number = machine.client(machine.process(5), card, Use(vram=GIB))
    for child in (6, 7):
        machine.client(machine.process(child, parent=5), card, Use(vram=GIB), number=number)
    (entry,) = held_by(only_gpu(machine), 5)
    assert entry.evidence[-1] == "pid 6, 7 have the same client open, inherited by fork"


def test_the_same_number_on_another_card_is_another_client(machine: Machine) -> None:
    cards = [machine.card("amdgpu", f"0000:0{at}:00.0", total=8 * GIB, used=GIB) for at in (3, 4)]
    machine.process(5)
    for card in cards:
        machine.client(5, card, Use(vram=GIB), number=42)
    assert [known_bytes(held_by(gpu, 5)) for gpu in ledger_of(machine).gpus] == [GIB, GIB]


def test_without_a_number_and_a_word_of_the_kernel_nothing_is_counted_twice(machine: Machine) -> None:
    card = amd(machine, 4 * GIB)
    machine.process(5)
    for _ in range(3):
        machine.fdinfo(5, card, f"drm-driver:\tamdgpu\ndrm-pdev:\t{AMD}\ndrm-memory-vram:\t1048576 KiB\n")
    (entry,) = held_by(only_gpu(machine), 5)
    assert (entry.nbytes, entry.confidence) == (GIB, "likely")


def test_without_an_address_the_device_file_names_the_card(machine: Machine) -> None:
    machine.card("xe", "0000:0a:00.0", tiles=(8 * GIB,))
    card = amd(machine, GIB)
    machine.process(5)
    machine.fdinfo(5, card, "drm-driver:\tamdgpu\ndrm-client-id:\t7\ndrm-memory-vram:\t1048576 KiB\n")
    first, second = ledger_of(machine).gpus
    assert held_by(first, 5)[0].nbytes == GIB
    assert held_by(second, 5) == []


def test_shared_memory_counts_once(machine: Machine) -> None:
    """A compositor shares a buffer with each of its programs, and every client shows its part."""
    card = amd(machine, 400 * MIB)
    machine.client(machine.process(5, "compositor"), card, Use(vram=200 * MIB, shared=150 * MIB))
    machine.client(machine.process(6, "browser"), card, Use(vram=190 * MIB, shared=90 * MIB))
    machine.client(machine.process(7, "player"), card, Use(vram=160 * MIB, shared=60 * MIB))
    gpu = only_gpu(machine)
    assert balances(gpu)
    shared = [entry for entry in gpu.entries if entry.medium == "shared"]
    assert [(entry.holder.pid, entry.nbytes) for entry in shared if entry.holder] == [(5, 150 * MIB)]
    assert {co_holder.pid for co_holder in shared[0].co_holders} == {6, 7}
    private = {pid: known_bytes(e for e in held_by(gpu, pid) if e.medium is None) for pid in (5, 6, 7)}
    assert private == {5: 50 * MIB, 6: 100 * MIB, 7: 100 * MIB}


@pytest.mark.parametrize(("listed", "counted"), [(9 * GIB, 9 * GIB), (8 * GIB, 8 * GIB), (GIB, 8 * GIB)])
def test_rocms_figure_and_the_clients_overlap(machine: Machine, listed: int, counted: int) -> None:
    card = amd(machine, 10 * GIB)
    machine.client(machine.process(5), card, Use(vram=8 * GIB))
    machine.kfd(5, card, listed)
    gpu = only_gpu(machine)
    assert known_bytes(held_by(gpu, 5)) == counted
    assert balances(gpu)


def test_rocms_memory_in_a_shared_client_is_not_counted_again(machine: Machine) -> None:
    card = amd(machine, 8 * GIB)
    number = machine.client(machine.process(5), card, Use(vram=6 * GIB))
    machine.client(machine.process(6, parent=5), card, Use(vram=6 * GIB), number=number)
    machine.client(5, card, Use(vram=GIB))
    machine.kfd(5, card, 6 * GIB)
    gpu = only_gpu(machine)
    assert known_bytes(held_by(gpu, 5)) == 7 * GIB
    assert balances(gpu)


def test_rocm_names_whom_we_may_not_look_into(machine: Machine) -> None:
    """Its list is open to all, so another user's process has a figure without its files."""
    card = amd(machine, 8 * GIB)
    machine.process(5, uid=1000)
    machine.kfd(5, card, 7 * GIB)
    (entry,) = held_by(only_gpu(machine), 5)
    assert (entry.kind, entry.nbytes, entry.confidence) == ("process", 7 * GIB, "fact")


def test_rocm_lists_a_process_that_is_gone(machine: Machine) -> None:
    card = amd(machine, 8 * GIB)
    machine.kfd(5, card, 7 * GIB)
    gpu = only_gpu(machine)
    (entry,) = held_by(gpu, 5)
    assert (entry.kind, entry.nbytes, entry.holder and entry.holder.alive) == ("orphaned", 7 * GIB, False)
    assert balances(gpu)


def test_rocms_pids_are_the_hosts(machine: Machine) -> None:
    """Inside a container the same number is somebody else: nobody is named."""
    card = amd(machine, 8 * GIB)
    machine.client(machine.process(5), card, Use(vram=2 * GIB))
    machine.kfd(5, card, 5 * GIB)
    machine.kfd(4711, card, 2 * GIB)
    survey = take(machine)
    inside = replace(survey, host=replace(survey.host, initial_pid_namespace=False))
    (gpu,) = build_ledger(inside).gpus
    assert balances(gpu)
    assert known_bytes(held_by(gpu, 5)) == 2 * GIB
    hidden = [entry for entry in gpu.entries if entry.kind == "hidden"]
    assert known_bytes(hidden) == 6 * GIB
    assert {entry.hidden_by for entry in hidden} == {"namespace"}


def test_workers_of_a_dead_parent_keep_its_memory(machine: Machine) -> None:
    """They share a client, and neither comes from the other: whoever opened it is gone."""
    card = amd(machine, 4 * GIB)
    number = machine.client(machine.process(6, group=5, session=5), card, Use(vram=4 * GIB))
    machine.client(machine.process(7, group=5, session=5), card, Use(vram=4 * GIB), number=number)
    (entry,) = held_by(only_gpu(machine), 6)
    assert (entry.kind, entry.charged_pid, entry.confidence) == ("orphaned", 5, "likely")
    assert [co_holder.pid for co_holder in entry.co_holders] == [7]


def test_a_living_leader_makes_nobody_an_orphan(machine: Machine) -> None:
    """The shell that started both is no ancestor of theirs any more, and lives."""
    card = amd(machine, 4 * GIB)
    machine.process(5, "bash")
    number = machine.client(machine.process(6, group=5, session=5), card, Use(vram=4 * GIB))
    machine.client(machine.process(7, group=5, session=5), card, Use(vram=4 * GIB), number=number)
    (entry,) = held_by(only_gpu(machine), 6)
    assert (entry.kind, entry.charged_pid) == ("process", None)


def test_a_session_service_is_not_the_user(machine: Machine) -> None:
    """logind opens the card for the compositor and keeps a copy."""
    card = amd(machine, GIB)
    machine.process(5, "systemd-logind", executable="/usr/lib/systemd/systemd-logind")
    machine.process(9, "gnome-shell", executable="/usr/bin/gnome-shell")
    number = machine.client(5, card, Use(vram=GIB))
    machine.client(9, card, Use(vram=GIB), number=number)
    gpu = only_gpu(machine)
    (entry,) = held_by(gpu, 9)
    assert [co_holder.pid for co_holder in entry.co_holders] == [5]
    assert held_by(gpu, 5) == []


def test_what_is_in_use_with_nobody_there_is_the_drivers(machine: Machine) -> None:
    amd(machine, 300 * MIB)
    gpu = only_gpu(machine)
    assert [(entry.kind, entry.nbytes) for entry in gpu.entries if entry.kind != "free"] == [
        ("reserved", 300 * MIB)
    ]


def test_a_little_more_than_the_clients_is_the_drivers_too(machine: Machine) -> None:
    card = amd(machine, GIB + 100 * MIB)
    machine.client(machine.process(5), card, Use(vram=GIB))
    assert [entry.kind for entry in only_gpu(machine).entries] == ["process", "overhead", "free"]


def test_much_more_than_the_clients_is_unexplained(machine: Machine) -> None:
    card = amd(machine, 9 * GIB)
    machine.client(machine.process(5), card, Use(vram=GIB))
    assert [(entry.kind, entry.nbytes) for entry in only_gpu(machine).entries[:1]] == [
        ("unattributed", 8 * GIB)
    ]


def test_more_in_use_than_there_is(machine: Machine) -> None:
    card = amd(machine, 9 * GIB, total=8 * GIB)
    machine.client(machine.process(5), card, Use(vram=10 * GIB))
    gpu = only_gpu(machine)
    assert balances(gpu)
    assert [(entry.nbytes, entry.claimed) for entry in held_by(gpu, 5)] == [(8 * GIB, 10 * GIB)]
    assert "over-full" in [note.code for note in gpu.notes]


def test_a_dmabuf_whose_maker_is_gone(machine: Machine) -> None:
    amd(machine, 3 * GIB)
    machine.dmabuf(machine.process(5), 2 * GIB, "amdgpu")
    gpu = only_gpu(machine)
    assert balances(gpu)
    (entry,) = held_by(gpu, 5)
    assert (entry.kind, entry.medium, entry.nbytes, entry.confidence) == (
        "exported",
        "dmabuf",
        2 * GIB,
        "likely",
    )


def test_a_dmabuf_of_a_living_client_is_in_its_figures(machine: Machine) -> None:
    card = amd(machine, 6 * GIB)
    machine.client(machine.process(5), card, Use(vram=3 * GIB, shared=2 * GIB))
    machine.dmabuf(machine.process(6), 2 * GIB, "amdgpu")
    gpu = only_gpu(machine)
    assert [entry for entry in gpu.entries if entry.kind == "exported"] == []
    assert balances(gpu)


def test_an_intel_card_whose_use_is_not_told(machine: Machine) -> None:
    card = machine.card("xe", "0000:0a:00.0", tiles=(8 * GIB, 8 * GIB))
    machine.client(machine.process(5), card, Use(vram=3 * GIB, second_tile=GIB))
    gpu = only_gpu(machine)
    assert [(entry.kind, entry.nbytes) for entry in gpu.entries] == [
        ("process", 4 * GIB),
        ("unreported", 12 * GIB),
    ]
    assert (gpu.total_bytes, gpu.status) == (16 * GIB, "ok")


def test_an_intel_card_whose_use_the_cgroups_tell(machine: Machine) -> None:
    card = machine.card("xe", "0000:0a:00.0")
    machine.dmem(card, vram0=(12 * GIB, 3 * GIB + 90 * MIB))
    machine.client(machine.process(5), card, Use(vram=3 * GIB))
    gpu = only_gpu(machine)
    assert balances(gpu)
    assert [(entry.kind, entry.nbytes) for entry in gpu.entries] == [
        ("process", 3 * GIB),
        ("overhead", 90 * MIB),
        ("free", 9 * GIB - 90 * MIB),
    ]


def test_cgroups_that_tell_less_than_the_clients(machine: Machine) -> None:
    """Figures of different moments: nothing is made up, and the sum stays the total."""
    card = machine.card("xe", "0000:0a:00.0")
    machine.dmem(card, vram0=(4 * GIB, GIB))
    machine.client(machine.process(5), card, Use(vram=3 * GIB))
    assert balances(only_gpu(machine))


def test_a_sleeping_card_says_why_its_size_is_unknown(machine: Machine) -> None:
    card = machine.card("xe", "0000:0a:00.0", tiles=(8 * GIB,))
    machine.sleep(card)
    machine.client(machine.process(5), card, Use(vram=3 * GIB))
    gpu = only_gpu(machine)
    assert (gpu.total_bytes, gpu.status) == (None, "unsupported")
    assert gpu.message is not None
    assert gpu.message.startswith("the card is suspended, ")


def test_an_intel_card_whose_size_is_not_told(machine: Machine) -> None:
    card = machine.card("i915", "0000:0b:00.0")
    machine.client(machine.process(5), card, Use(vram=3 * GIB))
    gpu = only_gpu(machine)
    assert (gpu.total_bytes, gpu.status) == (None, "unsupported")
    assert [entry.nbytes for entry in gpu.entries] == [3 * GIB]


def test_an_integrated_gpu_lives_on_the_machines_memory(machine: Machine) -> None:
    card = machine.card("i915", "0000:00:02.0")
    machine.client(machine.process(5), card, Use(system=900 * MIB))
    gpu = only_gpu(machine)
    assert (gpu.total_bytes, gpu.entries, gpu.status) == (0, (), "ok")
    assert gpu.system is not None
    assert [entry.nbytes for entry in gpu.accounted] == [900 * MIB]


def test_an_apu_has_both(machine: Machine) -> None:
    """A small part of its own, and the machine's memory where the work really lies."""
    card = amd(machine, 200 * MIB, total=512 * MIB, gtt=(48 * GIB, 25 * GIB))
    machine.client(machine.process(5, "llama-server"), card, Use(vram=5 * MIB, system=24 * GIB))
    gpu = only_gpu(machine)
    assert balances(gpu)
    assert gpu.system is not None
    assert [(entry.kind, entry.nbytes) for entry in gpu.system.entries] == [
        ("process", 24 * GIB),
        ("unattributed", GIB),
    ]


def test_a_driver_that_tells_nothing_of_its_clients(machine: Machine) -> None:
    """An i915 before there were figures: who has the GPU open is known, and not what for."""
    card = machine.card("i915", "0000:0b:00.0")
    machine.client(machine.process(5), card, kernel="5.15")
    (entry,) = only_gpu(machine).entries
    assert (entry.nbytes, entry.confidence) == (None, "unknown")


def test_numbers_follow_nvidias(machine: Machine) -> None:
    """Whether its driver answers or not, the others keep theirs."""
    machine.card("nvidia", "0000:01:00.0")
    machine.card("nvidia", "0000:02:00.0")
    amd(machine, 0)
    assert [gpu.index for gpu in ledger_of(machine).gpus] == [2]


def test_an_apu_whose_rocm_memory_is_the_machines(machine: Machine) -> None:
    """amdgpu puts ROCm's memory into GTT there, and its list goes on calling it vram."""
    card = amd(machine, 400 * MIB, total=512 * MIB, gtt=(62 * GIB, 45 * GIB))
    machine.client(machine.process(5), card, Use(vram=20 * MIB, system=40 * GIB))
    machine.kfd(5, card, 41 * GIB, bank=62 * GIB)
    machine.process(6)  # somebody whose open files may not be read
    machine.kfd(6, card, 3 * GIB)
    gpu = only_gpu(machine)
    assert balances(gpu)
    assert [entry.nbytes for entry in held_by(gpu, 5)] == [20 * MIB]
    assert held_by(gpu, 6) == []
    assert not gpu.notes
    assert gpu.system is not None
    assert [(entry.holder and entry.holder.pid, entry.nbytes) for entry in gpu.system.entries] == [
        (5, 41 * GIB),
        (6, 3 * GIB),
        (None, GIB),
    ]


def test_a_card_whose_rocm_memory_is_its_own(machine: Machine) -> None:
    """However much of the machine's memory it may use beside it."""
    card = amd(machine, 9 * GIB, gtt=(62 * GIB, GIB))
    machine.client(machine.process(5), card, Use(vram=8 * GIB, system=GIB))
    machine.kfd(5, card, 9 * GIB, bank=24 * GIB)
    gpu = only_gpu(machine)
    assert [entry.nbytes for entry in held_by(gpu, 5)] == [9 * GIB]
    assert gpu.system is not None
    assert [entry.nbytes for entry in gpu.system.entries] == [GIB]


def test_what_left_the_gpus_reach_is_no_part_of_its_gtt(machine: Machine) -> None:
    """amdgpu's own figure of GTT leaves out what clients call cpu, so they take nobody's part of it."""
    card = amd(machine, 4 * GIB, gtt=(32 * GIB, 2 * GIB))
    moved = (
        f"drm-memory-vram:\t{GIB >> 10} KiB\ndrm-memory-gtt:\t0 KiB\ndrm-memory-cpu:\t{3 * GIB >> 10} KiB\n"
    )
    who = f"drm-driver:\tamdgpu\ndrm-client-id:\t1\ndrm-pdev:\t{AMD}\n"
    machine.fdinfo(machine.process(5), card, who + moved)
    machine.client(machine.process(6), card, Use(vram=3 * GIB, system=GIB))
    gpu = only_gpu(machine)
    assert balances(gpu)
    assert gpu.system is not None
    assert [
        (entry.kind, entry.holder and entry.holder.pid, entry.nbytes) for entry in gpu.system.entries
    ] == [
        ("process", 6, GIB),
        ("unattributed", None, GIB),
    ]


SIZES = st.one_of(st.none(), st.integers(0, 40 * GIB), st.just(0))
CLIENTS = st.lists(
    st.tuples(
        st.integers(2, 9),  # pid
        st.one_of(st.none(), st.integers(1, 5)),  # client
        st.one_of(st.none(), st.integers(1, 3)),  # description
        SIZES,
        SIZES,
        SIZES,
    ),
    max_size=25,
)
PROCESSES = st.lists(
    st.tuples(st.integers(2, 9), st.integers(0, 9), st.integers(0, 9), st.sampled_from("RSTDZX")), max_size=10
)


@given(
    CLIENTS,
    PROCESSES,
    st.lists(st.tuples(st.integers(2, 12), SIZES), max_size=6),
    st.sampled_from(["memory", "capacity", "nothing"]),
    st.integers(0, 40 * GIB),
    st.integers(0, 60 * GIB),
    st.one_of(st.none(), st.integers(0, 50 * GIB)),
    st.tuples(SIZES, SIZES),
    st.booleans(),
    st.booleans(),
)
def test_every_survey_balances(
    clients, processes, compute, told, total, used, reserved, system, namespace, apu
):
    """Whatever drivers say and however they contradict themselves: to the byte, and never negative."""
    observations = [
        Observation(
            probe="drm.gpu",
            gpu=0,
            facts=GpuFacts(uuid="PCI", name="x", bus_id=AMD, vendor="amd", driver="amdgpu", nodes=(0, 128)),
        )
    ]
    if told == "memory":
        facts = MemoryFacts(total=total, free=max(0, total - used), used=used, reserved=reserved)
        observations.append(Observation(probe="drm.memory", gpu=0, facts=facts))
    if told == "capacity":
        observations.append(Observation(probe="drm.memory", gpu=0, facts=CapacityFacts(total)))
    observations.append(Observation(probe="drm.system", gpu=0, facts=SystemMemoryFacts(*system)))
    for pid, client, description, vram, shared, gtt in clients:
        part = None if shared is None or vram is None else min(shared, vram)
        regions = (Region("vram", True, vram, part), Region("gtt", False, gtt))
        facts = ClientFacts(fd=3, address=AMD, client=client, description=description, regions=regions)
        observations.append(Observation(probe="drm.clients", process=ProcessRef(pid), facts=facts))
    for pid, nbytes in compute:
        listed = Observation(
            probe="drm.compute", process=ProcessRef(pid), nbytes=nbytes, facts=ComputeFacts(AMD, system=apu)
        )
        observations.append(listed)
    for pid, parent, group, state in processes:
        facts = ProcessFacts(command="x", parent=parent, group=group, session=group, state=state)
        observations.append(Observation(probe="proc", process=ProcessRef(pid, pid), facts=facts))
    host = HostFacts(name="h", kernel="k", user="u", uid=0, initial_pid_namespace=namespace)
    survey = Survey(program="p", taken_at="t", host=host, observations=tuple(observations), probes=())
    (gpu,) = build_ledger(survey).gpus
    assert balances(gpu)
    assert (gpu.total_bytes is None) == (told == "nothing")


def test_a_snapshot_tells_the_same(machine: Machine, tmp_path: Path) -> None:
    from vram.probes import bundle

    card = amd(machine, 5 * GIB, gtt=(GIB, MIB))
    machine.client(machine.process(5), card, Use(vram=4 * GIB, shared=GIB, system=MIB))
    machine.kfd(5, card, 4 * GIB)
    machine.client(6, machine.card("xe", "0000:0a:00.0", tiles=(GIB,)), Use(vram=MIB)) if machine.process(
        6
    ) else 0
    survey = take(machine)
    bundle.write(survey, str(tmp_path / "snapshot.json"))
    again = bundle.read(str(tmp_path / "snapshot.json"))
    assert build_ledger(again) == build_ledger(survey)
    redacted = build_ledger(bundle.redact(survey))
    assert [[(e.kind, e.nbytes) for e in gpu.entries] for gpu in redacted.gpus] == [
        [(e.kind, e.nbytes) for e in gpu.entries] for gpu in build_ledger(survey).gpus
    ]


@pytest.mark.parametrize(
    "facts",
    [
        CapacityFacts(-1),
        SystemMemoryFacts(None, 1 << 63),
        ClientFacts(fd=3, address=AMD, regions=(Region("vram", True, -5),)),
        ClientFacts(fd=3, address=AMD, regions=(Region("vram", True, 5, 1 << 62),)),
    ],
)
def test_a_snapshot_with_impossible_sizes_is_refused(facts) -> None:
    from vram.errors import BadSnapshot
    from vram.probes import bundle

    host = HostFacts(name="h", kernel="k", user="u", uid=0)
    seen = (Observation(probe="drm", gpu=0, process=ProcessRef(5), facts=facts),)
    survey = Survey(program="p", taken_at="t", host=host, observations=seen, probes=())
    with pytest.raises(BadSnapshot, match="an invalid size"):
        bundle.loads(bundle.dumps(survey))
