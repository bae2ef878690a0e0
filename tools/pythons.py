"""Find the Pythons of this machine, wherever people install them, also with an empty environment.

    python tools/pythons.py 3.9 3.12      a line for each version: its interpreter, or "not found"

A "t" behind the version means its build without the global interpreter lock: 3.13t.
$VRAM_PYTHON312 names the interpreter to take for 3.12. Otherwise the newest patch release wins among those
of pyenv, uv, conda, asdf, mise, GitHub's runners and /opt; then PATH, /usr/local/bin and /usr/bin.
HOME may be an empty folder, so the home folder of the password database counts too.
"""

from __future__ import annotations

import glob
import os
import pwd
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from functools import cache

CONDA = ("miniconda", "anaconda", "miniforge", "mambaforge")
# Folders that hold an installation each, below a home folder.
BELOW_HOME = (
    ".pyenv/versions/*",
    ".local/share/uv/python/*",
    ".local/share/mise/installs/python/*",
    ".asdf/installs/python/*",
    ".conda/envs/*",
    *(f"{name}3" for name in CONDA),
    *(f"{name}3/envs/*" for name in CONDA),
)
# The same where a variable says that they lie elsewhere.
BELOW_VARIABLE = {
    "PYENV_ROOT": "versions/*",
    "UV_PYTHON_INSTALL_DIR": "*",
    "MISE_DATA_DIR": "installs/python/*",
    "ASDF_DATA_DIR": "installs/python/*",
    "CONDA_PREFIX": "",
    "RUNNER_TOOL_CACHE": "Python/*/*",
    "AGENT_TOOLSDIRECTORY": "Python/*/*",
}
FOR_ALL_USERS = (
    "/opt/python*",
    "/opt/python*/*",
    "/opt/hostedtoolcache/Python/*/*",
    "/opt/pyenv/versions/*",
    "/usr/local/pyenv/versions/*",
    "/opt/conda",
    "/opt/conda/envs/*",
    "/opt/miniconda3",
    "/opt/miniforge3",
)
ALWAYS_SEARCHED = ("/usr/local/bin", "/usr/bin")
ASK = """
import sys
kind = getattr(getattr(sys, "implementation", None), "name", "cpython")
print("%d.%d %s %s" % (sys.version_info[:2] + (kind, getattr(sys, "abiflags", ""))))
"""
START_S = 30.0


@cache
def find(version: str) -> str | None:
    """The interpreter of *version*, such as "3.12" or "3.13t", that starts. None where there is none."""
    return next((path for path in candidates(version) if answers(path, version)), None)


def candidates(version: str) -> list[str]:
    """Every file that may be a Python of *version*, the preferred one first, each once."""
    program = f"python{version}"
    named = os.environ.get(f"VRAM_PYTHON{version.replace('.', '').upper()}")
    managed = [path for pattern in places() for path in glob.glob(os.path.join(pattern, "bin", program))]
    managed.sort(key=lambda path: patch_release(path, version), reverse=True)
    folders = [*os.environ.get("PATH", "").split(os.pathsep), *ALWAYS_SEARCHED]
    on_path = [found for each in folders if each and (found := shutil.which(program, path=each))]
    return list(dict.fromkeys([*([named] if named else []), *managed, *on_path]))


def places() -> Iterator[str]:
    """Patterns of folders that each hold one installation."""
    for variable, below in BELOW_VARIABLE.items():
        if os.environ.get(variable):
            yield os.path.join(glob.escape(os.environ[variable]), below)
    for home in homes():
        for below in BELOW_HOME:
            yield os.path.join(glob.escape(home), below)
    yield from FOR_ALL_USERS


def homes() -> list[str]:
    """Home folders of whoever runs this: the one of the environment, and the one of the password database."""
    found = [os.environ.get("HOME", "")]
    with suppress(KeyError):  # a container may run as a user that nobody has entered
        found.append(pwd.getpwuid(os.getuid()).pw_dir)
    return [home for home in dict.fromkeys(found) if os.path.isabs(home)]


def patch_release(path: str, version: str) -> int:
    """The 7 of .../3.12.7/bin/python3.12, -1 where the folder does not say."""
    number = re.escape(version.rstrip("t"))
    found = re.findall(rf"(?<![\d.]){number}\.(\d+)", os.path.dirname(path))
    return int(found[-1]) if found else -1


@cache
def answers(path: str, version: str) -> bool:
    """Whether it starts and is a CPython of *version*, and no debug build.

    A pyenv shim exists for versions that it then refuses to start: only running tells. Builds without the
    global interpreter lock ("t") and debug builds ("d") lay out their memory in other ways.
    """
    try:
        done = subprocess.run([path, "-E", "-c", ASK], capture_output=True, text=True, timeout=START_S)
    except (OSError, subprocess.TimeoutExpired):
        return False
    found, kind, *flags = done.stdout.split() or ("", "")
    special = "".join(sorted(set("".join(flags)) & {"t", "d"}))
    return done.returncode == 0 and (found + special, kind) == (version, "cpython")


def main(versions: list[str]) -> int:
    for version in versions:
        print(f"Python {version}: {find(version) or 'not found'}")
    return 0 if all(map(find, versions)) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
