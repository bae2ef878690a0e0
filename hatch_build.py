"""What a wheel needs besides packed Python: compiled C, manual pages, completion, a list of what is in it.

$VRAM_BUILD_FOR says for which machine: unset, for this one, with its compiler; `any`, nothing is compiled;
`x86_64-linux-gnu.2.17` and the like, with PyPI's zig, for systems with at least that glibc (`make dist`).
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
import sys
import sysconfig
import time
from collections.abc import Iterable
from importlib.metadata import version as version_of
from pathlib import Path
from typing import Any
from uuid import NAMESPACE_URL, uuid5

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

sys.path.insert(0, str(Path(__file__).resolve().parent / "native"))

import build as native

ROOT = Path(__file__).resolve().parent
# pyproject.toml puts it into the wheel.
SHARE = ROOT / ".build" / "share"
ANY = "any"


class WheelHook(BuildHookInterface):  # type: ignore[misc]
    """Puts the libraries into wheels (editable ones find them in the source folder), and into share/ what
    man and the shells read."""

    def dependencies(self) -> list[str]:
        target = os.environ.get("VRAM_BUILD_FOR", "")
        needs_zig = target != ANY and (target or not native.system_compiler())
        return [native.ZIGLANG] if self.target_name == "wheel" and needs_zig else []

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if self.target_name != "wheel":
            return
        target = os.environ.get("VRAM_BUILD_FOR", "")
        package = ROOT / ".build" / "for" / target if target else native.PACKAGE
        try:
            built = [] if target == ANY else native.build_all(package, target=target)
        except native.BuildError as error:
            self.app.abort(str(error))
        build_data["pure_python"] = target == ANY
        build_data["tag"] = f"py3-none-{platform_tag(target)}"
        packed = {f"vram/{output.relative_to(package)}": output for output in built}
        build_data["force_include"].update({str(output): name for name, output in packed.items()})
        if version == "standard":
            sbom = package / "vram.cdx.json" if target else SHARE.with_name("vram.cdx.json")
            sbom.parent.mkdir(parents=True, exist_ok=True)
            sbom.write_text(describe(self.metadata.version, packed, target))
            build_data["sbom_files"] = [str(sbom)]
        _write_share()


def platform_tag(target: str) -> str:
    """What an index and pip call the machines that *target* means."""
    if target == ANY:
        return ANY
    if found := re.fullmatch(r"(\w+)-linux-gnu\.(\d+)\.(\d+)", target):
        machine, major, minor = found.groups()
        return f"manylinux_{major}_{minor}_{machine}"
    if target:
        raise ValueError(f"VRAM_BUILD_FOR={target} is neither `any` nor like x86_64-linux-gnu.2.17")
    return sysconfig.get_platform().replace("-", "_").replace(".", "_")


def describe(version: str, packed: dict[str, Path], target: str) -> str:
    """What the wheel contains, as CycloneDX (PEP 770): vram, and each compiled file. It contains no other
    project's code; what pip installs beside it is in its metadata."""
    purl = f"pkg:pypi/vram@{version}"
    listing: dict[str, Any] = {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {
            "tools": {"components": list(_tools(target) if packed else _hatchling())},
            "component": {
                "type": "application",
                "bom-ref": purl,
                "name": "vram",
                "version": version,
                "purl": purl,
                "licenses": [{"license": {"id": "Apache-2.0"}}],
            },
        },
        "components": [
            {
                "type": "file",
                "bom-ref": f"{purl}#{name}",
                "name": name,
                "hashes": [{"alg": "SHA-256", "content": hashlib.sha256(path.read_bytes()).hexdigest()}],
            }
            for name, path in sorted(packed.items())
        ],
    }
    if epoch := os.environ.get("SOURCE_DATE_EPOCH"):
        written = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(int(epoch)))
        listing["metadata"]["timestamp"] = written
    listing["serialNumber"] = f"urn:uuid:{uuid5(NAMESPACE_URL, json.dumps(listing))}"
    return json.dumps(listing, indent=1) + "\n"


def _hatchling() -> Iterable[dict[str, str]]:
    yield {"type": "application", "name": "hatchling", "version": version_of("hatchling")}


def _tools(target: str) -> Iterable[dict[str, str]]:
    yield from _hatchling()
    command = native.compiler(target)
    if "ziglang" in command:
        yield {"type": "application", "name": "ziglang", "version": version_of("ziglang")}
    else:
        yield {"type": "application", "name": os.path.basename(command[0])}


def _write_share() -> None:
    """In a process of its own, which keeps the docstrings that they are written from."""
    env = {**os.environ, "PYTHONOPTIMIZE": ""}
    subprocess.run([sys.executable, str(ROOT / "docs" / "share.py"), str(SHARE)], env=env, check=True)
