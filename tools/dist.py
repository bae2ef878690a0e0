"""Build what people install, twice, compare the two, and try each on every Python that is here: `make dist`.

python tools/dist.py [--into FOLDER] [--skip-bundles] [--skip-trying]

What is built, from the files of this checkout, into dist/:

    vram-VERSION.tar.gz                              the source, which all else is built from
    vram-VERSION-py3-none-manylinux_..._MACHINE.whl  for each of MACHINES, with the compiled parts
    vram-VERSION-py3-none-any.whl                    nothing compiled: what pip takes where no other fits
    vram.pyz, .deb, .rpm                             with all that vram needs but Python (tools/bundle.py)
    SHA256SUMS

Each is built in two folders and must be the same to the byte. auditwheel must agree with what a wheel's name
says.
What cannot be built is said, and makes the exit code 1; the rest is built all the same.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import bundle
from matrix import SUPPORTED
from pythons import find

ROOT = Path(__file__).resolve().parent.parent
# glibc 2.17 is the oldest that the C needs, and what zig can still link for.
MACHINES = {"x86_64": "x86_64-linux-gnu.2.17", "aarch64": "aarch64-linux-gnu.2.17"}
ANY = "any"
# On a virtual GPU: a dead process's memory is found, freed, and gone.
GHOST = """\
from vram.virtualgpu import VirtualGpu
from vram.virtualgpu.demos import FORK, DemoProgram

with VirtualGpu.create() as gpu, DemoProgram(gpu, FORK.program, FORK.size) as program:
    FORK.prepare(program)
    for words, code in (("check --leftovers", 1), ("free --yes", 0), ("check --leftovers", 0)):
        done = gpu.run(["vram", *words.split()], capture_output=True, text=True)
        assert done.returncode == code, f"vram {words}: {done.returncode}: {done.stdout}{done.stderr}"
        if words == "free --yes":
            print(done.stdout.strip().splitlines()[-1])
"""


class NotBuilt(Exception):
    """Something cannot be built, or is not what it must be; the message says why."""


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description="Build and try what people install.")
    parser.add_argument("--into", type=Path, default=ROOT / "dist")
    parser.add_argument("--skip-bundles", action="store_true", help="only the source and wheels")
    parser.add_argument("--skip-trying", action="store_true", help="install no wheel")
    args = parser.parse_args(arguments)
    os.environ["SOURCE_DATE_EPOCH"] = commit_time()
    shutil.rmtree(args.into, ignore_errors=True)
    args.into.mkdir(parents=True)
    steps = Steps()
    with tempfile.TemporaryDirectory(prefix="vram-dist-") as folder:
        source = steps.run("source", partial(build_source, args.into))
        trees = [unpack(source, Path(folder) / name) for name in ("a", "another-folder")] if source else []
        for target in (*MACHINES, ANY) if trees else ():
            wheel = steps.run(f"wheel {target}", partial(build_wheel, target, trees, args.into))
            if wheel and not args.skip_trying:
                try_wheel(steps, wheel, target, Path(folder))
        if any(args.into.glob("*manylinux*.whl")) and not args.skip_bundles:
            build_bundles(steps, args.into, Path(folder))
    write_sums(args.into)
    return steps.finish()


class Steps:
    """What was done, how long it took, and what failed."""

    def __init__(self) -> None:
        self.failed: list[str] = []
        self._begun = time.monotonic()

    def run(self, name: str, step: Callable[[], Path]) -> Path | None:
        begun, made, said = time.monotonic(), None, ""
        try:
            made = step()
            said = made.name if made.exists() else str(made)
        except NotBuilt as error:
            self.failed.append(name)
            said = f"FAILED: {error}"
        print(f"{time.monotonic() - begun:6.1f} s  {name}: {said}", flush=True)
        return made

    def finish(self) -> int:
        print(f"{time.monotonic() - self._begun:6.1f} s  in all")
        if self.failed:
            print(f"make dist: not built, or not right: {', '.join(self.failed)}", file=sys.stderr)
        return 1 if self.failed else 0


def commit_time() -> str:
    """The moment that files get as theirs: of the last commit."""
    return run(["git", "log", "-1", "--format=%ct"], "git knows no commit here").strip()


# ---- building ----


def build_source(into: Path) -> Path:
    run([sys.executable, "-m", "hatchling", "build", "-t", "sdist", "-d", str(into)], "no source archive")
    (made,) = into.glob("*.tar.gz")
    return made


def unpack(source: Path, folder: Path) -> Path:
    with tarfile.open(source) as archive:
        archive.extractall(folder)
    (tree,) = folder.iterdir()
    return tree


def build_wheel(target: str, trees: Sequence[Path], into: Path) -> Path:
    """The wheel for *target*, built in each of *trees* and the same in all."""
    made: list[Path] = []
    for tree in trees:
        # A cache of its own: else zig's first answer would be compared with itself.
        env = {
            **os.environ,
            "VRAM_BUILD_FOR": MACHINES.get(target, target),
            "ZIG_GLOBAL_CACHE_DIR": f"{tree}-zig",
        }
        command = [
            sys.executable,
            "-m",
            "hatchling",
            "build",
            "-t",
            "wheel",
            "-d",
            str(tree / "dist" / target),
        ]
        run(command, f"the wheel for {target} cannot be built", cwd=tree, env=env)
        made += (tree / "dist" / target).glob("*.whl")
    wheel = take_equal(made, into)
    if target != ANY:
        audit(wheel)
    return wheel


def take_equal(made: Sequence[Path], into: Path) -> Path:
    """A copy of *made* in *into*. Raises NotBuilt where they differ."""
    if len({path.read_bytes() for path in made}) != 1:
        raise NotBuilt(f"two builds of {made[0].name} differ")
    return Path(shutil.copy(made[0], into))


def audit(wheel: Path) -> None:
    """Raise NotBuilt unless auditwheel finds that *wheel* runs wherever its name says."""
    said = " ".join(run([sys.executable, "-m", "auditwheel", "show", str(wheel)], "auditwheel").split())
    found = re.search(r'following platform tag: "(\w+)"', said)
    named = wheel.stem.rpartition("-")[2]
    if not found or found[1] != named:
        raise NotBuilt(f"auditwheel: {found[1] if found else said}, and its name says {named}")


# ---- with all that vram needs but Python ----


def build_bundles(steps: Steps, into: Path, folder: Path) -> None:
    """vram.pyz and the packages, of the wheels in *into*, each built twice and looked into."""
    wheels = sorted(into.glob("*manylinux*.whl"))
    twice = [folder / "bundle", folder / "another-bundle"]

    def bundle_all() -> Path:
        for each in twice:
            try:
                bundle.make(each, wheels)
            except bundle.CannotBundle as error:
                raise NotBuilt(str(error)) from error
        return twice[0]

    if steps.run("bundle", bundle_all) is None:
        return
    pyz = steps.run(
        "vram.pyz",
        lambda: take_equal(
            [bundle.write_pyz(each, each.parent / f"{each.name}-pyz" / "vram.pyz") for each in twice], into
        ),
    )
    machine = os.uname().machine
    if pyz and (twice[0] / machine).exists():
        steps.run("vram.pyz starts", partial(try_pyz, pyz, folder))
    for kind, tool, unpack_it in (
        ("debian", "dpkg-buildpackage", 'dpkg-deb --extract "$0" .'),
        ("rpm", "rpmbuild", 'rpm2archive - <"$0" | tar -xz'),
    ):
        if shutil.which(tool) is None:
            print(f"          {kind}: not built, there is no {tool} here")
            continue
        made = steps.run(f"{kind} package", partial(build_package, kind, twice, into, folder))
        for package in into.glob("*.deb" if kind == "debian" else "*.rpm") if made else ():
            if machine in package.name or {"x86_64": "amd64"}.get(machine, "arm64") in package.name:
                steps.run(f"{kind} package runs", partial(try_package, package, unpack_it, folder / kind))


def build_package(kind: str, bundles: Sequence[Path], into: Path, folder: Path) -> Path:
    outputs = []
    for each in bundles:
        outputs.append(folder / f"{each.name}-{kind}")
        run([str(ROOT / "deploy" / kind / "build"), str(each), str(outputs[-1])], f"the {kind} package")
    made = [sorted(output.iterdir()) for output in outputs]
    for pair in zip(*made, strict=True):
        first = take_equal(pair, into)
    return first


def try_pyz(pyz: Path, folder: Path) -> Path:
    """The first start unpacks it; how long a later one takes."""
    home = folder / "home"
    home.mkdir(mode=0o700)
    env = {**os.environ, "HOME": str(home), "XDG_CACHE_HOME": str(home)}
    run([str(pyz), "demo", "fork"], "vram.pyz demo fork", env=env)
    run([str(pyz), "snapshot", "-o", str(home / "machine.json")], "vram.pyz snapshot", env=env)
    shown = []
    for words, may_fail in (["--version"], False), (["why", "--from", str(home / "machine.json")], True):
        times = []
        for _ in range(5):
            begun = time.monotonic()
            run([str(pyz), *words], "vram.pyz", env=env, may_fail=may_fail)
            times.append(time.monotonic() - begun)
        shown.append(f"{words[0]} {sorted(times)[2]:.2f} s")
    return Path(", ".join(shown))


def try_package(package: Path, unpack_it: str, place: Path) -> Path:
    """Unpack it and run what is in it, with this Python in the place of the one that it depends on."""
    place.mkdir()
    run(["sh", "-c", f"set -e; cd {place}; {unpack_it}", str(package.resolve())], "it cannot be unpacked")
    home, base = place / "usr" / "lib" / "vram", Path(os.path.realpath(sys.executable))
    (home / "bin" / "python").unlink()
    (home / "bin" / "python").symlink_to(base)
    (home / "pyvenv.cfg").write_text((home / "pyvenv.cfg").read_text().replace("/usr/bin", str(base.parent)))
    vram = [str(home / "bin" / "python"), "-I", str(place / "usr" / "bin" / "vram")]
    clean = {"PATH": "/usr/bin:/bin", "HOME": str(place)}
    config = str(place / "etc" / "vram" / "serve.toml")
    run([*vram, "serve", "--check-config", "--config", config], "vram serve", env=clean)
    return Path(run([*vram, "--version"], "vram --version", env=clean).strip())


def write_sums(into: Path) -> None:
    made = sorted(path for path in into.iterdir() if path.name != "SHA256SUMS")
    lines = [f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n" for path in made]
    (into / "SHA256SUMS").write_text("".join(lines))


# ---- trying ----


def try_wheel(steps: Steps, wheel: Path, target: str, folder: Path) -> None:
    """On each Python that is found, where *wheel* is for this machine."""
    if target not in (os.uname().machine, ANY):
        print(f"          wheel {target}: not tried, this machine is {os.uname().machine}")
        return
    for version in SUPPORTED:
        python = find(version)
        if python is None:
            print(f"          wheel {target} on Python {version}: not tried, none is here")
            continue
        place = folder / f"try-{target}-{version}"
        steps.run(f"wheel {target} on Python {version}", partial(try_on, python, wheel, target == ANY, place))
        shutil.rmtree(place, ignore_errors=True)


def try_on(python: str, wheel: Path, is_pure: bool, place: Path) -> Path:
    """In an environment that has nothing else: the demos, and a ghost that is freed; without compiled
    parts, what needs none, and a sentence where some are needed."""
    run([python, "-m", "venv", str(place)], "no environment can be made")
    clean = {"PATH": f"{place}/bin:/usr/bin:/bin", "HOME": str(place), "LANG": "C.UTF-8"}
    index = {name: value for name, value in os.environ.items() if name.startswith(("PIP_", "SSL_"))}
    pip = [
        f"{place}/bin/python",
        "-m",
        "pip",
        "install",
        "--quiet",
        "--disable-pip-version-check",
        str(wheel),
    ]
    run(pip, "pip cannot install it", env={**clean, "HOME": os.environ["HOME"], **index})
    run(["pip", "check"], "what it needs does not fit together", env=clean)
    vram = f"{place}/bin/vram"
    if not is_pure:
        run([vram, "demo"], "vram demo", env=clean)
        said = run([f"{place}/bin/python", "-c", GHOST], "a ghost on the virtual GPU", env=clean)
        return Path(said.strip().splitlines()[-1])
    snapshot = place / "machine.json"
    run([vram, "snapshot", "-o", str(snapshot)], "vram snapshot", env=clean)
    for words in ("why --from {}", "doctor"):
        said = run([vram, *words.format(snapshot).split()], words, env=clean, may_fail=True)
        if "Traceback" in said or "driver" not in said:
            raise NotBuilt(f"vram {words}: {said}")
    said = run([vram, "demo", "fork"], "", env=clean, may_fail=True)
    if "nothing compiled" not in said:
        raise NotBuilt(f"vram demo does not say what is missing: {said}")
    return Path(said.strip().splitlines()[-1])


def run(
    command: Sequence[str],
    failure: str,
    *,
    cwd: Path = ROOT,
    env: dict[str, str] | None = None,
    may_fail: bool = False,
) -> str:
    """What *command* printed. Raises NotBuilt with *failure* and its last words where it fails."""
    try:
        done = subprocess.run(
            command, cwd=cwd, env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
        )
    except OSError as error:
        raise NotBuilt(f"{failure}: {command[0]}: {error.strerror}") from error
    if done.returncode and not may_fail:
        words = [line for line in (done.stdout + done.stderr).splitlines() if line.strip()]
        raise NotBuilt(f"{failure} ({words[-1] if words else done.returncode})")
    return done.stdout + (done.stderr if may_fail else "")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
