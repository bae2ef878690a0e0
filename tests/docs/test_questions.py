"""The pages of the five questions: their commands run as written, and their figures are evidence."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.pages import ROOT
from vram.virtualgpu import VirtualGpu

PAGES = sorted(path for path in (ROOT / "docs" / "questions").glob("*.md") if path.name != "index.md")
COMMANDS = sorted(
    {
        line
        for page in PAGES
        for block in re.findall(r"```sh\n(.*?)```", page.read_text(), re.DOTALL)
        for line in block.splitlines()
        # The experiments have tests of their own, which play all of them.
        if not line.startswith("vram lab run")
    }
)


def test_there_are_five() -> None:
    assert len(PAGES) == 5


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_page_goes_from_the_answer_to_the_remedy(page: Path) -> None:
    """The answer, the command, the experiment, the figures, what is false, what to do, where to read on."""
    text = page.read_text()
    wanted = [
        "Ask your machine",
        "Run the experiment",
        "Measured",
        "Often said, and false here",
        "What to do",
        "Further reading",
    ]
    assert [title for title in re.findall(r"^## (.+)$", text, re.MULTILINE) if title in wanted] == wanted
    answer = text.split("\n\n")[1]
    assert "Measured" in answer, "the first paragraph has the answer and the figure that it rests on"
    assert re.search(r"vram (lab run|demo) ", text)


def test_commands_of_the_pages_work_as_written(tmp_path: Path, native_libraries: Path) -> None:
    env = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    with VirtualGpu.create() as gpu:
        for line in COMMANDS:
            done = gpu.run(
                ["sh", "-c", line],
                cwd=tmp_path,
                env=env,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
            )
            assert done.returncode == 0, f"{line}\n{done.stdout}{done.stderr}"
