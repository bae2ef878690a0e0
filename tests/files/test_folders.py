"""Private folders are trusted only where nobody else can change the way to them."""

from __future__ import annotations

import os
import pwd
import stat
import struct
import subprocess
from pathlib import Path

import pytest

from tests.files.conftest import NOBODY, needs_root, planted_link
from tests.needs import skip_without
from tests.patience import PATIENCE_S
from tests.reclaim.test_shared_machine import as_another_user
from vram.errors import AuditUnavailable
from vram.payloads import agent
from vram.reclaim import audit, state


@pytest.fixture
def base(own: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where state is to be kept; not made yet."""
    base = own / "home" / "state"
    monkeypatch.setenv("XDG_STATE_HOME", str(base))
    return base


def refused() -> str:
    """Why nothing can be written down: the same whether it is asked beforehand or tried."""
    with pytest.raises(AuditUnavailable) as caught:
        audit.log_intent({})
    beforehand = audit.why_unusable()
    assert str(beforehand) == str(caught.value)
    assert caught.value.hint
    assert not state.has_parked()
    return str(caught.value)


def test_what_is_missing_is_made_for_this_user_alone(base: Path) -> None:
    assert audit.why_unusable() is None
    assert not base.parent.exists(), "asking makes nothing"
    os.close(state.open_folder())
    for made in (base / "vram", base, base.parent):
        assert stat.S_IMODE(made.stat().st_mode) == 0o700


def test_our_own_links_on_the_way_are_followed(base: Path, own: Path) -> None:
    (own / "disk").mkdir(mode=0o700)
    base.parent.mkdir()
    base.symlink_to("../disk")
    os.close(state.open_folder())
    assert (own / "disk" / "vram").is_dir()


@pytest.mark.fault(28)
@pytest.mark.parametrize("mode", [0o1777, 0o777, 0o755, 0o770, 0o701, 0o3770])
def test_a_folder_that_is_open_to_others_is_refused(base: Path, mode: int) -> None:
    """A sticky one too: anybody could have left an entry or a pipe in it."""
    (base / "vram").mkdir(parents=True)
    (base / "vram").chmod(mode)
    assert f"{base}/vram is not yours alone, its mode is {mode:04o}" in refused()


@pytest.mark.fault(28)
@pytest.mark.parametrize("mode", [0o777, 0o757])
@pytest.mark.parametrize("above", [0, 1])
def test_nobody_else_may_write_to_a_folder_on_the_way(base: Path, mode: int, above: int) -> None:
    (base / "vram").mkdir(parents=True, mode=0o700)
    changed = (base, base.parent)[above]
    changed.chmod(mode)
    assert f"others can change what lies in {changed}, its mode is {mode:04o}" in refused()


def test_below_a_sticky_folder_what_is_ours_is_trusted(base: Path) -> None:
    (base / "vram").mkdir(parents=True, mode=0o700)
    base.chmod(0o1777)
    os.close(state.open_folder())


@needs_root
@pytest.mark.parametrize("above", [0, 1])
def test_every_folder_on_the_way_is_ours_or_roots(base: Path, above: int) -> None:
    (base / "vram").mkdir(parents=True, mode=0o700)
    theirs = (base, base.parent)[above]
    os.chown(theirs, NOBODY, NOBODY)
    assert f"others can change {theirs}, it belongs to nobody" in refused()


@pytest.mark.fault(28)
@needs_root
def test_somebody_elses_link_on_the_way_is_refused(base: Path, own: Path) -> None:
    (own / "disk").mkdir(mode=0o700)
    base.parent.mkdir()
    base.parent.chmod(0o1777)
    planted_link(base, own / "disk")
    assert f"others can change the link {base}, it belongs to nobody" in refused()
    assert os.listdir(own / "disk") == []


@pytest.mark.fault(28)
@needs_root
def test_what_somebody_else_prepared_in_a_sticky_folder_is_refused(base: Path) -> None:
    base.mkdir(parents=True)
    base.chmod(0o1777)
    (base / "vram").mkdir(mode=0o700)
    os.chown(base / "vram", NOBODY, NOBODY)
    assert "is not yours alone, it belongs to nobody" in refused()


@needs_root
def test_a_group_of_others_may_not_write_on_the_way(base: Path) -> None:
    (base / "vram").mkdir(parents=True, mode=0o700)
    base.chmod(0o770)
    os.close(state.open_folder())  # root's own group is root
    os.chown(base, 0, NOBODY)
    assert f"others can change what lies in {base}, its mode is 0770" in refused()


@needs_root
def test_rights_in_an_access_control_list_count(base: Path) -> None:
    """Its mask stands in the mode's group bits, so the group alone says too little."""
    (base / "vram").mkdir(parents=True, mode=0o700)
    everything, nobody = 7, 0xFFFFFFFF
    rights = [(0x01, nobody), (0x02, NOBODY), (0x04, nobody), (0x10, nobody), (0x20, nobody)]
    entries = (struct.pack("<HHI", tag, everything * (tag < 0x20), uid) for tag, uid in rights)
    try:
        os.setxattr(base, "system.posix_acl_access", struct.pack("<I", 2) + b"".join(entries))
    except OSError as error:
        skip_without("kernel", f"this file system has no access control lists: {error.strerror}")
    assert stat.S_IMODE(base.stat().st_mode) == 0o770
    assert f"others can change what lies in {base}" in refused()


@pytest.mark.fault(28)
class TestHome:
    """`sudo` may keep HOME: then it is somebody else's, and root's records do not belong there."""

    @needs_root
    def test_of_another_owner_is_not_used(self, own: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        home = own / "alice"
        home.mkdir()
        os.chown(home, NOBODY, NOBODY)
        monkeypatch.setenv("HOME", str(home))
        monkeypatch.delenv("XDG_STATE_HOME", raising=False)
        monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
        roots = pwd.getpwuid(0).pw_dir
        assert state.folder_path() == f"{roots}/.local/state/vram"
        assert agent.folders()[-1] == f"{roots}/.local/state/vram/run"
        assert not any(path.startswith(str(home)) for path in agent.folders())

    def test_of_ours_is_used(self, own: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("HOME", str(own))
        monkeypatch.setenv("XDG_STATE_HOME", "relative/paths/mean/nothing")
        assert state.folder_path() == f"{own}/.local/state/vram"
        assert agent.folders()[-1] == f"{own}/.local/state/vram/run"

    @needs_root
    def test_a_runtime_folder_below_one_of_another_owner_is_refused(self, own: Path) -> None:
        """Whoever owns a folder renames what lies in it, whatever that belongs to."""
        runtime = own / "alice" / "runtime"
        runtime.mkdir(parents=True, mode=0o700)
        os.chown(own / "alice", NOBODY, NOBODY)
        with pytest.raises(PermissionError, match="alice, it belongs to nobody"):
            agent.open_folder(str(runtime / "vram"), make=True)
        assert os.listdir(runtime) == []


@needs_root
def test_a_user_namespace_that_maps_one_user_is_no_obstacle() -> None:
    """As in a container of an ordinary user: the kernel shows root's folders as nobody's there."""
    code = "import os; from vram.reclaim import state; state.open_folder(); print(os.stat(chr(47)).st_uid)"
    command = f"unshare --user --map-root-user $PYTHON -c '{code}'"
    done = subprocess.run(as_another_user(command), capture_output=True, text=True, timeout=PATIENCE_S)
    if "unshare failed" in done.stderr:
        skip_without("namespaces", "no user namespace may be made here")
    assert (done.stdout, done.stderr) == (f"{NOBODY}\n", "")
