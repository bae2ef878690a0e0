"""Build the native libraries with ASan and UBSan, and run the tests that use them: `make sanitize`.

    python tools/sanitize.py [PYTEST ARGUMENTS...]

The package is copied to .build/sanitize beside libraries of its own, and Python runs with the
sanitizers' library preloaded. Whatever they report, in whichever process, fails the run. Leaks are
looked for in a program without Python (tests/virtualgpu/leaks.c): the interpreter keeps too much at
its end for a list of leaks to be readable. A compiler that has no sanitizers is no failure.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "native"))

import build  # noqa: E402

PLACE = ROOT / ".build" / "sanitize"
PACKAGE = PLACE / "src" / "vram"
REPORTS = PLACE / "reports"
LEAKS = ROOT / "tests" / "virtualgpu" / "leaks.c"

# Where tests are marked "native"; without the programs of others, which take long and add no calls.
TESTS = (
    "tests/virtualgpu",
    "tests/host",
    "tests/vendors",
    "tests/guard",
    "tests/tracer",
    "tests/trace",
)
CHOICE = ("-m", "native", "-k", "not numba and not cuda_core and not hundreds_of_forks")


def main(arguments: list[str]) -> int:
    if reason := unavailable():
        print(f"make sanitize: skipped, {reason}")
        return 0
    shutil.rmtree(REPORTS, ignore_errors=True)
    REPORTS.mkdir(parents=True)
    copy_package()
    build.build_all(PACKAGE, build.SANITIZE)
    codes = [find_leaks(), run_tests(arguments)]
    reports = sorted(REPORTS.iterdir())
    for report in reports:
        print(f"---- {report.name}", report.read_text(errors="replace"), sep="\n")
    if reports:
        print(f"make sanitize: {len(reports)} reports, above")
    return 1 if reports or any(codes) else 0


def unavailable() -> str | None:
    """Why the compiler here cannot do it, or None."""
    try:
        name = " ".join(build.compiler())
    except build.BuildError as error:
        return str(error)
    if not runs(detect_leaks="0"):
        return f"{name} cannot build or run with -fsanitize=address,undefined here"
    return None if runtime().is_absolute() else f"{name} has no libasan.so to load into Python"


def runs(**choices: str) -> bool:
    """Whether an empty program can be built with the sanitizers, and ends well with these options."""
    with tempfile.TemporaryDirectory() as folder:
        source, program = Path(folder, "empty.c"), Path(folder, "empty")
        source.write_text("int main(void) { return 0; }\n")
        command = [*build.compiler(), *build.SANITIZE, str(source), "-o", str(program)]
        if subprocess.run(command, capture_output=True).returncode:
            return False
        environment = {**os.environ, "ASAN_OPTIONS": ":".join(f"{key}={choices[key]}" for key in choices)}
        return subprocess.run([program], env=environment, capture_output=True).returncode == 0


def runtime() -> Path:
    """The library to preload; a relative name where the compiler does not know it."""
    asked = subprocess.run([*build.compiler(), "-print-file-name=libasan.so"], capture_output=True, text=True)
    return Path(asked.stdout.strip())


def copy_package() -> None:
    """Bring the copy of the sources up to date; its libraries stay, since the build knows what changed."""
    sources = ROOT / "src" / "vram"
    ignored = shutil.ignore_patterns("lib", "__pycache__")
    for copy in PACKAGE.rglob("*.py"):
        if not (sources / copy.relative_to(PACKAGE)).exists():
            copy.unlink()
    shutil.copytree(sources, PACKAGE, ignore=ignored, dirs_exist_ok=True)


def options(**more: str) -> dict[str, str]:
    said = {"log_path": str(REPORTS / "report"), "allocator_may_return_null": "1", **more}
    text = ":".join(f"{key}={value}" for key, value in said.items())
    return {"ASAN_OPTIONS": text, "UBSAN_OPTIONS": f"{text}:print_stacktrace=1"}


def find_leaks() -> int:
    """Build and run the program that allocates, fails and frees, and look for what it has lost."""
    library = PACKAGE / build.LIBRARIES[0].path
    program = PLACE / "leaks"
    command = [*build.compiler(), *build.SANITIZE, "-Wall", "-Wextra", str(LEAKS), str(library)]
    subprocess.run([*command, f"-Wl,-rpath,{library.parent}", "-o", str(program)], check=True)
    # The search stops the program's threads by ptrace, which some containers forbid.
    allowed = runs(detect_leaks="1")
    if not allowed:
        print("make sanitize: leaks are not looked for, the system does not allow it")
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "dev").mkdir()
        Path(folder, "config").write_text("gpus = 1\n")
        changes = {"VRAM_VIRTUAL_GPU": folder, **options(detect_leaks=str(int(allowed)))}
        return subprocess.run([program], env={**os.environ, **changes}).returncode


def run_tests(arguments: list[str]) -> int:
    paths = [str(PACKAGE.parent), *os.environ.get("PYTHONPATH", "").split(":")]
    changes = {
        "LD_PRELOAD": str(runtime()),
        "PYTHONPATH": ":".join(filter(None, paths)),
        **options(detect_leaks="0"),
    }
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        *CHOICE,
        *arguments,
        *TESTS,
    ]
    return subprocess.run(command, cwd=ROOT, env={**os.environ, **changes}).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
