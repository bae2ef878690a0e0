"""A mount namespace with a driver in the kernel and none of its files in /dev, as a container without GPUs.

The driver's libraries are the virtual ones, told of no virtual GPU: they find no driver either.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.needs import skip_without
from tests.patience import PATIENCE_S

VERSION = "580.95.05"
SAID = f"NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  {VERSION}  Release Build\n"
OWN_MOUNTS = ("unshare", *(() if os.geteuid() == 0 else ("--user", "--map-root-user")), "--mount")
# A /dev with what programs need and nothing of any GPU; and the kernel's word that a driver is loaded.
FURNISH = """
for name in null zero full random urandom; do
    touch "$1/dev/$name" && mount --bind "/dev/$name" "$1/dev/$name" || exit
done
mount --rbind "$1/dev" /dev && mount --bind "$1/driver" /proc/driver || exit
shift && exec "$@"
"""
NO_DRIVER = 4

Vram = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def vram(tmp_path: Path, native_libraries: Path) -> Vram:
    """Run vram there."""
    (tmp_path / "dev").mkdir()
    (tmp_path / "driver/nvidia").mkdir(parents=True)
    (tmp_path / "driver/nvidia/version").write_text(SAID)
    under = (*OWN_MOUNTS, "sh", "-c", FURNISH, "sh", str(tmp_path))
    if not shutil.which("unshare") or subprocess.run([*under, "true"], capture_output=True).returncode:
        skip_without("mounts", "nothing may be mounted here")
    plain = {name: value for name, value in os.environ.items() if name != "VRAM_VIRTUAL_GPU"}
    plain |= {"XDG_STATE_HOME": str(tmp_path / "state"), "VRAM_DEBUGGER": "true", "COLUMNS": "200"}

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        environment = plain | {"LD_LIBRARY_PATH": str(native_libraries)}
        argv = [*under, sys.executable, "-m", "vram", *words]
        return subprocess.run(argv, env=environment, capture_output=True, text=True, timeout=PATIENCE_S)

    return run


def checks(done: subprocess.CompletedProcess[str]) -> dict[str, dict[str, Any]]:
    return {each["check"]: each for each in json.loads(done.stdout)["checks"]}


@pytest.mark.parametrize("words", [("why",), ("who",), ("free", "--dry-run")], ids=" ".join)
def test_a_loaded_driver_is_not_called_missing(vram: Vram, words: tuple[str, ...]) -> None:
    """The library says "not loaded" where it finds no way to it; the kernel says what is so."""
    done = vram(*words)
    assert done.returncode == NO_DRIVER, done.stderr
    assert f"kernel module {VERSION} is loaded, but /dev/nvidiactl is missing" in done.stderr
    assert "`vram doctor`" in done.stderr
    assert "vram demo" not in done.stderr


def test_the_doctor_names_the_files(vram: Vram) -> None:
    found = checks(vram("doctor", "--json"))
    assert found["driver.nodes"]["state"] == "missing"
    assert "/dev/nvidiactl, /dev/nvidia-uvm are missing" in found["driver.nodes"]["seen"]
    present = found["driver.present"]
    assert present["seen"] == f"kernel module {VERSION} is loaded, but its device files are missing"
    assert "libraries" not in present["fix"]
