"""docs/reference/rules.md with a page per rule, and docs/reference/doctor.md: docstrings as Markdown."""

from __future__ import annotations

import re
from collections.abc import Iterator
from inspect import cleandoc

from generators import Page
from generators.statement_links import statements_that
from vram.cli import manual
from vram.diagnosis.engine import RULES
from vram.doctor.checks import CHECKS

FOLDER = "docs/reference/rules"
RULES_FOLDER = "src/vram/diagnosis/rules"
UNDERLINED = re.compile(r"^(.+)\n-{3,}$", re.MULTILINE)


def pages() -> Iterator[Page]:
    rules = manual.rules()
    yield Page("docs/reference/rules.md", "\n".join(_rule_index(rules)) + "\n", (RULES_FOLDER,))
    modules = {rule.CODE: rule.judge.__module__.rpartition(".")[2] for rule in RULES}
    for code, summary in manual.summaries(rules):
        text = "\n".join(_rule(code, summary, rules)) + "\n"
        yield Page(f"{FOLDER}/{code}.md", text, (f"{RULES_FOLDER}/{modules[code]}.py",))
    checks = manual.checks()
    text = "\n".join([*_check_index(checks), *_checks(checks)]) + "\n"
    yield Page("docs/reference/doctor.md", text, ("src/vram/doctor/checks",))


# ---- rules, each under an address that never changes ----


def _rule_index(rules: manual.Pages) -> Iterator[str]:
    yield "# Rules\n"
    yield "The causes that `vram why` can name. A code never changes its meaning; `vram explain CODE` shows"
    yield "its page.\n"
    yield "| code | cause |"
    yield "|---|---|"
    for code, summary in manual.summaries(rules):
        yield f"| [{code}](rules/{code}.md) | {summary} |"


def _rule(code: str, summary: str, rules: manual.Pages) -> Iterator[str]:
    title, _, rest = summary.partition(": ")
    yield f"# {code}: {title}\n"
    if rest:
        yield f"{rest[:1].upper()}{rest[1:]}"
    body = cleandoc(rules[code]).partition("\n")[2].rstrip()
    yield UNDERLINED.sub(r"## \1\n", _linked(body, set(rules) - {code}))
    if about := statements_that(lambda statement: f"reference/rules/{code}.md" in statement.pages):
        yield f"\nStatements of articles about it, judged: {about}."
    yield f"\nThe same page in a terminal: `vram explain {code}`. [All rules](../rules.md)"


def _linked(text: str, others: set[str]) -> str:
    """*others* become links, but not inside blocks that stay as they are."""

    def link(code: re.Match[str]) -> str:
        return f"[{code[0]}]({code[0]}.md)" if code[0] in others else code[0]

    lines = text.splitlines()
    return "\n".join(
        line if line.startswith("    ") else re.sub(r"\bVR\d{3}\b", link, line) for line in lines
    )


# ---- checks of the doctor ----


def _check_index(checks: manual.Pages) -> Iterator[str]:
    yield "# Checks of `vram doctor`\n"
    yield "[The guide](../guides/doctor.md) says how to read the answers. An id never changes its meaning;"
    yield "`vram explain CHECK` shows its page.\n"
    yield "| check | question | matters for | |"
    yield "|---|---|---|---|"
    summaries = dict(manual.summaries(checks))
    for check in CHECKS:
        anchor = check.id.replace(".", "")
        bears_on = ", ".join(check.verbs) or "none"
        optional = "optional" if check.optional else ""
        yield f"| [{check.id}](#{anchor}) | {summaries[check.id]} | {bears_on} | {optional} |"


def _checks(checks: manual.Pages) -> Iterator[str]:
    for check, text in checks.items():
        yield f"\n## {check}\n"
        yield UNDERLINED.sub(r"### \1\n", cleandoc(text).removeprefix(check).strip())
