"""Whether /proc shows us everybody."""

from __future__ import annotations

from pathlib import Path

import pytest

from vram.host.local.identity import hides_processes


@pytest.mark.parametrize(
    ("options", "hides"),
    [
        ("rw,nosuid,nodev,noexec,relatime", False),
        ("rw,relatime,gid=4,hidepid=2", True),
        ("rw,relatime,hidepid=invisible", True),
        ("rw,relatime,hidepid=ptraceable", True),
        ("rw,relatime,hidepid=noaccess", False),
        ("rw,relatime,hidepid=off", False),
    ],
)
def test_hidepid_is_read_from_the_mounts(tmp_path: Path, options: str, hides: bool) -> None:
    (tmp_path / "self").mkdir()
    other = "proc /somewhere/else proc rw,hidepid=2 0 0"
    (tmp_path / "self/mounts").write_text(f"{other}\nproc {tmp_path} proc {options} 0 0\n")
    assert hides_processes(str(tmp_path)) == hides


def test_who_sees_the_first_process_is_shown_everybody(tmp_path: Path) -> None:
    """As root does, and whoever is of the group that the mount names."""
    for name in ("self", "1"):
        (tmp_path / name).mkdir()
    (tmp_path / "self/mounts").write_text(f"proc {tmp_path} proc rw,gid=4,hidepid=2 0 0\n")
    assert not hides_processes(str(tmp_path))


def test_without_mounts_nothing_is_said_to_be_hidden(tmp_path: Path) -> None:
    assert not hides_processes(str(tmp_path))
