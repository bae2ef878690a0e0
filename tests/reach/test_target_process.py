"""A refused attach is explained by the kernel's setting; supported versions are named alike everywhere."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from vram.cpython_layouts import FRAMES, MINORS, PENDING_CALLS, PUBLISHED, STATE, SUPPORTED, select
from vram.reach import target_process

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("scope", "said"), [("1", "parent"), ("2", "only root"), ("3", "nobody"), ("0", "CAP_SYS_PTRACE")]
)
def test_yama_is_explained(tmp_path: Path, scope: str, said: str) -> None:
    (tmp_path / "ptrace_scope").write_text(f"{scope}\n")
    assert said in target_process.why_not_traced(str(tmp_path / "ptrace_scope"))


def test_without_yama_everybody_may(tmp_path: Path) -> None:
    assert target_process.ptrace_scope(str(tmp_path / "absent")) == "0"


def test_texts_that_name_the_supported_versions_agree() -> None:
    """Docstrings and pages cannot take them from the table."""
    texts = [*ROOT.glob("src/**/*.py"), *ROOT.glob("native/**/*.[ch]"), *ROOT.glob("docs/*/*.md")]
    named = [
        versions
        for path in texts
        for versions in re.findall(r"CPython(?: from)? (3\.\d+ to 3\.\d+)", path.read_text(encoding="utf-8"))
    ]
    assert named
    assert set(named) == {SUPPORTED}


def test_each_version_has_a_whole_column() -> None:
    """The lock and the pending calls are in one place, and what the recorder reads is in one table."""
    rows = [row for table in (STATE, PENDING_CALLS, FRAMES, PUBLISHED) for row in table.values()]
    assert {len(row) for row in rows} == {len(MINORS)}
    for minor in MINORS:
        state = select(STATE, minor)
        assert ("lock_in_runtime" in state) != ("lock_of_interpreter" in state)
        assert ("pending_in_interpreter" in state) != ("pending_in_runtime" in state)
        assert bool(select(FRAMES, minor)) != bool(select(PUBLISHED, minor))
