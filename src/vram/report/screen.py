"""The answer on one screen: a bar for each GPU, a line for each process, two lines for each problem."""

from __future__ import annotations

from collections.abc import Sequence
from textwrap import wrap

from msgspec.structs import replace
from rich.cells import cell_len
from rich.console import Group, RenderableType
from rich.text import Text

from vram.model.finding import Finding, Remedy
from vram.model.ledger import Ledger
from vram.report.gpu_bars import gpu_bars, gpu_lines
from vram.report.layout import SEVERITIES, RenderOptions, padded
from vram.report.phrases import gpu_label
from vram.report.process_rows import ProcessRow, rows
from vram.report.process_table import NARROW, USUAL, process_lines
from vram.report.text import gaps, masthead
from vram.units import size

# ---- problems: what it is, and the one command ----

# What a remedy does, in front of its command. A look at the processes is the last choice.
LEADS = {
    "free": "Get it back",
    "end": "Get it back",
    "trim": "Get it back",
    "park": "Make room",
    "resume": "Continue it",
    "look": "Look",
}


def problem_lines(finding: Finding, certainty: str, options: RenderOptions, source: str = "") -> list[Text]:
    """Return two lines: what was found, and what to do; *source* makes `vram why` read the same snapshot."""
    glyph, ascii_glyph, style = SEVERITIES[finding.severity]
    mark = ascii_glyph if options.ascii else glyph
    where = f"{_gpus(finding.gpus)}: " if finding.gpus and "GPU" not in finding.title else ""
    title = options.clean(f"{where}{finding.title}")
    # How sure it is gives way to the title; `vram why PID` says it, too.
    codes = (", ".join(filter(None, (finding.code, certainty))), finding.code)
    code = next((each for each in codes if cell_len(title) + len(each) + 4 <= options.measure), finding.code)
    room = options.measure - len(code) - 4
    shown = padded(options.short(title, room), room)
    first = Text(no_wrap=True).append(f"{mark} ", style=style).append(shown, style="bold")
    first.append(f"  {code}", style="dim")
    return [first, _what_to_do(finding, options, source)]


def _what_to_do(finding: Finding, options: RenderOptions, source: str) -> Text:
    remedy = the_remedy(finding)
    details = f"vram why {finding.pids[0]}" if finding.pids else f"vram explain {finding.code}"
    if not finding.pids and finding.gpus:
        details = f"vram why --gpu {finding.gpus[0]}"
    details += source if "vram why" in details else ""
    why = Text.assemble("Why: ", (options.clean(details), "bold"))
    line = Text("  ", no_wrap=True, overflow="ignore")
    if remedy is None:
        return line.append_text(why)
    if remedy.command and not remedy.command.endswith("vram why"):
        lead = LEADS.get(remedy.step, "Do")
        line.append(f"{lead}: ").append(options.clean(remedy.command), style="bold")
    else:
        line.append(options.short(remedy.text, options.width - why.cell_len - 6))
    # A command is never cut, and has precedence.
    fits = line.cell_len + 3 + why.cell_len <= options.width
    return line.append("   ").append_text(why) if fits else line


def the_remedy(finding: Finding) -> Remedy | None:
    """Return the least harmful remedy that changes something now, else where to look, if there is any.

    A look at its processes is none: those are in the table already. How to prevent it is for later.
    """
    acting = [each for each in finding.remedies if each.command and each.step not in ("look", "wait")]
    others = [
        each for each in finding.remedies if each.step != "change" and not (each.step == "look" and each.pids)
    ]
    return next(iter((*acting, *others)), None)


def _gpus(numbers: Sequence[int]) -> str:
    return f"GPU{'s' if len(numbers) > 1 else ''} {', '.join(map(str, numbers))}"


def _certainty(finding: Finding, ledger: Ledger) -> str:
    """Say "certain" or "likely" where the finding is about who holds memory of a dead owner."""
    entries = [
        entry
        for gpu in ledger.gpus
        for entry in gpu.accounted
        if gpu.index in finding.gpus
        and entry.kind in ("orphaned", "exported")
        and not {holder.pid for holder in entry.holders}.isdisjoint(finding.pids)
    ]
    if not entries:
        return ""
    return "certain" if all(entry.confidence == "fact" for entry in entries) else "likely"


# ---- the screen ----


def _surplus(hidden: Sequence[ProcessRow]) -> Text:
    nbytes = sum(row.nbytes or 0 for row in hidden)
    noun = "process" if len(hidden) == 1 else "processes"
    return Text(f"+{len(hidden)} more {noun}, {size(nbytes)}: vram ps", style="dim")


def screen(
    ledger: Ledger,
    findings: tuple[Finding, ...],
    options: RenderOptions,
    *,
    height: int | None = None,
    cut: bool = True,
    source: str = "",
) -> RenderableType:
    """Return the whole answer in at most *height* lines; None: as many as it takes.

    *source* are the words that make `vram why` read the same snapshot; without them this host was read.
    """
    top = [masthead(ledger, options)] if source else []
    top += gpu_lines(gpu_bars(ledger), options)
    if not ledger.gpus:
        top.append(Text("No GPU was found."))
    everybody = rows(ledger)
    problems = [finding for finding in findings if finding.severity != "info"]
    missing = [
        Text(line, style="yellow")
        for gap in unseen(ledger)
        for line in wrap(options.clean(gap), options.width, subsequent_indent="  ")
    ]
    taken = len(top) + 2 + (len(missing) + 1 if missing else 0)
    room = None if height is None else max(4, height - taken)
    row_count, problem_count = _shares(len(everybody), len(problems), room)
    lines = [*top, Text()]
    if everybody:
        columns = USUAL if options.width >= 60 else NARROW
        lines += process_lines(everybody[:row_count], options, columns=columns, cut=cut)
    elif ledger.gpus:
        lines.append(Text("No process holds GPU memory."))
    if everybody[row_count:]:
        lines.append(_surplus(everybody[row_count:]))
    if problems:
        lines.append(Text())
    for finding in problems[:problem_count]:
        lines += problem_lines(finding, _certainty(finding, ledger), options, source)
    if problems[problem_count:]:
        more = len(problems) - problem_count
        lines.append(Text(f"+{more} more finding{'s' * (more > 1)}: vram why -v{source}", style="dim"))
    if missing:
        lines += [Text(), *missing]
    return Group(*lines)


def unseen(ledger: Ledger) -> list[str]:
    """Return which probes failed, without those whose failure is written in place of a GPU's bar.

    Where processes were asked (--deep), also what that cost them, and which of them did not answer.
    """
    failed = {gpu.status for gpu in ledger.gpus}
    probes = tuple(probe for probe in ledger.probes if probe.name != "nvml" or probe.status not in failed)
    unasked = [
        f"{gpu_label(gpu)}: {note.text}"
        for gpu in ledger.gpus
        for note in gpu.notes
        if note.code in ("queried", "not-divided")
    ]
    return gaps(replace(ledger, probes=probes)) + unasked


def _shares(row_count: int, problem_count: int, room: int | None) -> tuple[int, int]:
    """Divide *room* lines between rows and problems, two lines each; a line says what is left out."""
    if room is None:
        return row_count, problem_count
    if problem_count:
        room -= 1  # the blank line before them
    if row_count + 2 * problem_count <= room:
        return row_count, problem_count
    for_problems = min(problem_count, max(1, (room // 2 - 1) // 2))
    for_rows = room - 2 * for_problems - (for_problems < problem_count)
    if row_count <= for_rows:  # rows need less than their share: more problems fit
        return row_count, (room - 1 - row_count) // 2
    return max(1, for_rows - 1), for_problems
