"""The views of a trace: what they say, that they fit their width, and that names in a trace stay text."""

from __future__ import annotations

from io import StringIO

import pytest
from msgspec.structs import replace
from rich.cells import cell_len
from rich.console import Console, RenderableType

from tests.cpu_time import least_cpu_s
from tests.trace_report import steady_traces, training_traces
from tests.trace_report.training_traces import SECOND, leak, python, site, training
from vram.errors import UsageError
from vram.model.trace import CallStack, Frame, GpuUse, TimelinePoint, TraceView
from vram.report.layout import RenderOptions
from vram.trace.fit import fit
from vram.trace.places import NO_STACK, OWN_CODE, STANDARD_LIBRARY, caller, library, place
from vram.trace_report import charts, summary, views, words
from vram.trace_report.lines import Reporter, ReportOptions, moment, place_text
from vram.trace_report.rows import GROUPINGS, PICKS, branches, differences, narrowed, rows
from vram.trace_report.views import REPORTERS
from vram.units import GIB, MIB

VIEWS: dict[str, Reporter] = {
    **REPORTERS,
    "leaks -v": lambda view, options: views.leaks(view, replace(options, verbose=True)),
    "diff": lambda view, options: views.diff(training(), view, replace(options, by="stack")),
    "fit": lambda view, options: summary.cards(view, fit(view), options),
}
SAMPLES = {
    "training": training,
    "with blocks": training_traces.with_blocks,
    "nested": training_traces.nested,
    "empty": training_traces.empty,
    "hostile": training_traces.hostile,
    "serving": steady_traces.serving,
    "a C program": steady_traces.native_steady,
    "early peak": steady_traces.early_peak,
    "hostile names": steady_traces.hostile_names,
}


def shown(renderable: RenderableType, width: int = 80) -> str:
    out = StringIO()
    console = Console(file=out, width=width, markup=False, highlight=False, emoji=False, no_color=True)
    console.print(renderable, crop=False)
    return "".join(f"{line.rstrip()}\n" for line in out.getvalue().splitlines())


def text(name: str, view: TraceView, width: int = 80, *, ascii_only: bool = False) -> str:
    options = ReportOptions(screen=RenderOptions(width=width, ascii=ascii_only))
    return shown(VIEWS[name](view, options), width)


@pytest.mark.parametrize("sample", SAMPLES)
@pytest.mark.parametrize("name", VIEWS)
def test_lines_fit_and_are_inert(name: str, sample: str) -> None:
    """At any width, also where a trace tries to steer the terminal."""
    view = SAMPLES[sample]()
    for width in (40, 80, 200):
        said = text(name, view, width)
        assert said.replace("\n", "").isprintable()
        wide = [line for line in said.splitlines() if cell_len(line) > max(width, 60)]
        assert not wide, wide
    assert text(name, view, ascii_only=True).isascii()


def test_the_summary_is_one_screen() -> None:
    for sample in SAMPLES.values():
        for width in (80, 200):
            assert len(text("summary", sample(), width).splitlines()) <= 40


def test_the_summary_names_the_lines() -> None:
    said = text("summary", training(), 200)
    assert "python train.py --lr 1e-3" in said
    assert "peak 18.0 GiB after 56.0 s · 7.0 GiB at the end" in said
    assert "Model.forward  /home/user/project/model.py:88" in said
    assert "leaked   512.0 MiB in 2 allocations  make_workspace  /home/user/project/kernels.py:52" in said
    assert "growing  3.0 GiB in 48 allocations  History.remember  /home/user/project/history.py:14" in said
    assert (
        "20.0 GiB on GPU 0 after 57.0 s: out of memory  batches.batch  /home/user/project/data.py:20" in said
    )
    assert "nothing was recorded from 20.0 s to 24.0 s: another profiler used CUPTI" in said
    assert "vram report peak|window|leaks|timeline|churn|frag train.vram" in said


@pytest.mark.parametrize("name", [name for name in VIEWS if name not in ("timeline", "fit", "window")])
def test_functions_in_functions_fit_one_line(name: str) -> None:
    """Their own name is always there; what they are defined in gives way first."""
    said = text(name, training_traces.nested())
    assert "on_batch  " in said
    whole = text(name, training_traces.nested(), 200)
    assert "Trainer.fit.on_batch  " in whole
    assert "<locals>" not in said + whole


@pytest.mark.parametrize(
    ("width", "words"),
    [
        (81, "make_training_step.compiled_step.<lambda>  /home/user/project/training/loop.py:88"),
        (60, "make_training_step.compiled_step.<lambda>  …/loop.py:88"),
        (52, "…compiled_step.<lambda>  …/training/loop.py:88"),
        (36, "…<lambda>  …/training/loop.py:88"),
    ],
)
def test_of_a_qualified_name_the_end_is_kept(width: int, words: str) -> None:
    frame = python(training_traces.NESTED, f"{training_traces.HOME}/training/loop.py", 88)
    assert place_text(frame, width, RenderOptions(width=width)).plain == words


def test_a_frameworks_blocks_stand_for_its_segments() -> None:
    """Which line made PyTorch take a segment says nothing about who uses it."""
    said = text("summary", training_traces.with_blocks(), 200)
    assert "PyTorch: 17.0 GiB taken from the driver, 15.0 GiB of it in use, 2.0 GiB cached" in said
    assert "9.0 GiB    50%  4,096  Model.forward" in said
    assert "8.0 GiB    44%" not in said


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"processes": (training_traces.process(end="cut"),)}, "the process was killed, or still runs"),
        (
            {"processes": (training_traces.process(end="disk full", end_errno=28),)},
            "no space was left for the file (No space left on device)",
        ),
        (
            {"processes": (training_traces.process(end="disk full", end_errno=2**32 - 1),)},
            "no space was left for the file.",
        ),
        ({"processes": (training_traces.process(stacks="none"),)}, "No stacks were recorded"),
        ({"damage": ("3 chunks are missing",)}, "3 chunks are missing."),
    ],
)
def test_what_is_missing_is_said(changes: dict[str, object], words: str) -> None:
    said = " ".join(text("summary", training(gaps=(), **changes), 200).split())
    assert words in said


# ---- leaks ----


def test_each_verdict_has_its_reason() -> None:
    view = training()
    view = replace(view, leaks=(*view.leaks, leak(2, MIB, 1, "not freed")))
    said = " ".join(text("leaks", view).split())
    for verdict, reason in words.VERDICT_REASONS.items():
        assert verdict in said.lower()
        assert reason in said


def test_blocks_are_not_added_to_the_memory_that_they_lie_in() -> None:
    both = (
        leak(1, GIB, 4, "in use at exit"),
        leak(1, GIB // 2, 64, "in use at exit"),
        leak(1, MIB, 1, "in use at exit"),
    )
    kinds = ("device", "torch block", "pinned host")
    leaks = tuple(
        replace(each, site=replace(each.site, kind=kind)) for each, kind in zip(both, kinds, strict=True)
    )
    said = " ".join(text("leaks", training(leaks=leaks), 200).split())
    expected = "1.0 GiB in 4 allocations, 1.0 MiB of host memory in 1 allocation,"
    expected += " 512.0 MiB of frameworks' blocks in 64"
    assert f"In use at exit: {expected} allocations" in said
    assert [f"({kind})" in said for kind in kinds] == [False, True, True]
    assert "the blocks say who uses it" in said


def test_a_framework_of_several_processes_is_one_line() -> None:
    use = training_traces.with_blocks().frameworks[0]
    outside = replace(use, framework="outside frameworks", sites=(), reserved_nbytes=GIB, used_nbytes=GIB)
    view = training(frameworks=(use, replace(use, process=1), outside))
    said = text("summary", view, 200)
    assert "PyTorch: 34.0 GiB taken from the driver, 30.0 GiB of it in use, 4.0 GiB cached" in said
    assert "outside frameworks: 1.0 GiB (cuBLAS, NCCL, code and other libraries)" in said


def test_whole_stacks_are_shown_on_request() -> None:
    deep = CallStack(tuple(python(f"call{at}", "/p/x.py", at) for at in range(20)))
    stacks = (*training_traces.STACKS[:3], deep, *training_traces.STACKS[4:])
    view = training(stacks=stacks)
    assert "call19" not in text("leaks", view)
    assert "16 frames more; -v shows all" in text("leaks", view)
    assert "call19" in text("leaks -v", view)


def test_nothing_left_behind() -> None:
    assert "Everything that was allocated was freed again." in text("leaks", training(leaks=()))


def test_rows_are_limited() -> None:
    view = many_sites(200)
    said = text("peak", view)
    assert "… and 190 places more" in said
    whole = shown(views.peak(view, ReportOptions(screen=RenderOptions(width=80), limit=0)))
    assert "more" not in whole
    assert len(whole.splitlines()) > 200


# ---- places ----


def test_a_place_is_the_programs_own_line() -> None:
    own = python("f", "/home/u/a.py", 3)
    inside = python("g", "/venv/lib/python3.12/site-packages/torch/x.py", 9)
    standard = python("run", "/usr/lib/python3.12/threading.py", 1)
    cuda = Frame("native", "cuMemAlloc", "/usr/lib/libcuda.so.1", 1)
    blas = Frame("native", "cublasCreate", "/x/libcublas.so.13", 2)
    assert place(CallStack((cuda, inside, own, standard))) == own
    assert place(CallStack((inside, standard))) == inside
    assert place(CallStack((cuda, blas))) == blas
    assert place(CallStack((cuda,))) == cuda
    assert place(CallStack()) is None
    assert library(CallStack((cuda, blas, own))) == "libcublas.so.13"
    assert library(CallStack((inside, own))) == "torch"
    assert library(CallStack((standard,))) == STANDARD_LIBRARY
    assert library(CallStack((own,))) == OWN_CODE
    assert library(CallStack()) == NO_STACK


def test_who_called_a_wrapper_is_named() -> None:
    wrapper, main = python("alloc", "/p/gpu.py", 5), python("<module>", "/p/main.py", 90)
    load, step = python("load", "/p/model.py", 7), python("step", "/p/train.py", 9)
    stacks = (CallStack((wrapper, load, main)), CallStack((wrapper, step, main)))
    assert [caller(stack) for stack in stacks] == [load, step]
    view = training(stacks=stacks, peak=(site(0, 3 * GIB), site(1, GIB)), leaks=())
    (row,) = rows(view, view.peak, "line")
    assert (row.place, row.caller) == (wrapper, None)
    assert [(each.frame, each.nbytes) for each in branches(view, row)] == [(load, 3 * GIB), (step, GIB)]
    assert "3.0 GiB from load  /p/model.py:7" in text("summary", view)
    alone = training(stacks=stacks, peak=(site(0, 3 * GIB),))
    assert "alloc  /p/gpu.py:5 ← load  /p/model.py:7" in text("peak", alone, 120)


def test_in_a_program_of_one_file_another_function_is_the_caller() -> None:
    wrapper, main = python("alloc", "/p/a.py", 5), python("<module>", "/p/a.py", 90)
    step = python("Model.step", "/p/a.py", 9)
    elsewhere = python("main", "/p/b.py", 2)
    assert caller(CallStack((wrapper, step, main))) == step
    assert caller(CallStack((wrapper, step, main, elsewhere))) == elsewhere
    assert caller(CallStack((wrapper, main))) is None


@pytest.mark.parametrize("by", GROUPINGS)
def test_gathering_loses_nothing(by: str) -> None:
    view = training()
    gathered = rows(view, view.peak, by)  # type: ignore[arg-type]
    assert sum(row.nbytes for row in gathered) == sum(each.nbytes for each in view.peak)
    assert sum(row.count for row in gathered) == sum(each.count for each in view.peak)
    assert [row.nbytes for row in gathered] == sorted((row.nbytes for row in gathered), reverse=True)


def test_gathering_by_file_and_library() -> None:
    view = training()
    assert rows(view, view.peak, "file")[0].label == "/home/user/project/model.py"
    assert {row.label for row in rows(view, view.peak, "library")} == {"torch", OWN_CODE, "libcublas.so.13"}


# ---- parts of a trace ----


def test_one_gpu_and_one_process() -> None:
    second = GpuUse(
        gpu=1, peak_nbytes=GIB, peak_ns=0, end_nbytes=0, allocated_nbytes=GIB, allocations=1, frees=1
    )
    view = training()
    view = training(gpus=(*view.gpus, second), peak=(*view.peak, site(1, GIB, gpu=1, process=0)))
    assert {each.gpu for each in narrowed(view, [1]).peak} == {1}
    assert [use.gpu for use in narrowed(view, [1]).gpus] == [1]
    assert narrowed(view, (), [4101]).peak == view.peak
    with pytest.raises(UsageError, match="nothing on GPU 7"):
        narrowed(view, [7])
    with pytest.raises(UsageError, match="no process 9"):
        narrowed(view, (), [9])


# ---- charts ----


def test_the_chart_has_the_highest_of_each_stretch() -> None:
    points = [TimelinePoint(0, 0, 10, 0, 5), TimelinePoint(50, 0, 90, 5, 7)]
    assert charts.highest_per_column(points, 100, 4) == [10, 5, 90, 7]


def test_the_chart_says_when() -> None:
    said = text("timeline", training())
    assert "18.0 GiB│" in said
    assert "1     4.00 s  epoch 1" in said
    assert "unrecorded" in said
    ascii_chart = text("timeline", training(), ascii_only=True)
    assert "18.0 GiB|" in ascii_chart
    assert "#" in ascii_chart


def test_holes_are_drawn() -> None:
    said = text("frag", training())
    assert "3 holes, 3.0 GiB in all (30% of the range); the largest 2.0 GiB" in said
    assert "2 ranges that lie far apart" in said
    bar = next(line for line in said.splitlines() if "█" in line)
    assert "····" in bar
    assert "│" in bar


def test_moments() -> None:
    assert [moment(ns) for ns in (0, 900, 84_000, 1_500_000, 2 * SECOND, 59 * SECOND, 3605 * SECOND)] == [
        "0 µs",
        "1 µs",
        "84 µs",
        "1.5 ms",
        "2.00 s",
        "59.0 s",
        "1 h 5 s",
    ]


# ---- two traces ----


def test_a_line_that_moved_is_the_same_place() -> None:
    moved = tuple(
        CallStack(
            tuple(
                Frame(f.language, f.function, f.file.replace("/home/user", "/srv/b"), f.line + 7)
                for f in s.frames
            )
        )
        for s in training_traces.STACKS
    )
    before, after = training(), training(stacks=moved)
    for by in GROUPINGS:
        assert not differences(before, after, PICKS["at the peak"], by).rows
    assert "no place changed" in shown(
        views.diff(before, after, ReportOptions(screen=RenderOptions(width=80)))
    )


def test_what_grew_comes_first() -> None:
    before = training()
    grown = tuple(site(each.stack, each.nbytes + each.stack * MIB) for each in before.peak[:2])
    whole = differences(before, training(peak=grown), PICKS["at the peak"], "line")
    found = whole.rows
    assert whole.total == sum(row.change for row in found)
    few = differences(before, training(peak=grown), PICKS["at the peak"], "line", 1)
    assert (few.hidden, few.hidden_nbytes) == (len(found) - 1, whole.total - few.rows[0].change)
    assert [row.change for row in found[:2]] == [2 * MIB, MIB]
    assert found[-1].change == -3 * GIB
    assert found[-1].after_nbytes == 0


# ---- cards ----


def test_which_cards_it_fits() -> None:
    judged = fit(training_traces.with_blocks())
    verdicts = {each.card.name: each.verdict for each in judged.cards}
    (need,) = judged.needs
    assert need.most == 18 * GIB + 527 * MIB
    assert need.least == need.most - 2 * GIB
    assert verdicts["RTX 4090"] == "fits"
    assert verdicts["T4"] == "too small"
    left = {each.card.name: each.left_nbytes for each in judged.cards}
    assert left["RTX 4090"] == 24564 * MIB - 615 * MIB - need.most


def test_a_cache_that_shrinks_decides() -> None:
    from vram.model.trace import GraphicsCard

    (each,) = fit(training_traces.with_blocks(), [GraphicsCard("17.5 GiB", 17 * GIB + 512 * MIB)]).cards
    assert each.verdict == "if caches shrink"
    assert each.left_nbytes < 0


def test_what_was_held_before_counts_and_has_its_context() -> None:
    from vram.model.trace import HeldBefore

    before = (HeldBefore(0, 0, 3 * GIB, "torch.cuda.memory_snapshot"), HeldBefore(0, 0, 4 * GIB, "NVML"))
    (need,) = fit(training(before=before)).needs
    assert (need.before_nbytes, need.contexts) == (4 * GIB, 0)


# ---- large traces ----


def many_sites(count: int) -> TraceView:
    main = python("main", "/p/main.py", 1)
    stacks = tuple(CallStack((python(f"f{at}", f"/p/m{at % 97}.py", at), main)) for at in range(count))
    peak = tuple(site(at, (at + 1) * MIB) for at in range(count))
    return training(stacks=stacks, peak=peak, allocations=peak)


def test_many_stacks_are_still_fast() -> None:
    """Rows are limited, and only those shown are laid out."""
    many, few = many_sites(100_000), many_sites(500)
    assert least_cpu_s(lambda: [text(name, many) for name in ("peak", "summary", "leaks", "diff")], 8) < 8
    text("summary", few)
    assert least_cpu_s(lambda: text("summary", few), 0.3) < 0.3
