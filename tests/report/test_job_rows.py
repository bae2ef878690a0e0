"""Processes that were launched together are one row; what is wrong with one of them is a row of its own."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from tests.report.samples import make_gpu, make_holder, make_ledger
from tests.report.test_any_screen import LEDGERS
from vram.ledger.jobs import HeldByJob, by_job
from vram.model.gpu import GpuFacts
from vram.model.hold import HeldPart, Hold
from vram.model.ledger import Entry, Holder, Ledger, known_bytes
from vram.model.process import Job
from vram.report.job_rows import ORPHANS, job_name, rows_by_job
from vram.report.layout import RenderOptions
from vram.report.process_rows import JobRow, ProcessRow, rows
from vram.report.process_table import process_lines
from vram.report.screen import screen
from vram.units import GIB

TORCHRUN = Job(by="torchrun", key="1000.torchrun.1.7", launcher=7, rank=0, size=4, local_size=4)
POOL = Job(by="multiprocessing", key="1000.multiprocessing.5", launcher=5)
TRAIN = "/usr/bin/python3 -u /home/alice/train.py --lr 3"


def ranks(count: int, job: Job = TORCHRUN, **fields: object) -> list[Holder]:
    """Processes of one job, the first rank last."""
    return [
        make_holder(100 + rank, TRAIN, job=replace(job, rank=rank), **fields)
        for rank in reversed(range(count))
    ]


def holding(*holders: Holder, utilization: int | None = 50) -> Ledger:
    """Each of *holders* has a GPU of its own, and one GiB of it."""
    return make_ledger(
        *(
            make_gpu(
                Entry(kind="process", nbytes=GIB, holder=holder),
                index=at,
                facts=GpuFacts(uuid=f"GPU-{at}", name="NVIDIA H200", utilization=utilization),
            )
            for at, holder in enumerate(holders)
        )
    )


def table(found: Sequence[ProcessRow], width: int = 80) -> list[str]:
    return [line.plain.rstrip() for line in process_lines(found, RenderOptions(width))[1:]]


def test_a_healthy_job_is_one_row_with_the_sums_of_its_ranks() -> None:
    (row,) = rows_by_job(holding(*ranks(4)))
    assert isinstance(row, JobRow)
    assert (row.pid, row.others) == (100, ((101, 707), (102, 714), (103, 721)))
    assert (row.nbytes, row.gpus, row.state, row.user) == (4 * GIB, (0, 1, 2, 3), "ok", "alice")
    assert table([row]) == ["0-3 4.0 GiB 100+3 alice  3h ok    torchrun train.py, 4 ranks"]


def test_the_table_for_scripts_has_a_row_for_each_process() -> None:
    found = rows(holding(*ranks(4)))
    assert [row.pid for row in found] == [100, 101, 102, 103]
    assert [row.job.rank for row in found if row.job] == [0, 1, 2, 3]
    assert all(row.command == TRAIN for row in found)


def test_a_job_with_one_process_is_shown_as_any_other() -> None:
    (holder,) = ranks(1)
    ledger = holding(holder)
    assert rows_by_job(ledger) == rows(ledger)
    assert "python3 -u /home/alice/train.py --lr 3" in table(rows_by_job(ledger))[0]


@pytest.mark.parametrize("state", ["T", "D"])
def test_a_rank_that_is_stopped_or_stuck_has_a_row_of_its_own_and_comes_first(state: str) -> None:
    third, second, *rest = ranks(4)
    found = rows_by_job(holding(third, replace(second, state=state), *rest))
    assert [(row.pid, len(row.identities)) for row in found] == [(102, 1), (100, 3)]
    assert found[0].trouble
    assert "torchrun train.py, 3 of 4 ranks" in table(found)[1]


def test_ranks_that_are_all_stopped_are_not_hidden_behind_one() -> None:
    assert len(rows_by_job(holding(*ranks(4, state="T")))) == 4


def test_a_job_works_where_one_of_its_ranks_does() -> None:
    sleeping, *others = ranks(4)
    ledger = holding(sleeping, *(replace(each, state="R") for each in others), utilization=0)
    assert {row.state: len(row.identities) for row in rows_by_job(ledger)} == {"ok": 4}


def test_an_orphaned_job_is_one_row_and_comes_first() -> None:
    lost = replace(TORCHRUN, is_orphan=True, launcher=None)
    large = Entry(kind="process", nbytes=90 * GIB, holder=make_holder(4711))
    ledger = holding(*ranks(4, lost))
    ledger = replace(ledger, gpus=(*ledger.gpus, make_gpu(large, index=4)))
    first, second = rows_by_job(ledger)
    assert (first.state, first.trouble, first.pid, len(first.identities)) == ("orphan", True, 100, 4)
    assert second.pid == 4711
    # And where only orphans are one row, as in `vram top`:
    assert rows_by_job(ledger, ORPHANS) == (first, second)
    assert len(rows_by_job(holding(*ranks(4)), ORPHANS)) == 4


@pytest.mark.parametrize(("is_orphan", "count"), [(False, 2), (True, 1)])
def test_what_a_shared_launcher_started_is_one_thing_only_once_it_is_lost(
    is_orphan: bool, count: int
) -> None:
    ray = Job(by="Ray", key="1000.Ray.5", is_orphan=is_orphan)
    people = [make_holder(pid, f"ray::Actor{pid}", job=ray) for pid in (100, 101)]
    assert len(rows_by_job(holding(*people))) == count


def test_two_jobs_of_one_program_stay_apart() -> None:
    other = [replace(each, pid=each.pid + 50) for each in ranks(2, replace(TORCHRUN, key="another"))]
    assert [len(row.identities) for row in rows_by_job(holding(*ranks(2), *other))] == [2, 2]


def test_what_no_process_says_of_its_size_is_unknown_and_not_zero() -> None:
    first, second = ranks(2)
    unknown = make_gpu(Entry(kind="process", nbytes=None, holder=first), index=1)
    ledger = replace(holding(second), gpus=(*holding(second).gpus, unknown))
    (row,) = rows_by_job(ledger)
    assert (row.nbytes, row.nbytes_by_place) == (GIB, {"0": GIB, "1": None})
    (row,) = rows_by_job(make_ledger(unknown, replace(unknown, index=2, entries=_unknown(second))))
    assert row.nbytes is None


def _unknown(holder: Holder) -> tuple[Entry, ...]:
    return (Entry(kind="process", nbytes=None, holder=holder),)


def named(job: Job, *commands: str | None) -> str:
    parts = (HeldPart(0, 0, "0", Entry(kind="process", nbytes=1)),)
    holds = [
        Hold(
            what="process",
            state="ok",
            parts=parts,
            holders=(make_holder(at, command, job=job),),  # type: ignore[arg-type]
        )
        for at, command in enumerate(commands, 1)
    ]
    (held,) = by_job(holds)
    assert isinstance(held, HeldByJob)
    return job_name(held)


@pytest.mark.parametrize(
    ("command", "name"),
    {
        "python -u train.py --lr 3": "torchrun train.py",
        "/opt/conda/bin/python3.12 -u /data/my/train.py": "torchrun train.py",
        "python3.14t -u -X faulthandler -W ignore train.py": "torchrun train.py",
        "python -u -m pkg.train --lr 3": "torchrun pkg.train",
        "python -u -c import\ntrain": "torchrun",
        "python -u": "torchrun",
        "./bin/a.out -x 3": "torchrun a.out",
        "": "torchrun",
    }.items(),
)
def test_a_job_is_called_by_what_its_ranks_run(command: str, name: str) -> None:
    assert named(replace(TORCHRUN, size=2), command, command) == f"{name}, 2 ranks"


def test_a_job_of_several_programs_is_called_by_none_of_them() -> None:
    mpi = Job(by="mpirun", key="m", rank=0, size=2)
    assert named(mpi, "./ocean", "./atmosphere") == "mpirun, 2 ranks"


def test_a_command_that_cannot_be_read_is_no_name() -> None:
    assert named(replace(TORCHRUN, size=2), None, None) == "torchrun, 2 ranks"


@pytest.mark.parametrize(
    ("job", "command", "name"),
    [
        (POOL, "python -c from multiprocessing.spawn import spawn_main", "multiprocessing, 2 workers"),
        (Job(by="vLLM", key="v"), "VLLM::Worker_TP0", "vLLM, 2 processes"),
        (Job(by="SGLang", key="s"), "sglang::scheduler_TP0", "SGLang, 2 processes"),
    ],
)
def test_where_processes_have_no_command_of_their_own_only_the_launcher_is_named(
    job: Job, command: str, name: str
) -> None:
    assert named(job, command, command) == name


def test_a_hostile_name_of_a_script_is_inert() -> None:
    people = [replace(each, command="python -u \x1b[31mx.py") for each in ranks(2)]
    assert "torchrun \\x1b[31mx.py" in table(rows_by_job(holding(*people)))[0]


def test_rows_that_are_left_out_are_counted_by_process() -> None:
    jobs = [
        replace(each, pid=each.pid + 10 * at, job=replace(each.job, key=str(at)))  # type: ignore[type-var]
        for at in range(20)
        for each in ranks(2)
    ]
    from io import StringIO

    from rich.console import Console

    entries = [Entry(kind="process", nbytes=GIB, holder=each) for each in jobs]
    console = Console(file=StringIO(), width=80)
    console.print(screen(make_ledger(make_gpu(*entries)), (), RenderOptions(80), height=12))
    shown = console.file.getvalue()  # type: ignore[attr-defined]
    there = shown.count("+1 alice")
    assert f"+{40 - 2 * there} more processes, {40 - 2 * there}.0 GiB: vram ps" in shown


def accounts_for_all(ledger: Ledger) -> None:
    held = [entry for gpu in ledger.gpus for entry in gpu.accounted if entry.kind_facts.held and entry.nbytes]
    found = rows_by_job(ledger)
    assert sum(row.nbytes or 0 for row in found) == known_bytes(held)
    each = sorted((row.identities for row in rows(ledger)), key=str)
    unfolded = sorted(((one,) for row in found for one in row.identities), key=str)
    assert unfolded == [one for one in each if one]


@given(LEDGERS)
def test_every_held_byte_and_every_process_of_any_ledger_is_in_one_row(ledger: Ledger) -> None:
    accounts_for_all(ledger)


MEMBERS = st.tuples(
    st.integers(100, 120),
    st.sampled_from(["one", "other", None]),
    st.sampled_from("RSTD"),
    st.booleans(),
    st.none() | st.integers(0, 3),
    st.integers(0, 2),
)


@given(st.lists(MEMBERS, max_size=12, unique_by=lambda member: member[0]), st.sampled_from([0, 50, None]))
def test_every_byte_and_every_process_of_any_jobs_is_in_one_row(
    members: list[tuple[int, str | None, str, bool, int | None, int]], utilization: int | None
) -> None:
    entries: dict[int, list[Entry]] = {0: [], 1: [], 2: []}
    for pid, key, state, is_orphan, rank, gpu in members:
        job = None if key is None else Job(by="torchrun", key=key, is_orphan=is_orphan, rank=rank)
        holder = make_holder(pid, state=state, job=job)
        entries[gpu].append(Entry(kind="process", nbytes=pid * GIB // 100, holder=holder))
    facts = GpuFacts(uuid="GPU", name="NVIDIA H200", utilization=utilization)
    ledger = make_ledger(*(make_gpu(*held, index=gpu, facts=facts) for gpu, held in entries.items()))
    accounts_for_all(ledger)
    for row in rows_by_job(ledger):
        states = {each.state for each in rows(ledger) if each.pid in dict(row.identities)}
        assert states == {row.state} or (row.state == "ok" and states == {"ok", "idle"})
        assert len(row.identities) == 1 or row.state in ("ok", "idle", "orphan")
