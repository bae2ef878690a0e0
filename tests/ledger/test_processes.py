"""The ledger process by process: what each is charged with, what else it holds, and with whom."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from tests.diagnosis.ledgers import dead, entry, forked_child, gpu, holder, host, ledger, process, silent_gpu
from vram.cli.commands import completion
from vram.errors import NotPermitted
from vram.ledger.processes import freed_by, processes
from vram.reclaim.identity import require_certain
from vram.units import GIB


def test_what_a_process_is_charged_with_is_summed_by_gpu():
    view = processes(ledger(gpu(process(50, 4 * GIB), process(50, GIB)), gpu(process(50, GIB), index=1)))
    assert view[50].charged_by_gpu == {0: 5 * GIB, 1: GIB}
    assert (view[50].charged_bytes, view[50].charged_on((1,)), view[50].gpus) == (6 * GIB, GIB, (0, 1))
    assert view[50].co_holders == ()


def test_an_unknown_size_is_none_and_adds_nothing_to_what_is_known():
    unknown = entry(nbytes=None, holder=holder(50), confidence="unknown")
    only = processes(ledger(gpu(unknown)))[50]
    assert (only.charged_by_gpu, only.charged_bytes, only.has_unknown_size) == ({0: None}, 0, True)
    both = processes(ledger(gpu(unknown, process(50, GIB))))[50]
    assert (both.charged_by_gpu, both.has_unknown_size) == ({0: GIB}, True)


def test_memory_of_a_dead_process_is_held_by_its_children_and_charged_to_none():
    left = entry(
        "orphaned", 8 * GIB, holder=holder(61), co_holders=(holder(62),), charged_pid=50, sharing="all"
    )
    view = processes(ledger(gpu(left)))
    assert {pid: (each.charged, each.retained, each.co_holders) for pid, each in view.items()} == {
        61: ((), (left,), (62,)),
        62: ((), (left,), (61,)),
    }
    assert freed_by(ledger(gpu(left)), (61,)) == (0,)
    assert freed_by(ledger(gpu(left)), (61, 62)) == (0, 8 * GIB)


def test_who_only_has_files_open_is_there_and_holds_nothing():
    view = processes(ledger(gpu(process(50), open_only=(forked_child(61, of=50),))))
    assert (view[61].charged, view[61].retained, view[61].gpus, view[61].nbytes) == ((), (), (0,), 0)


def test_the_dead_are_not_listed():
    assert processes(ledger(gpu(entry("orphaned", GIB, holder=dead(50), charged_pid=50)))) == {}


NEWCOMER = entry("orphaned", 8 * GIB, holder=holder(50), charged_pid=50)


def test_a_newcomer_with_a_dead_processes_pid_holds_nothing():
    assert processes(ledger(gpu(NEWCOMER))) == {}


def test_completion_offers_holders_and_no_newcomer(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(completion, "_ledger", lambda: ledger(gpu(NEWCOMER, process(51, GIB))))
    assert completion.live("pid") == ["51\t1.0 GiB python train.py"]


def test_a_gpu_that_reports_nothing_makes_its_processes_uncertain():
    view = processes(ledger(replace(silent_gpu("lost"), open_only=(forked_child(61, of=None),))))
    assert view[61].unreported_gpus == (0,)


def test_inside_a_namespace_a_likely_pid_is_nobody_to_act_on():
    """Free, trim and kill refuse for the same reason."""
    likely = processes(ledger(gpu(entry(holder=holder(51), confidence="likely"))))[51]
    with pytest.raises(NotPermitted, match="may be a different process"):
        require_certain(host(initial_pid_namespace=False), likely)
    require_certain(host(initial_pid_namespace=True), likely)


def test_parts_of_the_system_are_known_as_such():
    view = processes(ledger(gpu(process(50, executable="/usr/bin/nvidia-persistenced", user="root"))))
    assert view[50].protected is not None
    assert processes(ledger(gpu(process(51))))[51].protected is None
