"""Starts vram.pyz: unpacks it once, into a folder that no other user can change, and runs it there.

Shared libraries cannot be loaded out of a zip. Where they lie decides what root executes: each folder on the
way must belong to root or to this user and be closed to others, which is checked at every start
(vram/folders.py). The folder is a virtual environment, so that processes that vram starts find it as well.
Python 3.6 can read this file, to say no.
"""

import os
import sys

BUILD, OLDEST = "", (0, 0)  # as tools/bundle.py writes them
ROOTS_FOLDER = "/var/cache/vram-pyz"  # programs of other users, which root enters, must be able to read it


def main():
    if sys.version_info < OLDEST:
        refuse(
            f"vram.pyz needs Python {OLDEST[0]}.{OLDEST[1]} or newer, and this is {sys.version.split()[0]}",
            "run it with another one: python3.12 vram.pyz",
        )
    machine = os.uname().machine
    archive = os.path.dirname(os.path.abspath(__file__))
    sys.path.insert(0, os.path.join(archive, "packages"))
    base = os.path.realpath(getattr(sys, "_base_executable", None) or sys.executable)
    tree = find_tree(archive, machine, base)
    python = os.path.join(tree, "bin", "python")
    os.execv(python, [python, "-I", "-m", "vram", *sys.argv[1:]])


def find_tree(archive, machine, base):
    """The environment of this vram.pyz for the Python *base*; made where it is not there yet."""
    import zlib

    version = f"{sys.version_info[0]}.{sys.version_info[1]}"
    name = f"{BUILD}-{machine}-{version}-{zlib.crc32(os.fsencode(base)):08x}"
    reasons = []
    for parent, others_read in parents():
        try:
            folder = open_folder(parent, others_read)
        except OSError as error:
            reasons.append(str(error.strerror or error))
            continue
        try:
            os.stat(name, dir_fd=folder)
        except FileNotFoundError:
            try:
                unpack(archive, parent, name, machine, base, version, 0o755 if others_read else 0o700)
            except OSError as error:
                reasons.append(f"{parent}: {error.strerror or error}")
                continue
        finally:
            os.close(folder)
        return os.path.join(parent, name)
    return refuse(
        "vram.pyz finds no folder to unpack into: " + "; ".join(reasons),
        "set XDG_CACHE_HOME to a folder of your own that others cannot change",
    )


def parents():
    """Where it may lie, the best first, and whether others may read it there."""
    from vram.folders import home

    said = os.environ.get("XDG_CACHE_HOME", "")
    if os.path.isabs(said):
        yield os.path.join(said, "vram-pyz"), False
        return
    if os.geteuid() == 0:
        yield ROOTS_FOLDER, True
    yield os.path.join(home(), ".cache", "vram-pyz"), False


def open_folder(path, others_read):
    """A descriptor of *path*, which only this user can change; made where missing. Else OSError."""
    from vram import folders

    if not others_read:
        return folders.open_private(path, make=True)
    folder, missing = folders.nearest(path)
    try:
        if missing:
            os.mkdir(missing[0], 0o755, dir_fd=folder)
            os.close(folder)
            folder, missing = folders.nearest(path)
        if missing or not folders.is_ours_alone(folder):
            raise PermissionError(1, "others can change what lies in " + path, path)
        return os.dup(folder)
    finally:
        os.close(folder)


def unpack(archive, parent, name, machine, base, version, mode):
    """Make the environment beside its place, and move it there whole: another start may be doing the same."""
    import shutil
    import tempfile
    import zipfile

    with zipfile.ZipFile(archive) as file:
        require_compiled(set(file.namelist()), machine)
    os.umask(0o022)
    made = tempfile.mkdtemp(prefix=".new-", dir=parent)
    try:
        packages = os.path.join(made, "lib", "python" + version, "site-packages")
        with zipfile.ZipFile(archive) as file:
            for entry in file.infolist():
                top, _, path = entry.filename.partition("/")
                if top in ("packages", machine):
                    target = os.path.join(packages, path)
                elif top == "share":
                    target = os.path.join(made, top, path)
                else:
                    continue
                os.makedirs(os.path.dirname(target), exist_ok=True)
                with open(target, "wb") as out:
                    out.write(file.read(entry))
        os.mkdir(os.path.join(made, "bin"))
        os.symlink(base, os.path.join(made, "bin", "python"))
        with open(os.path.join(made, "pyvenv.cfg"), "w") as out:
            home = os.path.dirname(base)
            out.write(f"home = {home}\ninclude-system-site-packages = false\nversion = {version}\n")
        command = os.path.join(made, "bin", "vram")
        with open(command, "w") as out:
            out.write('#!/bin/sh\nexec "$(dirname "$0")/python" -I -m vram "$@"\n')
        os.chmod(command, 0o755)
        os.chmod(made, mode)
        os.rename(made, os.path.join(parent, name))
    except OSError:
        shutil.rmtree(made, ignore_errors=True)
        if not os.path.isdir(os.path.join(parent, name)):
            raise


def require_compiled(names, machine):
    """Refuse a processor, a Python or a C library that nothing in here was compiled for."""
    from importlib.machinery import EXTENSION_SUFFIXES

    if f"{machine}/msgspec/_core{EXTENSION_SUFFIXES[0]}" not in names:
        python = f"Python {sys.version_info[0]}.{sys.version_info[1]}"
        refuse(
            f"vram.pyz has nothing compiled for {python} on {machine} ({EXTENSION_SUFFIXES[0]})",
            "install vram by pip, or run this with another Python: python3.12 vram.pyz",
        )


def refuse(what, hint):
    sys.stderr.write(f"vram: {what}\n  hint: {hint}\n")
    raise SystemExit(1)


main()
