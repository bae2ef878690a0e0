"""How this vram was installed, and so what brings a part that it lacks: the end of many hints.

An index may have no vram of this version, so hints name the packages that are missing, and the environment
that they go into.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from functools import cache

BUNDLES = {
    "vram.pyz": "the single file vram.pyz",
    "dpkg": "vram's Debian package",
    "rpm": "vram's rpm package",
}
"""What INSTALLER says where vram brings all that it needs: nothing can be added there."""

_REQUIRES = "Requires-Dist: "
_CHECKOUT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


def how_to_add(extra: str) -> str:
    """The command that brings what *extra* of pyproject.toml adds, into the environment that vram runs in."""
    wanted = requirements_of(extra)
    return how_to_install(wanted) if wanted else f"install the packages of vram's extra `{extra}`"


def how_to_install(packages: Sequence[str]) -> str:
    """The command that installs *packages* beside vram."""
    from importlib.util import find_spec
    from shlex import join, quote

    words, installer, python = join(packages), read_metadata("INSTALLER").strip(), quote(sys.executable)
    if installer in BUNDLES:
        return f"{BUNDLES[installer]} has only what it came with: install vram by pip, and {words}"
    if os.path.basename(os.path.dirname(sys.prefix)) == "venvs" and "/pipx/" in sys.prefix:
        return f"pipx inject {quote(os.path.basename(sys.prefix))} {words}"
    if find_spec("pip") is None:  # uv makes environments without it
        return f"uv pip install --python {python} {words}"
    return f"{python} -m pip install {words}"


def requirements_of(extra: str) -> list[str]:
    """What the metadata of this vram say that *extra* needs; none where they are not there."""
    lines = [
        line.partition(": ")[2]
        for line in read_metadata("METADATA").splitlines()
        if line.startswith(_REQUIRES)
    ]
    parted = (line.partition(";") for line in lines)
    return [what.strip() for what, _, marker in parted if f"extra=='{extra}'" in "".join(marker.split())]


def how_to_get_native() -> str:
    """What brings vram's compiled parts, where one is missing."""
    if os.path.exists(os.path.join(_CHECKOUT, "native", "build.py")):
        return f"run `python native/build.py` in {_CHECKOUT}"
    if is_pure():
        machine = os.uname().machine
        return (
            "this is vram's wheel for any machine, which has nothing compiled:"
            f" install the one for Linux on {machine}, or from source with a C compiler"
        )
    return "reinstall vram for this platform"


def is_pure() -> bool:
    """Whether vram was installed from the wheel that has nothing compiled."""
    return "\nTag: py3-none-any" in read_metadata("WHEEL")


@cache
def read_metadata(name: str) -> str:
    """A file of what was installed with vram; empty where there is none."""
    from importlib.metadata import PackageNotFoundError, distribution

    try:
        return distribution("vram").read_text(name) or ""
    except PackageNotFoundError:
        return ""
