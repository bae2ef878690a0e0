"""``vram who`` for people: the tree of holders, what each keeps, in as many lines as it needs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from textwrap import wrap

from rich.cells import cell_len
from rich.console import Group, RenderableType
from rich.text import Text

from vram.report.kinship import Household, Keep, Kin, WhoReport
from vram.report.look import Look
from vram.report.phrases import command, identity, parked_process, windows_process
from vram.units import size

_SIZE_COLUMNS = 12


def who(report: WhoReport, look: Look) -> RenderableType:
    """Return a block for every household, the named ones first."""
    lines: list[Text] = []
    for household in report.households:
        lines += [*_household(household, report.by, look), Text()]
    windows = [keep for keep in report.unnamed if keep.windows]
    lines += _unnamed("programs of Windows", windows, look)
    together = [keep for keep in report.unnamed if keep.sharing == "together"]
    lines += _unnamed("of those above whose figures are not told, together", together, look)
    nobodys = [keep for keep in report.unnamed if not keep.windows and keep not in together]
    lines += _unnamed("charged to nobody", nobodys, look)
    lines += _parked(report, look)
    if report.way_back:
        lines += [Text(look.clean(f"Give back what dead owners left: {report.way_back}")), Text()]
    if not lines:
        return Text("Nobody holds GPU memory, and nobody has a GPU's files open.")
    return Group(*lines[:-1])


def _parked(report: WhoReport, look: Look) -> Iterator[Text]:
    if report.parked:
        yield _line("", "", Text("parked: paused, in host memory", style="bold"))
        for process in report.parked:
            words = look.short(parked_process(process), look.width - _SIZE_COLUMNS - 3)
            yield _line("", "   ", Text(words))
        yield Text()


def _unnamed(heading: str, keeps: Sequence[Keep], look: Look) -> Iterator[Text]:
    if keeps:
        yield _line(size(sum(keep.nbytes or 0 for keep in keeps)), "", Text(heading, style="bold"))
        for keep in keeps:
            words = look.short(_kept(keep), look.width - _SIZE_COLUMNS - 3)
            yield _line("", "   ", Text(words, style="dim"))
        yield Text()


def _household(household: Household, by: str | None, look: Look) -> Iterator[Text]:
    name = household.name or (f"no {by} known" if by else "outside of containers and jobs")
    heading = Text(look.short(name, look.width - _SIZE_COLUMNS), style="bold")
    yield _line(_amount(household), "", heading)
    for at, kin in enumerate(household.processes, 1):
        yield from _kin(kin, "", at == len(household.processes), look)


def _amount(household: Household) -> str:
    if not household.at_least:
        return size(household.nbytes)
    return f"{size(household.nbytes)}+" if household.nbytes else "unknown"


def _kin(kin: Kin, prefix: str, is_last: bool, look: Look) -> Iterator[Text]:
    below = prefix + ("   " if is_last else look.clean("│  "))
    fork = look.clean("└─ " if is_last else "├─ ")
    own = sum(keep.nbytes or 0 for keep in kin.keeps if keep.shared_with is None and keep.kind != "system")
    room = look.width - _SIZE_COLUMNS - len(below)
    yield _line(size(own) if own else "", prefix + fork, _who(kin, room, look))
    stem = below + look.clean("│  " if kin.children else "   ")
    for fact in _facts(kin):
        for part in wrap(look.clean(fact), max(12, room - 3)):
            yield _line("", stem, Text(part, style="dim"))
    for at, child in enumerate(kin.children, 1):
        yield from _kin(child, below, at == len(kin.children), look)


def _who(kin: Kin, room: int, look: Look) -> Text:
    dot = look.clean(" · ")
    words = look.clean(" · ".join(identity(kin.holder, origin=False)))
    who = Text(look.short(words, room), style="red" if kin.holder.visible and not kin.holder.alive else "")
    line = command(kin.holder)
    rest = room - cell_len(words) - len(dot)
    if line and rest >= 8:
        who.append(dot).append(look.short(line, rest), style="bold")
    return who


def _facts(kin: Kin) -> Iterator[str]:
    if not kin.holder.visible:
        yield "cannot be seen from here, and may live"
    elif not kin.holder.alive:
        below = ": its files live on below" if kin.children else ", and nobody in sight has its files"
        yield f"gone, but the driver still charges it{below}"
    elif orphaned := [keep for keep in kin.keeps if keep.kind == "orphaned"]:
        yield _inherited(kin, orphaned)
    elif kin.inherited_from is not None:
        yield f"inherited the files of pid {kin.inherited_from}: ending that one alone gives nothing back"
    elif any(child.mps_server == kin.holder.pid for child in kin.children):
        yield "MPS server: opens the GPU for those below, and all of them fail if it is ended"
    elif kin.mps_server is not None:
        yield f"client of MPS server pid {kin.mps_server}"
    elif not kin.keeps and kin.exported_bytes is None:
        yield "has GPU files open and is charged nothing"
    if kin.exported_bytes is not None:
        yield f"has a handle on {size(kin.exported_bytes)} that is charged to their maker"
    for keep in kin.keeps:
        yield _kept(keep)


def _inherited(kin: Kin, orphaned: list[Keep]) -> str:
    if kin.inherited_from is None:
        return "may hold the files of a process that is gone, inherited when that one forked"
    likely = "" if all(keep.certain for keep in orphaned) else "most likely "
    return f"{likely}holds the files of pid {kin.inherited_from}, inherited when that one forked"


def _kept(keep: Keep) -> str:
    if keep.medium == "shared" and keep.shared_with is not None and keep.nbytes is not None:
        return f"GPU {keep.gpu}: shares part of the {size(keep.nbytes)} of pid {keep.shared_with}"
    shared = f", the same bytes as pid {keep.shared_with}" if keep.shared_with is not None else ""
    if keep.sharing == "one":
        shared = f", this one or pid {keep.shared_with}" if shared else ", this one or another"
    if keep.nbytes is None:
        return f"GPU {keep.gpu}: unknown size{shared}"
    if keep.windows:
        return f"GPU {keep.gpu}: {size(keep.nbytes)} {' · '.join(windows_process(keep.windows))}"
    kind = "of the machine's memory" if keep.kind == "system" else keep.kind
    if keep.medium == "shared":
        kind += ", shared with other clients"
    place = f"GPU {keep.gpu}" if keep.mig is None else f"MIG {keep.mig}"
    return f"{place}: {size(keep.nbytes)} {kind}{shared}"


def _line(nbytes: str, stem: str, body: Text) -> Text:
    line = Text(f"{nbytes:>10}  ", no_wrap=True, overflow="ignore")
    return line.append(stem, style="dim").append_text(body)
