"""Where libcupti lies that a command could use: beside its own Python first, the newest first, none too new.

The recorder takes the library that its process has loaded already, else the first of these that works.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from glob import escape, glob

from msgspec import Struct

from vram.files import open_plain

_LIBRARY = "libcupti.so*"
_NUMBERS = re.compile(r"\.so\.(\d+)(?:\.(\d+))?(?:\.(\d+))?$")
# Since CUDA 11 the file is named after CUPTI's own version, a year, and the link after CUDA's major version.
_FIRST_YEAR = 2000
# The newest CUDA of a driver branch, from NVIDIA's table of releases. What is newer has no limit here.
_BRANCHES = ((525, 11), (580, 12))
_SHEBANG_NBYTES = 256
_MAX_VERSIONS = 12
# Of a process that is attached to, the variable is that process's choice, too.
_MAX_FOLDERS = 100


class Cupti(Struct, frozen=True):
    """One library; ``major`` is that of CUDA, None where its names do not say."""

    path: str
    major: int | None
    version: tuple[int, ...]


def candidates(
    argv: Sequence[str], environment: Mapping[str, str], places: Iterable[str], driver: str | None
) -> tuple[str, ...]:
    """Every libcupti for *argv*, best first.

    *places* are those that the host knows; *driver* is the version of its kernel module. What the user put
    into LD_LIBRARY_PATH comes first, as it would for the loader.
    """
    own = list(_package_folders(argv, environment))
    known = [os.path.dirname(path) for path in places]
    newest = newest_cuda(driver)
    rest = [
        each
        for each in _in_folders([*own, *known])
        if newest is None or each.major is None or each.major <= newest
    ]
    own_folders = {os.path.realpath(folder) for folder in own}
    rest.sort(key=lambda each: os.path.dirname(each.path) in own_folders, reverse=True)
    rest.sort(key=lambda each: each.major or 0, reverse=True)
    return tuple(dict.fromkeys((*chosen(environment), *_paths(rest))))[:_MAX_VERSIONS]


def chosen(environment: Mapping[str, str]) -> tuple[str, ...]:
    """Those in the folders of LD_LIBRARY_PATH."""
    folders = [path for path in environment.get("LD_LIBRARY_PATH", "").split(":") if path]
    return _paths(_in_folders(folders[:_MAX_FOLDERS]))


def _paths(libraries: Iterable[Cupti]) -> tuple[str, ...]:
    # The recorder is given a list that colons divide.
    return tuple(each.path for each in libraries if ":" not in each.path)


def newest_cuda(driver: str | None) -> int | None:
    """The newest major version of CUDA that *driver* runs; None where there is no limit that we know."""
    branch = (driver or "").partition(".")[0]
    if not branch.isdecimal():
        return None
    return next((major for until, major in _BRANCHES if int(branch) < until), None)


def _in_folders(folders: Iterable[str]) -> Iterator[Cupti]:
    """The libraries of each folder, newest first; links to the same file are one library."""
    for folder in dict.fromkeys(folders):
        files: dict[str, list[str]] = {}
        for path in glob(f"{escape(folder)}/{_LIBRARY}"):
            files.setdefault(os.path.realpath(path), []).append(os.path.basename(path))
        here = [_describe(path, names) for path, names in files.items() if os.path.isfile(path)]
        yield from sorted(here, key=lambda each: (each.major or 0, each.version), reverse=True)


def _describe(path: str, names: Iterable[str]) -> Cupti:
    found = filter(None, map(_NUMBERS.search, names))
    numbers = [tuple(int(part) for part in each.groups(default="0")) for each in found]
    majors = [each[0] for each in numbers if each[0] < _FIRST_YEAR]
    return Cupti(path, max(majors, default=None), max(numbers, default=()))


# ---- the packages of the Python that the command will run ----


def _package_folders(argv: Sequence[str], environment: Mapping[str, str]) -> Iterator[str]:
    for prefix in dict.fromkeys(_prefixes(argv, environment)):
        for packages in (
            *sorted(glob(f"{escape(prefix)}/lib/python3*/site-packages"), reverse=True),
            *glob(f"{escape(prefix)}/lib/python3*/dist-packages"),
        ):
            yield from sorted(glob(f"{escape(packages)}/nvidia/*/lib"))


def _prefixes(argv: Sequence[str], environment: Mapping[str, str]) -> Iterator[str]:
    path = environment.get("PATH")
    program = shutil.which(argv[0], path=path) if argv else None
    for each in (program, _interpreter_of(program, path), shutil.which("python3", path=path)):
        if each:
            # Both: a virtual environment's python is a link to the one that it was made from.
            yield os.path.dirname(os.path.dirname(os.path.abspath(each)))
            yield os.path.dirname(os.path.dirname(os.path.realpath(each)))
    yield from (environment[name] for name in ("VIRTUAL_ENV", "CONDA_PREFIX") if environment.get(name))
    if environment.get("HOME"):
        yield os.path.join(environment["HOME"], ".local")


def _interpreter_of(program: str | None, path: str | None) -> str | None:
    """The program that the first line of a script names, as `torchrun` and `pytest` have one."""
    if program is None:
        return None
    try:
        # Of a process that is attached to, the name is that process's choice.
        with open(open_plain(program), "rb") as file:
            line = file.read(_SHEBANG_NBYTES).partition(b"\n")[0]
    except OSError:
        return None
    words = os.fsdecode(line.removeprefix(b"#!")).split() if line.startswith(b"#!") else []
    if len(words) > 1 and os.path.basename(words[0]) == "env":
        named = next((word for word in words[1:] if not word.startswith("-") and "=" not in word), None)
        return shutil.which(named, path=path) if named else None
    return words[0] if words else None
