"""A refused attach is explained by the kernel's own setting."""

from __future__ import annotations

from pathlib import Path

import pytest

from vram.reach import python_process


@pytest.mark.parametrize(
    ("scope", "said"), [("1", "parent"), ("2", "only root"), ("3", "nobody"), ("0", "CAP_SYS_PTRACE")]
)
def test_yama_is_explained(tmp_path: Path, scope: str, said: str) -> None:
    (tmp_path / "ptrace_scope").write_text(f"{scope}\n")
    assert said in python_process.why_not_traced(str(tmp_path / "ptrace_scope"))


def test_without_yama_everybody_may(tmp_path: Path) -> None:
    assert python_process.ptrace_scope(str(tmp_path / "absent")) == "0"
