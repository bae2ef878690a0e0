"""Make the virtual environment that the Makefile works in: stdlib only, safe to repeat.

python tools/environment.py FOLDER [GROUP...]

Installs the project in editable form, which also builds its native parts, and the named
dependency groups of pyproject.toml.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
NO_VENV = """\
{python} can make no virtual environment: its venv module comes without pip.
  Debian, Ubuntu:  sudo apt install python{version}-venv
  elsewhere:       install virtualenv or uv, or name another interpreter: make PYTHON=/path/to/python3"""


def main(arguments: list[str]) -> int:
    folder, groups = Path(arguments[0]).absolute(), arguments[1:]
    python = folder / "bin" / "python"
    if not starts(python):
        say(f"making {arguments[0]} with Python {sys.version.split()[0]}")
        make(folder)
    say("installing vram" + "".join(f" + {group}" for group in groups))
    # One call, so that everything is resolved together.
    install(python, ["--editable", ROOT, *compiler(), *requirements_of(python, groups)])
    start_faster(folder)
    return 0


def starts(python: Path) -> bool:
    """A folder that was moved, or whose interpreter was uninstalled, is made anew."""
    try:
        return subprocess.run([python, "-m", "pip", "--version"], capture_output=True).returncode == 0
    except OSError:
        return False


def make(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    for attempt in ways(folder):
        try:
            done = subprocess.run(attempt, capture_output=True, stdin=subprocess.DEVNULL)
        except OSError:
            continue
        if done.returncode == 0 and starts(folder / "bin" / "python"):
            return
        shutil.rmtree(folder, ignore_errors=True)
    if not make_with_outer_pip(folder):
        version = ".".join(map(str, sys.version_info[:2]))
        sys.exit(NO_VENV.format(python=sys.executable, version=version))


def ways(folder: Path) -> list[list[str | Path]]:
    return [
        [sys.executable, "-m", "venv", folder],
        [sys.executable, "-m", "virtualenv", "--quiet", folder],
        ["virtualenv", "--quiet", "--python", sys.executable, folder],
        ["uv", "venv", "--quiet", "--seed", "--python", sys.executable, folder],
    ]


def make_with_outer_pip(folder: Path) -> bool:
    """Debian splits ensurepip off, yet its python3-pip can fill an environment that has none."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], capture_output=True)
    python = folder / "bin" / "python"
    fill: list[str | Path] = [sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "pip"]
    subprocess.run(fill, capture_output=True, stdin=subprocess.DEVNULL)
    return starts(python)


def compiler() -> list[str]:
    """The C compiler to install, where the machine has none of its own."""
    sys.path.insert(0, str(ROOT / "native"))
    from build import ZIGLANG, system_compiler

    return [] if system_compiler() else [ZIGLANG]


# Python 3.10 has no tomllib: pip brings its own.
READ_GROUPS = """
import json, sys
try:
    import tomllib
except ImportError:
    from pip._vendor import tomli as tomllib
print(json.dumps(tomllib.loads(sys.stdin.read())["dependency-groups"]))
"""


def requirements_of(python: Path, groups: list[str]) -> list[str]:
    """Read here, since `pip install --group` needs a newer pip than a fresh environment has."""
    text = (ROOT / "pyproject.toml").read_text()
    done = subprocess.run([python, "-c", READ_GROUPS], input=text, capture_output=True, text=True, check=True)
    table: dict[str, list[str]] = json.loads(done.stdout)
    return [requirement for group in groups for requirement in table[group]]


# What numba-cuda's start-up file becomes: .pth files may hold one line of code, hence the exec.
ON_DEMAND = """\
class NumbaHook:
    def find_spec(name, path, target=None):
        if name == 'numba':
            import sys
            sys.meta_path.remove(NumbaHook)
            import _numba_cuda_redirector
import sys
sys.meta_path.insert(0, NumbaHook)
"""


def start_faster(folder: Path) -> None:
    """Two thirds of every start of Python is what packages hook into it, and the suite starts thousands.

    numba-cuda's start-up file imports its hook at once; here it does when somebody imports numba. setuptools'
    own would replace the standard library's distutils, which nothing here needs.
    """
    for packages in folder.glob("lib/python*/site-packages"):
        (packages / "distutils-precedence.pth").unlink(missing_ok=True)
        startup = packages / "_numba_cuda_redirector.pth"
        if startup.exists():
            startup.write_text(f"import builtins; builtins.exec({ON_DEMAND!r}, {{}})\n")


def install(python: Path, words: list[str | Path]) -> None:
    """By uv, in a fifth of pip's time; by pip where uv cannot, or where pip has settings of its own."""
    pip: list[str | Path] = [python, "-m", "pip", "--disable-pip-version-check", "--no-input", "-qq"]
    if not pip_is_configured(python) and quietly([*pip, "install", "--retries", "1", "uv"]):
        uv: list[str | Path] = [python, "-m", "uv", "pip", "install", "--quiet", "--python", python]
        if quietly([*uv, "--native-tls", *words]):
            return
    # Only what goes wrong is shown.
    if subprocess.run([*pip, "install", *words], stdin=subprocess.DEVNULL).returncode != 0:
        sys.exit("vram: installing failed (pip's words are above)")


def pip_is_configured(python: Path) -> bool:
    """Whether pip is told of an index, a proxy or the like, which uv would not know of."""
    asked = subprocess.run([python, "-m", "pip", "config", "list"], capture_output=True, text=True)
    names = {line.partition("=")[0].rpartition(".")[2] for line in asked.stdout.splitlines()}
    return not names <= {"cert", "default-timeout", "disable-pip-version-check"}


def quietly(command: list[str | Path]) -> bool:
    """Whether *command* succeeded; what it said is not shown."""
    return subprocess.run(command, capture_output=True, stdin=subprocess.DEVNULL).returncode == 0


def say(text: str) -> None:
    print(f"vram: {text}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
