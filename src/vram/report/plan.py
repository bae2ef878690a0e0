"""A plan before it runs, and its receipt: what is done to whom, what it costs, what came back."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from vram.model.plan import Draft, Outcome, OutcomeStatus, Plan, Receipt, Spared, Step
from vram.report.look import Look
from vram.report.paragraph import paragraph
from vram.units import counted, size

SHORT_DIGEST = 12
MOST_SPARED = 8

STYLES: dict[OutcomeStatus, str] = {
    "done": "green",
    "not-needed": "dim",
    "refused": "yellow",
    "failed": "red",
    "unkillable": "red",
}


def draft(found: Draft, look: Look) -> RenderableType:
    """Return the plan as a table, who is left alone, and the digest that stands for all of it."""
    plan = found.plan
    blocks: list[RenderableType] = [Text(_heading(plan), style="bold")]
    if plan.steps:
        blocks += [_table(plan, look), Text(), *_reasons(plan, look)]
    blocks += _spared(found.spared, look)
    if plan.steps:
        blocks += [Text(), Text(f"plan {plan.digest[:SHORT_DIGEST]}  (digest)", style="dim")]
    return Group(*blocks)


def outcome(done: Outcome, look: Look) -> RenderableType:
    """Return one line about one step: how it went, what the device says, how long it took."""
    words = Text.assemble((done.status, STYLES[done.status]), f"  {_whom(done.step, look)}")
    returned = done.returned_bytes
    if done.status in ("done", "not-needed", "failed") and returned is not None and done.took_s:
        words.append(f": {size(returned)} came back in {done.took_s:.2f} s")
    if done.message:
        words.append(f"\n{look.clean(done.message)}", style="dim")
    return paragraph("", words, look, indent=2)


def receipt(done: Receipt, look: Look) -> RenderableType:
    """Return asked, promised, returned: the last one measured on the device."""
    figures = [
        ("asked", "no size" if done.goal_bytes is None else size(done.goal_bytes)),
        ("promised", "could not be told" if done.promised_bytes is None else size(done.promised_bytes)),
        ("returned", "could not be measured" if done.returned_bytes is None else size(done.returned_bytes)),
    ]
    line = Text()
    for at, (name, figure) in enumerate(figures):
        line.append(look.clean(" · ") if at else "", style="dim").append(f"{name} ", style="dim")
        line.append(figure, style="bold")
    return line


def _heading(plan: Plan) -> str:
    asked = "" if plan.goal_bytes is None else f" to give back {size(plan.goal_bytes)}"
    if not plan.steps:
        return f"There is nothing to do{asked}."
    known = [step.predicted_bytes for step in plan.steps if step.predicted_bytes is not None]
    promise = f"; {size(sum(known))} promised" if known else ""
    return f"Plan{asked}: {counted(len(plan.steps), 'step')}{promise}"


def _table(plan: Plan, look: Look) -> Table:
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(width=2, justify="right")
    table.add_column(width=5)
    rest = min(look.width, 120) - 2 - 5 - 10 - 4 - 10
    table.add_column(width=rest // 2, overflow="fold")
    table.add_column(width=10, justify="right")
    table.add_column(width=rest - rest // 2, overflow="fold")
    table.add_column(width=4)
    heads = ("", "step", "target", "gives back", "what is lost", "undo")
    table.add_row(*(Text(word, style="dim") for word in heads))
    for number, step in enumerate(plan.steps, 1):
        table.add_row(*_cells(number, step, rest // 2, look))
    return table


def _cells(number: int, step: Step, width: int, look: Look) -> tuple[Text, ...]:
    predicted = "untold" if step.predicted_bytes is None else size(step.predicted_bytes)
    return (
        Text(str(number), style="dim"),
        Text(step.kind, style="bold red" if step.kind in ("kill", "reset") else "bold"),
        _target(step, width, look),
        Text(predicted),
        Text(look.clean(step.loses)),
        Text("yes" if step.reversible else "no", style="" if step.reversible else "red"),
    )


def _target(step: Step, width: int, look: Look) -> Text:
    if step.target is None:
        return Text(f"GPU {', '.join(map(str, step.gpus))}")
    who = f"pid {step.target.process.pid}" + (f" · {step.target.user}" if step.target.user else "")
    return Text.assemble(look.clean(who), "\n", (look.short(step.target.command, width), "bold"))


def _reasons(plan: Plan, look: Look) -> Iterator[RenderableType]:
    """Why each step: once where several have the same reason."""
    reasons: dict[str, list[int]] = {}
    for number, step in enumerate(plan.steps, 1):
        why = f"{step.finding}: {step.reason}" if step.finding else step.reason
        via = f" (through {step.via})" if step.via else ""
        reasons.setdefault(f"{why}{via}", []).append(number)
    for why, numbers in reasons.items():
        mark = _numbers(numbers)
        yield paragraph(f"{mark} ", Text(look.clean(why), style="dim"), look, indent=2)


def _numbers(numbers: list[int]) -> str:
    if len(numbers) > 2 and numbers[-1] - numbers[0] == len(numbers) - 1:
        return f"{numbers[0]}-{numbers[-1]}:"
    return f"{', '.join(map(str, numbers[:6]))}{', ...' if len(numbers) > 6 else ''}:"


def _spared(spared: tuple[Spared, ...], look: Look) -> Iterator[RenderableType]:
    if not spared:
        return
    yield Text()
    yield Text("Left alone", style="bold")
    for each in spared[:MOST_SPARED]:
        who = f"pid {each.pid}" + (f" · {each.user}" if each.user else "") + f" · {size(each.nbytes)}: "
        words = Text.assemble(look.clean(who), look.clean(each.why))
        if each.command:
            words.append(f"\n{look.clean(each.command)}", style="dim")
        yield paragraph("- ", words, look, indent=2)
    if len(spared) > MOST_SPARED:
        yield Text(f"    and {len(spared) - MOST_SPARED} more: `vram who` lists them all", style="dim")


def _whom(step: Step, look: Look) -> str:
    if step.target is None:
        return f"{step.kind} GPU {', '.join(map(str, step.gpus))}"
    name = look.short(step.target.command, 40)
    return f"{step.kind} pid {step.target.process.pid} ({name})"
