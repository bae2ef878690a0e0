"""Build PyCUDA's wheel, which PyPI has only as source: standard library only, safe to repeat.

    python tools/pycuda_wheel.py --into FOLDER                       for this Python
    python tools/pycuda_wheel.py --into FOLDER --python python3.12   for another
    python tools/pycuda_wheel.py --install                           into this environment; exit 0 in any case

No CUDA toolkit is needed: the headers come from PyPI, and the virtual GPU's own libcuda.so.1 is what the
extension is linked against. The wheel works with any driver from CUDA 12 on, real or virtual. It has no
cuRAND. A C++ compiler and the headers of that Python must be there.

`make test` runs it with --install. Only the first run compiles (half a minute): the wheel stays in
.build/pycuda/, and so does the reason where it could not be built, which skipped tests name.
"""

from __future__ import annotations

import argparse
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
KEPT = ROOT / ".build" / "pycuda"
NOT_BUILT = KEPT / "not-built.txt"

PYCUDA = "pycuda==2026.1"
# CUDA 12's: functions that CUDA 13 renamed are there under both names in newer drivers.
HEADERS = ("nvidia-cuda-runtime-cu12==12.9.79", "nvidia-cuda-profiler-api-cu12==12.9.79")
TAG = "import sys; print('cp%d%d' % sys.version_info[:2])"
# A mirror that does not answer must not hold up the tests for minutes.
PIP = ("-m", "pip", "--disable-pip-version-check", "--no-input", "--retries", "1", "--timeout", "30", "-qq")


class NotBuilt(Exception):
    """The wheel cannot be built here; the message says why."""


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description="Build PyCUDA's wheel.")
    parser.add_argument("--python", default=sys.executable, help="the interpreter to build it for")
    parser.add_argument(
        "--into", type=Path, default=KEPT, help="the folder to put it in (default: .build/pycuda)"
    )
    parser.add_argument(
        "--install", action="store_true", help="install it for that interpreter, if it can be built"
    )
    args = parser.parse_args(arguments)
    if args.install:
        return install(args.python)
    try:
        print(wheel(args.python, args.into))
    except NotBuilt as error:
        print(f"tools/pycuda_wheel.py: {error}", file=sys.stderr)
        return 1
    return 0


def install(python: str) -> int:
    """Put PyCUDA into the environment of *python*; where that fails, leave the reason behind."""
    if python == sys.executable and find_spec("pycuda"):
        return 0
    try:
        run([python, *PIP, "install", str(wheel(python, KEPT))], "PyCUDA's wheel could not be installed")
    except NotBuilt as error:
        KEPT.mkdir(parents=True, exist_ok=True)
        NOT_BUILT.write_text(f"{error}\n")
        print(f"vram: tests of PyCUDA will be skipped: {error}", file=sys.stderr)
    else:
        NOT_BUILT.unlink(missing_ok=True)
    return 0


def wheel(python: str, into: Path) -> Path:
    """The wheel for *python* in *into*, built unless it is there already."""
    tag = run([python, "-c", TAG], f"{python} cannot be started").strip()
    found = sorted(into.glob(f"{PYCUDA.replace('==', '-')}-{tag}-*.whl"))
    if found:
        return found[0]
    check_compiler()
    print(f"vram: building PyCUDA for {tag}, which takes half a minute or more", file=sys.stderr, flush=True)
    with tempfile.TemporaryDirectory(prefix="vram-pycuda-") as folder:
        work = Path(folder)
        get_headers(work / "headers")
        link_driver(work / "lib")
        build(python, work)
        (made,) = (work / "out").glob("*.whl")
        into.mkdir(parents=True, exist_ok=True)
        return Path(shutil.copy(made, into))


def check_compiler() -> None:
    chosen = shlex.split(os.environ.get("CXX", ""))[:1]
    if not any(map(shutil.which, chosen or ["c++", "g++", "clang++"])):
        raise NotBuilt("there is no C++ compiler (Debian: apt install g++)")


def get_headers(folder: Path) -> None:
    command = [
        sys.executable,
        *PIP,
        "install",
        "--no-deps",
        "--only-binary",
        ":all:",
        "--target",
        str(folder),
    ]
    run([*command, *HEADERS], "the CUDA headers could not be installed from PyPI")


def link_driver(folder: Path) -> None:
    """What `-lcuda` finds: the virtual GPU's driver, under the name without a version."""
    sys.path.insert(0, str(ROOT / "native"))
    import build as native

    try:
        driver = native.build(native.LIBRARIES[0])
    except native.BuildError as error:
        raise NotBuilt(str(error)) from error
    assert driver is not None, "the driver has sources"
    folder.mkdir()
    (folder / "libcuda.so").symlink_to(driver)


# PyCUDA's set-up runs its settings file. This part compiles Boost.Python, 28 files with the same headers,
# as one (5 s of CPU instead of 32), and as many files at once as there are cores.
COMPILE_AT_ONCE = """
import os
from concurrent.futures import ThreadPoolExecutor
from distutils.ccompiler import CCompiler

def compile(self, sources, output_dir=None, macros=None, include_dirs=None, debug=0,
            extra_preargs=None, extra_postargs=None, depends=None):
    boost = [each for each in sources if "/libs/python/src/" in each]
    if boost:
        with open("boost_python.cpp", "w") as file:
            file.writelines('#include "%s"\\n' % os.path.abspath(each) for each in boost)
        sources = [*(each for each in sources if each not in boost), "boost_python.cpp"]
    macros, objects, extra_postargs, pp_opts, build = self._setup_compile(
        output_dir, macros, include_dirs, sources, depends, extra_postargs)
    cc_args = self._get_cc_args(pp_opts, debug, extra_preargs)
    def one(obj):
        source, ext = build[obj]
        self._compile(obj, source, ext, cc_args, extra_postargs, pp_opts)
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(one, build))
    return objects

CCompiler.compile = compile
"""


def build(python: str, work: Path) -> None:
    settings = {
        "CUDA_ENABLE_CURAND": False,
        "CUDA_INC_DIR": [str(found) for found in (work / "headers").glob("nvidia/*/include")],
        "CUDADRV_LIB_DIR": [str(work / "lib")],
        # Half the time of -O3, and nothing here is measured with it.
        "CXXFLAGS": ["-O1", "-g0", "-w"],
    }
    # Its set-up reads the settings from the home folder. pip's own settings are there too, and are named.
    home = work / "home"
    home.mkdir()
    lines = [f"{name} = {value!r}\n" for name, value in settings.items()]
    (home / ".aksetup-defaults.py").write_text("".join(lines) + COMPILE_AT_ONCE)
    environment = os.environ | {"HOME": str(home)}
    own_settings = Path.home() / ".config" / "pip" / "pip.conf"
    if own_settings.exists():
        environment.setdefault("PIP_CONFIG_FILE", str(own_settings))
    # Without pip's cache, which may have a wheel that somebody built with other settings.
    command = [python, *PIP, "wheel", "--no-cache-dir", "--no-deps", "--wheel-dir", str(work / "out"), PYCUDA]
    run(command, "PyCUDA could not be compiled", environment)


def run(command: list[str], failure: str, environment: dict[str, str] | None = None) -> str:
    """What *command* printed; where it fails, its first error after *failure*."""
    try:
        done = subprocess.run(
            command, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True
        )
    except OSError as error:
        raise NotBuilt(f"{failure}: {error.strerror}") from error
    if done.returncode == 0:
        return done.stdout
    lines = [line.strip() for line in done.stderr.splitlines()]
    errors = [line[:200] for line in lines if re.search(r"\berror: (?!subprocess)", line)]
    raise NotBuilt(f"{failure}: {errors[0]}" if errors else failure)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
