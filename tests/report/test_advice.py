"""What to do: least harm first, each way out once, commands that a shell reads as they were meant."""

from __future__ import annotations

import shlex
import subprocess

from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.report.test_text import printed
from vram.model.finding import Finding, Remedy
from vram.report.layout import RenderOptions
from vram.report.text import advice, ordered, pasteable


def finding(code: str, *remedies: Remedy) -> Finding:
    return Finding(code=code, title="t", nbytes=None, cause="c", gpus=(0,), remedies=remedies)


def remedy(command: str, harm: str = "none", text: str = "do it") -> Remedy:
    return Remedy(step="s", target="t", text=text, command=command, harm=harm)  # type: ignore[arg-type]


def test_least_harm_comes_first() -> None:
    steps = ordered(
        (
            finding("VR1", remedy("reboot", "affects-others"), remedy("kill 1", "loses-work")),
            finding("VR2", remedy("ls"), remedy("kill -STOP 1", "interrupts")),
        )
    )
    assert [entry.remedy.command for entry in steps] == ["ls", "kill -STOP 1", "kill 1", "reboot"]


def test_a_command_that_answers_two_findings_stands_once_with_both_codes() -> None:
    (entry,) = ordered((finding("VR1", remedy("kill 1")), finding("VR2", remedy("kill 1"))))
    assert entry.codes == ["VR1", "VR2"]


def test_the_same_words_for_two_processes_stand_once_and_name_both() -> None:
    asks = [Remedy(step="ask", target=f"pid {pid}", text="ask the owner", pids=(pid,)) for pid in (7, 8)]
    section = advice((finding("VR1", asks[0]), finding("VR1", asks[1])), RenderOptions(80))
    shown = "".join(printed(part, 80) for part in section)
    assert shown.count("ask the owner") == 1
    assert "pid 7, 8" in shown


def test_ways_out_without_a_command_are_kept_apart() -> None:
    steps = ordered((finding("VR1", remedy("", text="wait"), remedy("", text="ask the owner")),))
    assert len(steps) == 2


def test_commands_stand_on_lines_of_their_own() -> None:
    section = advice((finding("VR1", remedy("kill 4243 4244", "loses-work")),), RenderOptions(80))
    lines = [line.strip() for part in section for line in printed(part, 80).splitlines()]
    assert "kill 4243 4244" in lines
    assert "loses work that was not saved" in lines


def test_nothing_to_do_says_nothing() -> None:
    assert list(advice((finding("VR1"),), RenderOptions(80))) == []


WORDS = st.lists(
    st.text(st.characters(min_codepoint=32, max_codepoint=126), max_size=20), min_size=1, max_size=12
)


@settings(max_examples=40, deadline=None)
@given(WORDS, st.integers(12, 60))
@example(["it's", 'a "b"', "c\\", "$HOME", " "], 12)
def test_a_broken_line_means_the_same_to_the_shell(words: list[str], width: int) -> None:
    command = pasteable(f"printf '%s\\0' {shlex.join(words)}", width)
    done = subprocess.run(["sh", "-c", command], capture_output=True, check=True)
    assert done.stdout.decode().split("\0")[:-1] == words


def test_a_command_is_broken_only_where_it_must_be() -> None:
    command = "kill " + " ".join(str(pid) for pid in range(100000, 100030))
    assert max(map(len, pasteable(command, 75).splitlines())) <= 75
    assert pasteable("kill 1", 75) == "kill 1"
