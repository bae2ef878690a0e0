"""vram with all that it needs but Python, for machines without pip: what vram.pyz and the packages hold.

python tools/bundle.py --lock                      choose the versions anew: deploy/bundle/requirements.txt
python tools/bundle.py --into FOLDER WHEEL...      a bundle of these wheels of vram, one for each machine

A bundle is a folder:

    packages/        vram and what it needs, for each Python that vram supports
    MACHINE/         what is compiled for one kind of processor, below the same paths
    share/           manual pages and completion
    vram.cdx.json    what is in it, as CycloneDX
    pythons          the versions that it is for

Compiled modules have the Python's version in their names, so those for all Pythons lie in one folder.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Iterable, Sequence
from email import message_from_string
from pathlib import Path
from uuid import NAMESPACE_URL, uuid5

from matrix import SUPPORTED

ROOT = Path(__file__).resolve().parent.parent
REQUIREMENTS = ROOT / "deploy" / "bundle" / "requirements.txt"
PYZ = ROOT / "deploy" / "pyz"
EXTRAS = ("serve", "top")
SHARED = "packages"
COMPILED = re.compile(r"\.so(\.\d+)*$")
# What says how and where pip or uv installed it.
LEFT_OUT = re.compile(
    r"\.dist-info/(RECORD|REQUESTED|INSTALLER|direct_url\.json|uv_\w+\.json)$|^bin/|^\.lock$"
)
# The same file, but for the Python or the machine that it names: the first is kept.
DIFFERS = re.compile(r"\.dist-info/WHEEL$")
UV = (sys.executable, "-m", "uv", "--quiet", "--native-tls", "pip")


class CannotBundle(Exception):
    """A bundle cannot be made; the message says why."""


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description="vram with all that it needs but Python.")
    parser.add_argument("--lock", action="store_true", help="choose the versions anew")
    parser.add_argument("--into", type=Path)
    parser.add_argument("wheels", nargs="*", type=Path)
    args = parser.parse_args(arguments)
    try:
        if args.lock:
            lock()
        if args.into:
            make(args.into, args.wheels)
    except CannotBundle as error:
        print(f"tools/bundle.py: {error}", file=sys.stderr)
        return 1
    return 0


def lock() -> None:
    command = [*UV, "compile", "--universal", "--fork-strategy", "fewest", "--generate-hashes"]
    command += ["--python-version", SUPPORTED[0], "--no-header", "--no-annotate", "--upgrade"]
    command += [word for extra in EXTRAS for word in ("--extra", extra)]
    _run([*command, "pyproject.toml", "-o", str(REQUIREMENTS)])


def make(into: Path, wheels: Iterable[Path]) -> None:
    """A bundle in *into*, a new folder, of wheels of vram that have compiled parts."""
    into.mkdir(parents=True)
    for wheel in wheels:
        machine = (
            wheel.stem.partition("manylinux_")[2].partition("_")[2].partition("_")[2] or os.uname().machine
        )
        _add_vram(wheel, into, machine)
        for version in SUPPORTED:
            with tempfile.TemporaryDirectory() as folder:
                _install(version, machine, Path(folder))
                _merge(Path(folder), into, machine)
    (into / "pythons").write_text(" ".join(SUPPORTED) + "\n")
    (into / "vram.cdx.json").write_text(describe(into))


def _add_vram(wheel: Path, into: Path, machine: str) -> None:
    with tempfile.TemporaryDirectory() as folder, zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder)
        (data,) = Path(folder).glob("*.data")
        shutil.copytree(data / "data" / "share", into / "share", dirs_exist_ok=True)
        shutil.rmtree(data)
        _merge(Path(folder), into, machine)


def _install(version: str, machine: str, folder: Path) -> None:
    """What vram needs on that Python and machine, by the locked versions and their hashes."""
    where = ["--python-version", version, "--python-platform", f"{machine}-manylinux_2_17"]
    what = ["--no-deps", "--require-hashes", "--only-binary", ":all:", "-r", str(REQUIREMENTS)]
    _run([*UV, "install", *where, "--link-mode", "copy", "--target", str(folder), *what])


def _merge(found: Path, into: Path, machine: str) -> None:
    for path in sorted(found.rglob("*")):
        name = path.relative_to(found).as_posix()
        if not path.is_file() or LEFT_OUT.search(name):
            continue
        # The list of what is in the wheel is another one for each machine, and says what is compiled.
        own = COMPILED.search(name) or "/sboms/" in name or re.match(r"vram-.*/WHEEL$", name)
        target = into / (machine if own else SHARED) / name
        if target.exists() and target.read_bytes() != path.read_bytes() and not DIFFERS.search(name):
            raise CannotBundle(f"{name} differs between Pythons or machines")
        if not target.exists():
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, target)


def describe(bundle: Path) -> str:
    """What *bundle* has of whom, as CycloneDX."""
    parts = []
    for path in sorted((bundle / SHARED).glob("*.dist-info/METADATA")):
        said = message_from_string(path.read_text())
        name, version = str(said["Name"]).lower().replace("_", "-"), str(said["Version"])
        license = said["License-Expression"] or (said["License"] or "see its metadata").splitlines()[0]
        purl = f"pkg:pypi/{name}@{version}"
        part = {"type": "library", "bom-ref": purl, "name": name, "version": version, "purl": purl}
        parts.append({**part, "licenses": [{"license": {"name": license}}]})
    compiled = [path for path in sorted(bundle.rglob("*")) if path.is_file() and COMPILED.search(path.name)]
    for path in compiled:
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
        file = {"type": "file", "name": path.relative_to(bundle).as_posix()}
        parts.append({**file, "hashes": [{"alg": "SHA-256", "content": digest}]})
    listing = {"bomFormat": "CycloneDX", "specVersion": "1.6", "version": 1, "components": parts}
    listing["serialNumber"] = f"urn:uuid:{uuid5(NAMESPACE_URL, json.dumps(listing))}"
    return json.dumps(listing, indent=1) + "\n"


def write_pyz(bundle: Path, target: Path) -> Path:
    """The bundle as one file that a shell or Python starts (deploy/pyz)."""
    content = {
        path.relative_to(bundle).as_posix(): path.read_bytes() for path in bundle.rglob("*") if path.is_file()
    }
    (metadata,) = {
        name.partition("/METADATA")[0] for name in content if re.match(r"packages/vram-.*/METADATA", name)
    }
    content[f"{metadata}/INSTALLER"] = b"vram.pyz\n"
    digest = hashlib.sha256()
    for name, data in sorted(content.items()):
        digest.update(name.encode() + b"\0" + hashlib.sha256(data).digest())
    oldest = content["pythons"].decode().split()[0]
    comparable = oldest.replace(".", ", ")
    start = (PYZ / "start.sh").read_text().replace("@OLDEST@", comparable).replace("@OLDEST_NAME@", oldest)
    unwritten, written = (
        'BUILD, OLDEST = "", (0, 0)',
        f'BUILD, OLDEST = "{digest.hexdigest()[:16]}", ({comparable})',
    )
    main = (PYZ / "__main__.py").read_text().replace(unwritten, written)
    moment = time.gmtime(max(int(os.environ.get("SOURCE_DATE_EPOCH", 0)), 315532800))[:6]
    target.parent.mkdir(parents=True, exist_ok=True)
    with target.open("wb") as file:
        file.write(start.encode())
        with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
            for name, data in [("__main__.py", main.encode()), *sorted(content.items())]:
                entry = zipfile.ZipInfo(name, moment)
                entry.external_attr, entry.compress_type = 0o644 << 16, zipfile.ZIP_DEFLATED
                archive.writestr(entry, data, compresslevel=9)
    target.chmod(0o755)
    return target


def _run(command: Sequence[str]) -> None:
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        raise CannotBundle(done.stderr.strip() or f"{command[0]} failed")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
