"""What people read: it fits, it balances, it stays calm under hostile names."""

from __future__ import annotations

from io import StringIO

import pytest
from rich.cells import cell_len
from rich.console import Console, RenderableType

from tests.report.samples import EXPORT, FINDINGS, LOOSE, ORPHAN, make_gpu, make_holder, make_ledger
from vram.model.finding import Finding, Remedy
from vram.model.gpu import GpuFacts
from vram.model.ledger import Entry, GpuLedger, Ledger, Note
from vram.report import text
from vram.report.entries import FOLD_AFTER
from vram.report.layout import RenderOptions, label
from vram.units import MIB, size


def printed(renderable: RenderableType, width: int) -> str:
    """What a console without colour prints."""
    console = Console(
        width=width, file=StringIO(), markup=False, highlight=False, emoji=False, color_system=None
    )
    console.print(renderable)
    assert isinstance(console.file, StringIO)
    return console.file.getvalue()


def why(ledger: Ledger, width: int = 80, *, findings: tuple[Finding, ...] = (), ascii: bool = False) -> str:
    return printed(text.why(ledger, findings, RenderOptions(width=width, ascii=ascii)), width)


@pytest.mark.parametrize("width", [40, 80, 132, 200])
@pytest.mark.parametrize("ascii", [False, True])
def test_no_line_is_wider_than_the_terminal(ledger: Ledger, width: int, ascii: bool) -> None:
    shown = why(ledger, width, findings=FINDINGS, ascii=ascii)
    assert max(cell_len(line) for line in shown.splitlines()) <= width


@pytest.mark.parametrize("width", [80, 200])
def test_every_entry_has_its_size_kind_holder_and_evidence(ledger: Ledger, width: int) -> None:
    shown = " ".join(why(ledger, width).split())
    for entry in ledger.gpus[0].entries:
        assert size(entry.nbytes) in shown
        assert label(entry.kind) in shown
        if entry.holder:
            assert f"pid {entry.holder.pid}" in shown
    assert "fact: the driver charges pid 4242, which is gone" in why(ledger, 200)
    assert "docker 3f2a9c1be77d" in shown
    assert "likely:" in shown


@pytest.mark.parametrize("width", [80, 200])
def test_the_sum_is_shown_to_the_byte(ledger: Ledger, width: int) -> None:
    shown = " ".join(why(ledger, width).split())
    assert "= total 150,754,820,096 bytes: the lines above sum to the total exactly" in shown


def test_a_ledger_that_does_not_balance_says_so() -> None:
    """The report adds up for itself; it does not trust the ledger to have done so."""
    broken = GpuLedger(
        index=0, uuid=None, name="G", total_bytes=1000, entries=(Entry(kind="free", nbytes=999),)
    )
    assert "999 bytes, but the GPU has 1,000" in why(make_ledger(broken), 100)


def test_a_lost_gpu_is_named_beside_the_others(ledger: Ledger) -> None:
    shown = why(ledger)
    assert "lost: fell off the bus" in shown
    assert "GPU 0  NVIDIA H200" in shown


def test_ascii_is_ascii_to_the_last_byte(ledger: Ledger) -> None:
    odd = make_gpu(Entry(kind="process", nbytes=MIB, holder=make_holder(7, "größe—日本")))
    assert why(ledger, findings=FINDINGS, ascii=True).isascii()
    assert why(make_ledger(odd), ascii=True).isascii()


HOSTILE = ["\x1b[2J\x1b]0;x\x07", "a\rb", "\u202egpj.exe", "\udcff\udc9b", "[bold red]x[/] [link=http://a]"]


@pytest.mark.fault(26)
@pytest.mark.parametrize("name", HOSTILE)
@pytest.mark.parametrize("width", [80, 200])
def test_hostile_names_are_inert_everywhere(name: str, width: int) -> None:
    holder = make_holder(7, name, user=name)
    gpu = make_gpu(
        Entry(kind="process", nbytes=MIB, holder=holder, evidence=(name,), co_holders=(holder,)),
        name=name,
        notes=(Note("moved", name),),
        status="failed",
        message=name,
    )
    finding = Finding(code="VR1", title=name, nbytes=1, cause=name, gpus=(0,), evidence=(name,))
    shown = why(make_ledger(gpu), width, findings=(finding,))
    assert shown.replace("\n", "").isprintable()
    if name.startswith("[bold"):
        assert name in shown


def test_hundreds_of_small_processes_share_a_line_and_ghosts_never_do() -> None:
    workers = [Entry(kind="process", nbytes=MIB * (n + 1), holder=make_holder(1000 + n)) for n in range(500)]
    shown = why(make_ledger(make_gpu(ORPHAN, EXPORT, LOOSE, *workers)), 200)
    rows = [line for line in shown.splitlines() if "GiB" in line or "MiB" in line]
    assert len(rows) <= FOLD_AFTER + 5
    assert "more processes" in shown
    assert "sum to the total exactly" in shown
    assert shown.count("▚ ghost") == 2
    assert "unattributed" in shown


def test_a_virtual_gpu_says_so() -> None:
    gpu = make_gpu(facts=GpuFacts(uuid="u", name="NVIDIA H200", virtual=True))
    assert "NVIDIA H200 (virtual)" in why(make_ledger(gpu))


def test_findings_show_code_cause_and_evidence() -> None:
    shown = " ".join(why(make_ledger(make_gpu(ORPHAN)), findings=FINDINGS).split())
    assert "VR101 4.5 GiB: A forked child keeps a dead process's memory" in shown
    assert "The driver gives memory back when the last of these files closes." in shown
    assert "pid 4243 has 23 descriptors" in shown


def test_what_could_not_be_seen_is_said() -> None:
    shown = why(make_ledger(make_gpu(), unreadable_processes=3, unreadable_users=("root", "bob")))
    assert "the open files of 3 processes of root, bob" in shown


def test_evidence_that_the_table_gave_is_not_repeated() -> None:
    evidence = ("in the table", "only in the finding")
    entry = Entry(kind="process", nbytes=MIB, holder=make_holder(7), evidence=evidence[:1])
    finding = Finding(code="VR1", title="t", nbytes=None, cause="c", gpus=(0,), evidence=evidence)
    shown = why(make_ledger(make_gpu(entry)), findings=(finding,))
    assert shown.count("in the table") == 1
    assert "- only in the finding" in shown


def test_of_hundreds_alike_the_first_few_are_shown_and_the_rest_counted() -> None:
    def used_by(pid: int) -> Finding:
        end = Remedy(step="end", target=f"pid {pid}", text="End it", command=f"kill {pid}", harm="loses-work")
        return Finding(
            code="VR206",
            title=f"used by {pid}",
            nbytes=1,
            cause="c",
            gpus=(0,),
            remedies=(end,),
            severity="info",
        )

    shown = why(make_ledger(make_gpu()), findings=(*FINDINGS, *(used_by(pid) for pid in range(500))))
    assert "497 more of VR206" in shown
    assert shown.count("\n     kill ") <= 4
    assert "VR101" in shown
