"""The pages of ``vram explain``: of rules, of the doctor's checks, of kinds of out-of-memory, of lines."""

from __future__ import annotations

from collections.abc import Iterable

from vram.errors import UsageError

# Names with their texts, in the order in which they are listed.
Pages = dict[str, str]


def rules() -> Pages:
    """The page of each finding, by its code."""
    from vram.diagnosis.engine import RULES

    return _pages((rule.CODE, rule.__doc__) for rule in sorted(RULES, key=lambda rule: rule.CODE))


def checks() -> Pages:
    """The page of each check of the doctor, by its id."""
    from vram.doctor.checks import CHECKS

    return _pages((check.id, check.page) for check in CHECKS)


def kinds() -> Pages:
    """The page of each kind of out-of-memory, by its id."""
    from vram.oom.judge import KINDS

    return _pages((kind.id, kind.page) for kind in KINDS)


def lines() -> Pages:
    """The page of each line of a ledger, by its kind."""
    from vram.model.ledger import MEANINGS

    both = (MEANINGS["orphaned"], MEANINGS["exported"])
    codes = tuple(sorted(code for _, each in both for code in each))
    meaning = "memory whose owner is dead; JSON has it as orphaned, or exported where a handle holds it"
    ghost = {"ghost": _line("ghost", meaning, codes)}
    return ghost | {kind: _line(kind, *meaning) for kind, meaning in MEANINGS.items()}


def _line(kind: str, meaning: str, codes: tuple[str, ...]) -> str:
    text = f"{kind}: {meaning}\n\nA line of `vram why`."
    if codes:
        text += " `vram explain CODE` has more about its findings:\n"
        known = dict(summaries(rules()))
        text += "".join(f"\n- {code} {known[code]}" for code in codes)
    return f"{text}\n"


def _pages(docstrings: Iterable[tuple[str, str | None]]) -> Pages:
    # Python -OO strips docstrings, and with them the pages.
    missing = "{} This page is missing: Python was started with -OO, which removes it.\n"
    return {name: text or missing.format(name) for name, text in docstrings}


def page(name: str) -> str:
    """The page of a code, a check, a kind or a line; case does not matter. UsageError where there is none.

    A name that means two things, as fragmented does, has both pages.
    """
    wanted = name.strip().lower()
    known = (checks(),) if "." in wanted else (rules(), kinds(), lines())
    found = [text.rstrip() for pages in known for each, text in pages.items() if wanted == each.lower()]
    if found:
        return "\n\n".join(found) + "\n"
    what, names = ("check", checks()) if "." in wanted else ("code", rules())
    raise UsageError(f"no such {what}: {name!r}", hint=f"{what}s: {', '.join(names)}")


def summaries(pages: Pages) -> tuple[tuple[str, str], ...]:
    """Each name with what it means: the first line of its page, as in "VR101 Orphaned by fork"."""
    first = ((name, text.partition("\n")[0]) for name, text in pages.items())
    return tuple((name, line.removeprefix(name).lstrip(" :").strip()) for name, line in first)
