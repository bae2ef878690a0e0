"""What a wheel needs besides packed Python: compiled C, and written manual pages and completion."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

sys.path.insert(0, str(Path(__file__).resolve().parent / "native"))

import build as native

ROOT = Path(__file__).resolve().parent
# pyproject.toml puts it into the wheel.
SHARE = ROOT / ".build" / "share"


class WheelHook(BuildHookInterface):  # type: ignore[misc]
    """Puts the libraries into wheels (editable ones find them in the source folder), and into share/ what
    man and the shells read."""

    def dependencies(self) -> list[str]:
        return [native.ZIGLANG] if self.target_name == "wheel" and not native.system_compiler() else []

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if self.target_name != "wheel":
            return
        try:
            built = native.build_all()
        except native.BuildError as error:
            self.app.abort(str(error))
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-{_platform()}"
        for output in built:
            build_data["force_include"][str(output)] = f"vram/{output.relative_to(native.PACKAGE)}"
        _write_share()


def _write_share() -> None:
    """In a process of its own, which keeps the docstrings that they are written from."""
    env = {**os.environ, "PYTHONOPTIMIZE": ""}
    subprocess.run([sys.executable, str(ROOT / "docs" / "share.py"), str(SHARE)], env=env, check=True)


def _platform() -> str:
    return sysconfig.get_platform().replace("-", "_").replace(".", "_")
