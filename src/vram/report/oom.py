"""``vram oom`` for people: each error, its kind, the arithmetic, and what to do."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from vram.model.finding import Finding
from vram.model.oom import Balance, Case, GpuMatch, Judgement, OomMessage, Working
from vram.oom.programs import PROGRAMS
from vram.report.layout import SEVERITIES, RenderOptions, paragraph
from vram.report.phrases import percent
from vram.report.text import advice
from vram.units import GIB, KIB, MIB, counted, size

# Past so many, the others get a line each: --json has all of them.
IN_FULL = 5
FRAMEWORKS = {
    "pytorch": "PyTorch",
    "pytorch-mps": "PyTorch on MPS",
    "cupy": "CuPy",
    "xla": "JAX/XLA",
    "tensorflow": "TensorFlow",
    "bfc": "TensorFlow or XLA",
    "numba": "Numba",
    "pycuda": "PyCUDA",
    "vllm": "vLLM",
    "rmm": "RMM",
    "nccl": "NCCL",
    "cuda-library": "a CUDA library",
    "triton": "Triton",
    "tensorrt": "TensorRT",
    "onnxruntime": "ONNX Runtime",
    "bar1": "the driver",
    "host": "the host",
    "cuda": "CUDA",
    "cuda-error": "CUDA",
    "xid": "the driver",
    "sglang": "SGLang",
    "tgi": "text-generation-inference",
    "paddle": "PaddlePaddle",
}
CERTAINTIES = {"fact": "certain", "likely": "likely", "unknown": "not certain"}


def text(cases: tuple[Case, ...], unkept: int, nbytes: int, options: RenderOptions) -> RenderableType:
    """Return the whole answer, laid out for *options*."""
    blocks: list[RenderableType] = []
    if len(cases) > 1 or unkept:
        blocks += [Text(_summary(cases, unkept, nbytes), style="dim"), Text()]
    for case in cases[:IN_FULL]:
        blocks += [*_case(case, options), Text()]
    blocks += _rest(cases[IN_FULL:], unkept, options)
    blocks += list(advice(_findings(cases[:IN_FULL]), options))[1:]
    return Group(*blocks)


def _summary(cases: Sequence[Case], unkept: int, nbytes: int) -> str:
    total = sum(case.count for case in cases) + unkept
    return f"{counted(total, 'out-of-memory error')}, {len(cases)} different, in {size(nbytes)}"


def _case(case: Case, options: RenderOptions) -> Iterator[RenderableType]:
    yield Text(options.clean(_heading(case)), style="bold", overflow="fold")
    yield paragraph("", Text(_beginning(case.reading.excerpt, options), style="dim"), options, indent=2)
    judgement = case.judgement
    yield Text()
    title = Text.assemble(
        (options.clean(judgement.title), "bold"),
        (options.clean(f"  {judgement.kind}, {CERTAINTIES[judgement.certainty]}"), "dim"),
    )
    mark, style = options.mark(SEVERITIES["problem"])
    yield paragraph(f"{mark} ", title, options, style=style)
    yield paragraph("    ", judgement.cause, options)
    yield from _arithmetic(judgement, options)
    if case.live:
        yield from _live(case.live, options)


def _beginning(words: str, options: RenderOptions) -> str:
    most = 3 * (options.measure - 4)
    return options.clean(words if len(words) <= most else words[: most - 1] + "…")


def _heading(case: Case) -> str:
    reading = case.message
    lines = f"line {case.first_line}" if case.count == 1 else f"lines {case.first_line} to {case.last_line}"
    parts = [lines, _source(reading)]
    if reading.gpu is not None:
        parts.append(f"GPU {reading.gpu}")
    if case.count > 1:
        parts.append(f"{case.count} times")
    return " · ".join(parts)


def _source(reading: OomMessage) -> str:
    """Whose message it is, and in which program."""
    reporter = reading.reporter or reading.dialect
    framework = FRAMEWORKS.get(reporter, reporter)
    program = PROGRAMS[reading.program].name if reading.program else framework
    return framework if program == framework else f"{framework} in {program}"


def _arithmetic(judgement: Judgement, options: RenderOptions) -> Iterator[RenderableType]:
    for working in judgement.workings:
        yield paragraph("    ", _working(working), options)
    if judgement.balance:
        yield Text()
        yield _balance(judgement.balance, options)
    if judgement.missing:
        yield paragraph("    ", Text(f"missing: {'; '.join(judgement.missing)}", style="dim"), options)


def _working(working: Working) -> str:
    """One sum in one unit, so that its digits add up as they stand."""
    scale, unit = _unit(max(abs(term.nbytes) for term in working.terms))
    parts = []
    for at, term in enumerate(working.terms):
        # Nothing is taken away, not added: what is free stands in most sums, and with a minus.
        minus = term.nbytes < 0 or (at > 0 and term.nbytes == 0)
        sign = ("- " if at == 0 else "− ") if minus else ("" if at == 0 else "+ ")
        about = "" if term.sure else " (usual)"
        parts.append(f"{sign}{term.name}{about} {_in(abs(term.nbytes), scale)}")
    return f"{' '.join(parts)} = {working.name} {_in(working.nbytes, scale)} {unit}"


def _balance(balance: Balance, options: RenderOptions) -> RenderableType:
    scale, unit = _unit(balance.total)
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(width=14, justify="right")
    table.add_column(width=6, justify="right")
    table.add_column(overflow="fold")
    for term in balance.terms:
        style = "green" if term.name == "free" else "" if term.sure else "yellow"
        share = percent(term.nbytes, balance.total)
        table.add_row(
            Text(f"{_in(term.nbytes, scale)} {unit}"), Text(share, style="dim"), Text(term.name, style=style)
        )
    rule = options.clean("─" * 10)
    table.add_row(Text(rule, style="dim"))
    rounding = f", give or take {size(balance.slack)} for rounding" if balance.slack else ""
    total = Text.assemble("total", (rounding, "dim"))
    table.add_row(Text(f"{_in(balance.total, scale)} {unit}", style="bold"), Text(), total)
    return table


def _live(joined: GpuMatch, options: RenderOptions) -> Iterator[RenderableType]:
    yield Text()
    if joined.gpu is None:
        yield paragraph(
            "    ",
            Text(options.clean(f"Not compared with this machine: {joined.reason}."), style="yellow"),
            options,
        )
        return
    note = f" ({joined.reason})" if joined.reason else ""
    place = f"GPU {joined.gpu}" if joined.mig is None else f"MIG {joined.mig}"
    free = "unknown" if joined.free is None else size(joined.free)
    yield paragraph("    ", Text(options.clean(f"Now on {place}{note}: {free} free."), style="bold"), options)
    for holding in joined.holdings:
        marks = [
            word for word in (holding.finding, "named in the message" if holding.named else None) if word
        ]
        amount = "unknown size" if holding.nbytes is None else size(holding.nbytes)
        words = f"{amount} {holding.what}: {holding.who}" + (f" ({', '.join(marks)})" if marks else "")
        yield paragraph("- ", words, options, indent=4)
    if joined.gone:
        pids = ", ".join(map(str, joined.gone))
        yield paragraph("- ", Text(f"no longer running: process {pids}", style="dim"), options, indent=4)


def _rest(cases: Sequence[Case], unkept: int, options: RenderOptions) -> Iterator[RenderableType]:
    for case in cases:
        line = f"{_heading(case)}: {case.judgement.title} ({case.judgement.kind})"
        yield paragraph("- ", line, options)
    if unkept:
        yield paragraph("- ", Text(f"and {unkept} more that were not kept apart", style="dim"), options)
    if cases or unkept:
        yield Text()


def _findings(cases: Sequence[Case]) -> tuple[Finding, ...]:
    """As the causes of `vram why`, whose advice this is; where all are one kind, it need not be said."""
    several = len({case.judgement.kind for case in cases}) > 1
    return tuple(
        Finding(
            code=case.judgement.kind if several else "",
            title=case.judgement.title,
            nbytes=None,
            cause=case.judgement.cause,
            gpus=(),
            remedies=case.judgement.remedies,
        )
        for case in cases
    )


def _unit(nbytes: int) -> tuple[int, str]:
    for scale, unit in ((GIB, "GiB"), (MIB, "MiB"), (KIB, "KiB")):
        if nbytes >= scale:
            return scale, unit
    return 1, "B"


def _in(nbytes: int, scale: int) -> str:
    return f"{nbytes / scale:,.2f}" if scale > 1 else f"{nbytes:,}"
