"""Holders as a tree: dead parents head their families, no byte is counted twice."""

from __future__ import annotations

import pytest
from rich.cells import cell_len

from tests.report.samples import EXPORT, LOOSE, ORPHAN, WORKER, make_gpu, make_holder, make_ledger
from tests.report.test_text import printed
from vram.model.ledger import Entry, GpuLedger, Ledger, OpenOnly
from vram.model.process import Workload
from vram.report import tree
from vram.report.json import encode
from vram.report.layout import RenderOptions
from vram.report.process_tree import ProcessNode, who
from vram.units import GIB


def family(ledger: Ledger, pid: int) -> ProcessNode:
    heads = [node for group in who(ledger).groups for node in group.processes]
    return next(node for node in heads if node.holder.pid == pid)


def test_a_dead_parent_heads_the_children_that_keep_its_memory(ledger: Ledger) -> None:
    parent = family(ledger, 4242)
    assert not parent.holder.alive
    assert [child.holder.pid for child in parent.children] == [4243, 4244, 4245]
    assert {child.inherited_from for child in parent.children} == {4242}


def test_shared_bytes_count_for_one_holder_only(ledger: Ledger) -> None:
    total = sum(group.nbytes for group in who(ledger).groups)
    assert total == ORPHAN.nbytes + EXPORT.nbytes + WORKER.nbytes


def test_a_living_parents_child_stands_below_it(ledger: Ledger) -> None:
    (child,) = family(ledger, 6001).children
    assert child.holder.pid == 6002
    assert child.holds == ()
    assert child.inherited_from == 6001


def test_containers_come_first_with_their_whole_name(ledger: Ledger) -> None:
    assert [group.name for group in who(ledger).groups] == ["docker " + "3f2a9c1be77d" * 5, None]


def test_a_process_on_two_gpus_is_one_process() -> None:
    holder = make_holder(9)
    entry = Entry(kind="process", nbytes=GIB, holder=holder)
    report = who(make_ledger(make_gpu(entry), make_gpu(entry, index=1)))
    (group,) = report.groups
    (node,) = group.processes
    assert [held.gpu for held in node.holds] == [0, 1]
    assert group.nbytes == 2 * GIB


def test_bytes_without_a_name_are_listed_too() -> None:
    report = who(make_ledger(make_gpu(LOOSE)))
    assert [held.nbytes for held in report.unnamed] == [LOOSE.nbytes]


def test_a_snapshot_that_claims_circular_ancestry_is_still_a_tree() -> None:
    entries = [
        Entry(kind="process", nbytes=1, holder=make_holder(pid, parent=parent))
        for pid, parent in ((1, 3), (2, 1), (3, 2), (4, 4))
    ]
    report = who(make_ledger(make_gpu(*entries)))
    assert encode(report).count(b'"pid":') == 4
    assert sum(group.nbytes for group in report.groups) == 4


@pytest.mark.parametrize("step", [1, -1])
def test_an_endless_line_of_ancestors_is_cut(step: int) -> None:
    entries = [Entry(kind="process", nbytes=1, holder=make_holder(n, parent=n - 1)) for n in range(1, 3000)]
    report = who(make_ledger(make_gpu(*entries[::step])))
    assert encode(report).count(b'"pid":') == 2999
    assert printed(tree.who(report, RenderOptions(80)), 80).count("pid ") == 2999


@pytest.mark.parametrize("width", [60, 80, 200])
@pytest.mark.parametrize("ascii", [False, True])
def test_the_tree_fits_its_terminal(ledger: Ledger, width: int, ascii: bool) -> None:
    shown = printed(tree.who(who(ledger), RenderOptions(width, ascii=ascii)), width)
    assert max(cell_len(line) for line in shown.splitlines()) <= width
    assert shown.isascii() or not ascii
    assert "pid 4242" in shown
    assert "pid 6002" in shown


@pytest.mark.fault(26)
def test_hostile_names_are_inert_in_the_tree() -> None:
    holder = make_holder(7, "\x1b[2J", user="\u202e", workload=Workload(container="\x1b]0;", runtime="\r"))
    gpu = make_gpu(
        Entry(kind="process", nbytes=1, holder=holder), open_only=(OpenOnly(holder=make_holder(8, "\n")),)
    )
    shown = printed(tree.who(who(make_ledger(gpu)), RenderOptions(80)), 80)
    assert shown.replace("\n", "").isprintable()


def test_nobody_is_said_in_words() -> None:
    assert "No process holds GPU memory" in printed(
        tree.who(who(make_ledger(make_gpu())), RenderOptions(80)), 80
    )


def _grouped(by: str) -> dict[str | None, int]:
    pod = Workload(
        container="a" * 64, runtime="containerd", pod="b" * 32, pod_name="ml/trainer-0", unit="x.scope"
    )
    kernel = Workload(unit="session-3.scope", notebook="/group/alice/train.ipynb")
    entries = (
        Entry(kind="process", nbytes=4, holder=make_holder(1, workload=pod)),
        Entry(kind="process", nbytes=2, holder=make_holder(2, user="bob", workload=Workload(slurm_job="42"))),
        # A child stands apart from its parent where it belongs elsewhere.
        Entry(kind="process", nbytes=1, holder=make_holder(3, parent=1, workload=kernel)),
    )
    return {group.name: group.nbytes for group in who(make_ledger(make_gpu(*entries)), by).groups}


@pytest.mark.parametrize(
    ("by", "sums"),
    [
        ("user", {"alice": 5, "bob": 2}),
        ("job", {"slurm 42": 2, None: 5}),
        ("pod", {f"pod ml/trainer-0 ({'b' * 32})": 4, None: 3}),
        ("container", {f"containerd {'a' * 64}": 4, None: 3}),
        ("unit", {"x.scope": 4, "session-3.scope": 1, None: 2}),
        ("notebook", {"notebook /group/alice/train.ipynb": 1, None: 6}),
    ],
)
def test_groups_sum_to_everything_whatever_they_are_by(by: str, sums: dict[str | None, int]) -> None:
    assert _grouped(by) == sums


@pytest.mark.fault(26)
def test_hostile_names_of_pods_and_notebooks_are_inert() -> None:
    bad = "\x1b[2Jfree\u202e"
    origin = Workload(pod_name=bad, notebook=bad, container="a" * 64, container_name=bad, job_name=bad)
    entry = Entry(kind="process", nbytes=GIB, holder=make_holder(1, workload=origin))
    shown = printed(tree.who(who(make_ledger(make_gpu(entry))), RenderOptions(width=100)), 100)
    assert "\x1b" not in shown
    assert "\u202e" not in shown


def tree_of(*gpus: GpuLedger) -> str:
    return " ".join(printed(tree.who(who(make_ledger(*gpus)), RenderOptions(width=200)), 200).split())


def test_handles_on_several_gpus_are_summed() -> None:
    handles = (OpenOnly(holder=make_holder(9), exported_bytes=GIB),)
    report = tree_of(make_gpu(open_only=handles), make_gpu(index=1, open_only=handles))
    assert "has a handle on 2.0 GiB" in report


def test_files_of_the_dead_live_on_below_only_where_somebody_is_below() -> None:
    gone = make_holder(50, alive=False)
    unkept = Entry(kind="orphaned", nbytes=GIB, holder=gone, charged_pid=50, confidence="unknown")
    assert "its holder is not known" in tree_of(make_gpu(unkept))
    kept = Entry(kind="orphaned", nbytes=GIB, holder=make_holder(51), charged_pid=50)
    assert "the processes below hold its files" in tree_of(make_gpu(kept))


def test_a_likely_forked_child_is_called_likely() -> None:
    for confidence, word in (("fact", "└─ pid 51"), ("likely", "most likely holds the files of pid 50")):
        child = Entry(
            kind="orphaned",
            nbytes=GIB,
            holder=make_holder(51),
            charged_pid=50,
            confidence=confidence,  # type: ignore[arg-type]
        )
        assert word in tree_of(make_gpu(child))
        assert ("most likely" in tree_of(make_gpu(child))) == (confidence == "likely")


def test_possible_forked_children_stand_below_nobody_and_their_bytes_count_once() -> None:
    people = (make_holder(51), make_holder(52))
    for_40, for_42 = (
        Entry(
            kind="orphaned",
            nbytes=GIB,
            holder=people[0],
            co_holders=people[1:],
            charged_pid=pid,
            confidence="likely",
            sharing="one",
        )
        for pid in (40, 42)
    )
    report = who(make_ledger(make_gpu(for_40, for_42)))
    (group,) = report.groups
    assert [(node.holder.pid, node.inherited_from) for node in group.processes] == [(51, None), (52, None)]
    assert group.nbytes == 2 * GIB
    assert "this one or pid 51" in tree_of(make_gpu(for_40))


def test_bytes_that_processes_have_together_are_not_called_nobodys() -> None:
    people = (make_holder(51), make_holder(52))
    together = Entry(kind="process", nbytes=GIB, co_holders=people, sharing="together", confidence="unknown")
    assert "charged to no process" not in tree_of(make_gpu(together))
    assert "whose size is unknown GPU 0: 1.0 GiB process" in tree_of(make_gpu(together))


@pytest.mark.parametrize(("told", "shown"), [(0, "unknown "), (GIB, "1.0 GiB+ ")])
def test_an_amount_that_nobody_tells_is_never_shown_as_nothing(told: int, shown: str) -> None:
    unsized = Entry(kind="process", nbytes=None, holder=make_holder(7001), confidence="unknown")
    known = Entry(kind="process", nbytes=told, holder=make_holder(7002), confidence="fact")
    report = who(make_ledger(make_gpu(unsized, known)))
    (group,) = report.groups
    assert (group.nbytes, group.at_least) == (told, True)
    assert printed(tree.who(report, RenderOptions(80)), 80).lstrip().startswith(shown)
