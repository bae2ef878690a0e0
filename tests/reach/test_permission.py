"""A refused attach is explained by the kernel's own setting."""

from __future__ import annotations

from pathlib import Path

import pytest

from vram.reach import permission


@pytest.mark.parametrize(
    ("scope", "said"), [("1", "parent"), ("2", "only root"), ("3", "nobody"), ("0", "CAP_SYS_PTRACE")]
)
def test_yama_is_explained(tmp_path: Path, scope: str, said: str) -> None:
    (tmp_path / "ptrace_scope").write_text(f"{scope}\n")
    assert said in permission.why_not_traced(str(tmp_path / "ptrace_scope"))


def test_without_yama_everybody_may(tmp_path: Path) -> None:
    assert permission.ptrace_scope(str(tmp_path / "absent")) == "0"
