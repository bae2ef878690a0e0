"""Each command that writes a file, as root, where somebody else has left a link to a file of root's."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.files.conftest import needs_root, planted_link
from tests.patience import PATIENCE_S
from tests.trace.writer import TraceFile
from vram.virtualgpu import VirtualGpu

pytestmark = needs_root

PRECIOUS = b"root's own\n"
TRACE = "TRACE"  # stands for a file that is one
OUTPUTS = {
    "snapshot": (("snapshot", "-o"), 2),
    "picture": (("why", "--svg"), 2),
    "plan": (("free", "--dry-run", "--save"), 16),
    "page": (("report", TRACE, "--html"), 2),
    "export": (("report", TRACE, "--export", "perfetto", "-o"), 2),
}


def vram(gpu: VirtualGpu, state: Path, *words: object) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, "-m", "vram", *map(str, words)]
    environment = gpu.environment({**os.environ, "XDG_STATE_HOME": str(state)})
    return subprocess.run(argv, env=environment, capture_output=True, text=True, timeout=PATIENCE_S)


@pytest.mark.fault(28)
@pytest.mark.parametrize("output", OUTPUTS)
def test_a_planted_link_is_refused_and_what_it_names_stays(
    virtual_gpu: VirtualGpu, shared: Path, own: Path, output: str
) -> None:
    words, code = OUTPUTS[output]
    trace = TraceFile()
    trace.section(pid=7).writer().end(10)
    (own / "t.vram").write_bytes(trace.bytes())
    words = tuple(str(own / "t.vram") if word == TRACE else word for word in words)
    precious = own / "precious"
    precious.write_bytes(PRECIOUS)
    planted_link(shared / "out", precious)
    done = vram(virtual_gpu, own, *words, shared / "out")
    assert done.returncode == code, done.stderr
    assert "Traceback" not in done.stderr
    assert precious.read_bytes() == PRECIOUS

    planted_link(shared / "folder", own)
    done = vram(virtual_gpu, own, *words, shared / "folder" / "new")
    assert done.returncode == code, done.stderr
    assert f"a link of nobody, {shared}/folder" in done.stderr
    assert not (own / "new").exists()


def test_an_account_of_an_out_of_memory_is_not_written_through_a_link(shared: Path, own: Path) -> None:
    planted_link(shared / "folder", own)
    code = "import vram; vram.on_oom({!r})"
    for named in (shared / "folder", shared / "folder" / "more"):
        argv = [sys.executable, "-c", code.format(str(named))]
        done = subprocess.run(argv, capture_output=True, text=True, timeout=PATIENCE_S)
        assert "UsageError" in done.stderr
        assert "a link of nobody" in done.stderr
    assert list(own.iterdir()) == []


@pytest.mark.parametrize("mode", [0o1777, 0o777])
def test_records_that_others_can_add_to_are_not_read(virtual_gpu: VirtualGpu, own: Path, mode: int) -> None:
    """Anybody could leave an entry there, or a pipe that is never written to."""
    folder = own / "vram"
    folder.mkdir()
    folder.chmod(mode)
    os.mkfifo(folder / "parked-1b4e28ba-1-1.json", 0o666)
    done = vram(virtual_gpu, own, "park")
    assert (done.returncode, done.stdout) == (17, ""), done.stderr
    assert f"{folder} is not yours alone, its mode is {mode:04o}" in done.stderr
    assert vram(virtual_gpu, own, "why").returncode == 0
