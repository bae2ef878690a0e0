"""Row 2: a GPU that must be reset is shown as that, whatever is asked; it is reset only by that name."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.faults.record import Tally
from tests.needs import require
from tests.reclaim.conftest import Bench
from vram.units import GIB

RESET_REQUIRED = "nvmlDeviceGet* gpu=0 error=RESET_REQUIRED"
TOOL = "/usr/bin/nvidia-smi"


def with_a_tool(folder: Path) -> tuple[str, ...]:
    """The words before a command for which the vendor's tool is a script that notes its words."""
    tool = folder / "nvidia-smi"
    tool.write_text(f'#!/bin/sh\necho "$@" >> {folder}/called\n')
    tool.chmod(0o755)
    place = (
        f"mount -t tmpfs none /usr/local/bin && cp {tool} /usr/local/bin/nvidia-smi"
        if not os.path.exists(TOOL)
        else f"mount --bind {tool} {TOOL}"
    )
    return ("unshare", "--mount", "sh", "-c", f'{place} && exec "$@"', "sh")


@pytest.fixture
def tool(tmp_path: Path) -> tuple[str, ...]:
    require("unshare")
    require("root", detail="only root can put a tool in the vendor's place for the time of a test")
    folder = tmp_path / "tool"
    folder.mkdir()
    return with_a_tool(folder)


@pytest.mark.fault(2)
def test_it_is_shown_and_nothing_that_is_asked_for_resets_it(
    machine: Bench, tool: tuple[str, ...], tmp_path: Path, tally: Tally
) -> None:
    called = tmp_path / "tool" / "called"
    code = "from vram.host.local.system_info import LocalVendor as V; v = V(); v.run(v.reset_command(0), 20)"
    subprocess.run([*tool, sys.executable, "-c", code], env=machine.environment(), check=True)
    assert called.read_text() == "--gpu-reset -i 0\n", "the control: the tool would be called"
    called.unlink()
    pid = str(machine.demo("memory.plain", GIB).pids["self"])
    machine.fault(RESET_REQUIRED)
    shown = json.loads(machine.vram("why", "--json", prefix=tool).stdout)
    assert [gpu["status"] for gpu in shown["gpus"]] == ["lost"]
    assert {each["code"]: each["title"] for each in shown["findings"]}["VR404"] == "GPU 0 needs a reset"
    assert not any(
        "reset" in (way["command"] or "") for each in shown["findings"] for way in each["remedies"]
    )
    asked = [
        *(("why",), ("who",), ("check",), ("doctor",), ("reset", "0"), ("reset", "0", "--yes")),
        *(("free", "--yes", "--up-to", "kill"), ("free", "--more", "1GiB", "--yes", "--up-to", "kill")),
        *(("trim", pid), ("park", pid), ("kill", pid, "--yes")),
    ]
    codes = {" ".join(words): machine.vram(*words, prefix=tool).returncode for words in asked}
    # A process is on it: even a reset by its name is refused, and says who is in the way.
    assert codes["reset 0 --yes"] == 1
    tally.count(len(asked) + 1, wrong=int(called.exists()))
    assert not called.exists(), called.read_text()
    steps = [each["step"]["kind"] for each in machine.audit() if each["event"] == "intend" and "step" in each]
    assert "reset" not in steps
