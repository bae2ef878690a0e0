"""A plan before it runs, and its receipt: what is done to whom, what it costs, what came back."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from vram.diagnosis import words
from vram.model.plan import Blocker, Draft, JobActivity, Outcome, OutcomeStatus, Receipt, Skipped, Step
from vram.report.layout import RenderOptions, paragraph
from vram.report.phrases import one_line
from vram.report.process_table import ranges
from vram.units import counted, size

SHORT_DIGEST = 12
MAX_LISTED = 5
MAX_PIDS = 6
MAX_PROGRAMS = 4
FEW_STEPS = 8
"""So many are shown one by one; more than that only with -v."""

STYLES: dict[OutcomeStatus, str] = {
    "done": "green",
    "not-needed": "dim",
    "refused": "yellow",
    "failed": "red",
    "unkillable": "red",
}


_UNDO = {"release": "vram release --undo", "park": "vram unpark"}
_SPAWNED = "from multiprocessing.spawn import spawn_main"
"""In the command of each worker of multiprocessing, whose other words say nothing about it."""


def draft(found: Draft, options: RenderOptions, *, verbose: bool = False) -> RenderableType:
    """Return the steps, what their jobs still do, what is left alone, and the digest of the plan."""
    plan = found.plan
    blocks: list[RenderableType] = [paragraph("", Text(_heading(found), style="bold"), options, style="bold")]
    in_jobs = {pid for each in found.activity for pid in each.pids}
    blocks += _actions(plan.steps, options, in_jobs, verbose=verbose)
    blocks += _still_active(found.activity, options, verbose=verbose)
    blocks += _left_alone(found.skipped, options, verbose=verbose)
    if plan.steps:
        blocks += [Text(), Text(f"plan {plan.digest[:SHORT_DIGEST]}  (digest)", style="dim")]
    return Group(*blocks)


def still_held(left: tuple[Skipped, ...], options: RenderOptions) -> RenderableType:
    """Return what a plan was to free and did not: who holds it now."""
    nbytes = size(sum(each.nbytes for each in left))
    return Group(Text(f"{nbytes} of dead owners is still held", style="bold"), *_pieces(left, options))


def outcomes(done: Sequence[Outcome], options: RenderOptions) -> RenderableType:
    """Return one line for all steps of a kind that went the same way."""
    alike: dict[tuple[str, str], list[Outcome]] = {}
    for each in done:
        alike.setdefault((each.step.kind, each.status), []).append(each)
    return Group(*(_alike(each, options) for each in alike.values()))


def _alike(done: list[Outcome], options: RenderOptions) -> RenderableType:
    first = done[0]
    commands = [one_line(each.step.target.command) for each in done if each.step.target]
    words = Text.assemble((first.status, STYLES[first.status]), f"  {first.step.kind} ")
    words.append(f"{counted(len(done), 'process')}: {_programs(commands, options, options.measure - 30)}")
    known = [each.returned_bytes for each in done if each.returned_bytes is not None]
    if first.status in ("done", "failed") and known:
        words.append(f"; {size(sum(known))} freed")
    if first.status != "done" and first.message:
        words.append(f"\n{options.clean(first.message)}", style="dim")
        if len({each.message for each in done}) > 1:
            words.append(f"\nand {len(done) - 1} more: -v shows each", style="dim")
    return paragraph("", words, options, indent=2)


def outcome(done: Outcome, options: RenderOptions) -> RenderableType:
    """Return one line about one step: how it went, what the device says, how long it took."""
    words = Text.assemble((done.status, STYLES[done.status]), f"  {_whom(done.step, options)}")
    returned = done.returned_bytes
    if done.status in ("done", "not-needed", "failed") and returned is not None and done.took_s:
        words.append(f": {size(returned)} freed in {done.took_s:.2f} s")
    if done.message:
        words.append(f"\n{options.clean(done.message)}", style="dim")
    return paragraph("", words, options, indent=2)


def receipt(done: Receipt, options: RenderOptions) -> RenderableType:
    """Requested, expected, freed: the last one measured on the device."""
    figures = [
        ("expected", "unknown" if done.promised_bytes is None else size(done.promised_bytes)),
        ("freed", "not measured" if done.returned_bytes is None else size(done.returned_bytes)),
    ]
    if done.available_bytes is not None:
        figures.insert(0, ("to be available", size(done.available_bytes)))
    elif done.goal_bytes is not None:
        figures.insert(0, ("requested", size(done.goal_bytes)))
    line = Text()
    for at, (name, figure) in enumerate(figures):
        line.append(options.clean(" · ") if at else "", style="dim").append(f"{name} ", style="dim")
        line.append(figure, style="bold")
    return line


def _heading(found: Draft) -> str:
    plan = found.plan
    if plan.available_bytes is not None:
        wanted, where = size(plan.available_bytes), f"on GPU {plan.gpus[0]}"
        if plan.goal_bytes == 0:
            return f"{wanted} is available {where} already: nothing to do."
        asked = f" to have {wanted} available {where}, which lacks {size(plan.goal_bytes or 0)}"
    elif plan.goal_bytes is not None and len(plan.gpus) == 1:
        asked = f" to free {size(plan.goal_bytes)} on GPU {plan.gpus[0]}"
    else:
        asked = "" if plan.goal_bytes is None else f" to free {size(plan.goal_bytes)}"
    if not plan.steps:
        return f"Nothing can be done{asked}." if found.skipped else f"Nothing to do{asked}."
    known = [step.predicted_bytes for step in plan.steps if step.predicted_bytes is not None]
    promise = f"; expected to free {size(sum(known))}" if known else ""
    return f"Plan{asked}: {counted(len(plan.steps), 'step')}{promise}"


def _actions(
    steps: tuple[Step, ...], options: RenderOptions, in_jobs: Collection[int], *, verbose: bool
) -> Iterator[RenderableType]:
    """Each group of steps; those of one kind as one where they would fill the screen.

    *in_jobs* are ended as one with others, and counted as one.
    """
    groups = list(_together(steps))
    kinds = Counter(group[0].kind for group in groups)
    width = max([5, *map(len, kinds)])
    folded: set[str] = set()
    for group in groups:
        kind = group[0].kind
        if verbose or kinds[kind] <= MAX_LISTED:
            few = verbose or len(group) <= MAX_LISTED
            yield _action(group, options, width, apart=few and _frees_apart(group, in_jobs))
        elif kind not in folded:
            folded.add(kind)
            alike = [step for step in steps if step.kind == kind]
            reason = f"{kinds[kind]} like this: {group[0].reason}; -v lists them all"
            yield _action(alike, options, width, reason)


def _frees_apart(steps: list[Step], in_jobs: Collection[int]) -> bool:
    """Whether each of them frees bytes of its own: those who hold the same free them with the last one."""
    return all(
        step.predicted_bytes and step.target and step.target.process.pid not in in_jobs for step in steps
    )


def _together(steps: tuple[Step, ...]) -> Iterator[list[Step]]:
    """Steps that are one action to a reader: same kind, same reason, one after the other."""
    group: list[Step] = []
    for step in steps:
        if group and (step.kind, step.reason, step.via) != (group[0].kind, group[0].reason, group[0].via):
            yield group
            group = []
        group.append(step)
    if group:
        yield group


def _action(
    steps: list[Step], options: RenderOptions, width: int, reason: str = "", *, apart: bool = False
) -> RenderableType:
    """One action; *apart*, with a line for each of *steps*. *width* is the room for the word of an action."""
    first = steps[0]
    style = "bold red" if first.kind in ("kill", "reset") else "bold"
    why = reason or first.reason
    why += f" ({first.finding})" if first.finding and not reason else ""
    why += f", through {first.via}" if first.via and not reason else ""
    lost = f"lost: {options.clean(first.loses)}{_undo(steps)}"
    left = 2 + width + 12
    grid = Table.grid(padding=0)
    grid.add_column(width=left, no_wrap=True)
    grid.add_column(width=max(10, options.measure - left), overflow="fold")
    for at, group in enumerate([[step] for step in steps] if apart else [steps]):
        word = Text("" if at else first.kind, style=style)
        word.pad_right(width - len(word))
        grid.add_row(Text.assemble("  ", word, f" {_amount(group):>9}  "), _targets(group, options))
    grid.add_row("", Text(f"{options.clean(why)}\n{lost}", style="dim"))
    return grid


def _amount(steps: list[Step]) -> str:
    known = [step.predicted_bytes for step in steps if step.predicted_bytes is not None]
    return size(sum(known)) if known else "unknown"


def _undo(steps: list[Step]) -> str:
    first = steps[0]
    if not first.reversible or first.kind not in _UNDO or first.target is None:
        return ""
    whom = first.target.process.pid if len(steps) == 1 else "PID"
    return f"; `{_UNDO[first.kind]} {whom}` undoes it"


def _targets(steps: list[Step], options: RenderOptions) -> Text:
    people = [step.target for step in steps if step.target]
    if not people:
        return Text(f"GPU {', '.join(map(str, steps[0].gpus))}")
    pids = _pids([target.process.pid for target in people])
    users = ", ".join(dict.fromkeys(target.user for target in people if target.user))
    who = pids + (f" · {users}" if users else "")
    room = options.measure - 22
    beside = room - len(who)
    commands = [one_line(target.command) for target in people]
    if len(people) == 1:
        return Text.assemble(options.clean(f"{who} · "), (_programs(commands, options, beside), "bold"))
    programs = _programs(commands, options, room)
    between = options.clean(" · ") if len(programs) <= beside else "\n"
    return Text.assemble(options.clean(who), between, (programs, "bold"))


def _programs(commands: Sequence[str], options: RenderOptions, width: int) -> str:
    """Every program once, and how often it is there: "4× serve.py, 2× pool.py"."""
    times = Counter(map(_program, commands))
    named = times.most_common(MAX_PROGRAMS)
    counts = [options.clean(f"{count}× ") if count > 1 else "" for _, count in named]
    room = width // max(1, len(named))
    parts = [
        count + options.short(command, max(20, room - len(count)))
        for count, (command, _) in zip(counts, named, strict=True)
    ]
    if len(times) > len(named):
        parts.append(counted(len(times) - len(named), "other program"))
    return ", ".join(parts)


def _program(command: str) -> str:
    return "multiprocessing worker" if _SPAWNED in command else command


def _pids(pids: list[int]) -> str:
    if len(pids) == 1:
        return f"pid {pids[0]}"
    more = f" and {len(pids) - MAX_PIDS} more" if len(pids) > MAX_PIDS else ""
    return f"pids {', '.join(map(str, pids[:MAX_PIDS]))}{more}"


def _still_active(
    found: Sequence[JobActivity], options: RenderOptions, *, verbose: bool
) -> Iterator[RenderableType]:
    """A line for each job that would be ended: whether it still works, the busiest first."""
    if not found:
        return
    yield Text()
    yield Text("What they still do", style="bold")
    in_order = sorted(found, key=lambda each: -(each.cpu_s or 0.0))
    shown = in_order if verbose else in_order[:MAX_LISTED]
    for each in shown:
        yield paragraph("- ", Text(options.clean(activity(each))), options, indent=2)
    if len(shown) < len(found):
        rest = len(found) - len(shown)
        yield Text(f"    and {rest} more {'job' if rest == 1 else 'jobs'}: -v lists them all", style="dim")


def activity(each: JobActivity) -> str:
    """Say "2 torchrun ranks: 0.0 s of CPU in the last second, GPU 0 is 0% busy"."""
    used = "they have ended" if each.cpu_s is None else f"{each.cpu_s:.1f} s of CPU in the last second"
    parts = [used, *_busy(each.gpu_percent)]
    return f"{words.members(each.job, len(each.pids))}: {', '.join(parts)}"


def _busy(percents: Mapping[int, int | None]) -> Iterator[str]:
    known = {gpu: percent for gpu, percent in percents.items() if percent is not None}
    if known:
        least, most = min(known.values()), max(known.values())
        span = f"{most}%" if least == most else f"{least}% to {most}%"
        yield f"{_gpus(known)} {'is' if len(known) == 1 else 'are'} {span} busy"
    if silent := [gpu for gpu in percents if gpu not in known]:
        verb, busy = ("does", "it is") if len(silent) == 1 else ("do", "they are")
        yield f"{_gpus(silent)} {verb} not say how busy {busy}"


def _gpus(gpus: Iterable[int]) -> str:
    found = sorted(gpus)
    return f"GPU{'s' * (len(found) > 1)} {ranges(found)}"


def _left_alone(
    skipped: tuple[Skipped, ...], options: RenderOptions, *, verbose: bool
) -> Iterator[RenderableType]:
    if skipped:
        yield Text()
        yield Text("Skipped", style="bold")
        yield from _pieces(skipped, options, verbose=verbose)


def _pieces(
    skipped: tuple[Skipped, ...], options: RenderOptions, *, verbose: bool = False
) -> Iterator[RenderableType]:
    """Each piece; where they would fill the screen, those that are left for the same reason are one."""
    alike: dict[str, list[Skipped]] = {}
    for at, each in enumerate(skipped):
        folds = not verbose and len(skipped) > MAX_LISTED and each.pid is not None
        alike.setdefault(each.why if folds else str(at), []).append(each)
    groups = list(alike.values())
    shown = groups if verbose else groups[:MAX_LISTED]
    for group in shown:
        yield _skipped(group, options)
    rest = sum(map(len, groups[len(shown) :]))
    if rest:
        yield Text(f"    and {rest} more: `vram who` lists them all", style="dim")


def _skipped(alike: list[Skipped], options: RenderOptions) -> RenderableType:
    first = alike[0]
    if len(alike) == 1:
        words = Text(options.clean(_piece(first)))
        if first.name:
            words.append(options.clean(" · ")).append(options.short(first.name, 40))
    else:
        gpus = sorted({gpu for each in alike for gpu in each.gpus})
        where = f" on GPU {', '.join(map(str, gpus))}" if gpus else ""
        held = f"{size(sum(each.nbytes for each in alike))}{where} · {counted(len(alike), 'process')} · "
        words = Text(options.clean(held))
        words.append(_programs([one_line(each.name or "?") for each in alike], options, options.measure - 8))
    words.append(options.clean(f": {first.why}"))
    if first.command:
        example = "" if len(alike) == 1 else "for example: "
        words.append(f"\n{options.clean(example + first.command)}", style="dim")
    return paragraph("- ", words, options, indent=2)


def _piece(each: Skipped) -> str:
    where = f" on GPU {', '.join(map(str, each.gpus))}" if each.gpus else ""
    if each.pid is None:
        return f"{size(each.nbytes)}{where}"
    shared = f" and {counted(len(each.others), 'process')} with the same files" if each.others else ""
    who = f"pid {each.pid}" + (f" · {each.user}" if each.user else "")
    return f"{size(each.nbytes)}{where} · {who}{shared}"


def _whom(step: Step, options: RenderOptions) -> str:
    if step.target is None:
        return f"{step.kind} GPU {', '.join(map(str, step.gpus))}"
    name = options.short(_program(one_line(step.target.command)), 40)
    return f"{step.kind} pid {step.target.process.pid} ({name})"


# ---- `vram reset`: who is in the way and how each is removed, or what would run ----


def reset(
    gpu: int,
    blockers: tuple[Blocker, ...],
    command: str,
    receipt: Receipt | None,
    options: RenderOptions,
    advice: str | None = None,
) -> RenderableType:
    """Return the answer: blockers, or the command, or what came of it. *advice* is the driver's own."""
    if blockers:
        return Group(*_blocked(gpu, blockers, options), *_advised(advice))
    if receipt is None:
        return Group(
            Text(f"Nobody uses GPU {gpu}: it can be reset.", style="bold"),
            *_advised(advice),
            paragraph("", Text("With --yes, as root, vram would run:"), options),
            Text(f"    {options.clean(command)}", style="bold"),
        )
    done = receipt.outcomes[0]
    return Group(
        Text(f"GPU {gpu}: reset {done.status}", style="bold"),
        paragraph("  ", done.message or "", options),
    )


def _advised(advice: str | None) -> list[Text]:
    if advice is None:
        return []
    needs = words.RECOVERY_ADVICE.get(advice)
    return [Text(f"The driver's own advice: {needs or 'nothing needs to be done'}.")]


def _blocked(gpu: int, blockers: tuple[Blocker, ...], options: RenderOptions) -> Iterator[RenderableType]:
    yield Text(f"GPU {gpu} cannot be reset: {counted(len(blockers), 'blocker')}", style="bold")
    for number, each in enumerate(blockers, 1):
        who = "" if each.pid is None else f"pid {each.pid}" + (f" · {each.user}" if each.user else "")
        held = "" if each.nbytes is None else size(each.nbytes)
        words = Text(options.clean(" · ".join(part for part in (who, held, each.why) if part)))
        if each.name:
            words.append("\n" + options.short(one_line(each.name), options.measure - 8), style="dim")
        if each.command:
            words.append("\n" + options.clean(each.command), style="bold")
        yield paragraph(f"{number}. ", words, options, indent=2)
    yield paragraph("", Text("A reset while one of them is running is refused, or harms it."), options)
