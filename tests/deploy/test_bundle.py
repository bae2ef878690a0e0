"""vram.pyz and the rpm package, of a bundle with this environment's packages: no index is asked."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import zipfile
from importlib.util import find_spec
from pathlib import Path

import pytest

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

import vram
from tests.deploy.tools import DEPLOY, ROOT, SUPPORTED, build_wheel, bundle
from tests.needs import needs, require_python

PACKAGES = ("msgspec", "pynvml", "rich", "pygments", "markdown_it", "mdurl", "prometheus_client")
PYTHON = f"{sys.version_info[0]}.{sys.version_info[1]}"


@pytest.fixture(scope="module")
def made(native_libraries: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bundle as tools/bundle.py makes it, with the packages that are installed here."""
    folder = tmp_path_factory.mktemp("bundle")
    bundle._add_vram(build_wheel(folder), folder / "bundle", os.uname().machine)
    for name in PACKAGES:
        spec = find_spec(name)
        assert spec is not None
        assert spec.origin is not None
        if spec.submodule_search_locations:
            source = Path(spec.origin).parent
            shutil.copytree(source, folder / "found" / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(spec.origin, folder / "found")
    bundle._merge(folder / "found", folder / "bundle", os.uname().machine)
    (folder / "bundle" / "pythons").write_text(" ".join(SUPPORTED))
    (folder / "bundle" / "vram.cdx.json").write_text(bundle.describe(folder / "bundle"))
    return folder / "bundle"


@pytest.fixture(scope="module")
def pyz(made: Path) -> Path:
    file: Path = bundle.write_pyz(made, made.with_name("vram.pyz"))
    return file


class Start:
    """One start of vram.pyz, with a cache of its own."""

    def __init__(self, pyz: Path, cache: Path) -> None:
        self.argv = [sys.executable, "-I", str(pyz)]
        self.env = {"PATH": "/usr/bin:/bin", "HOME": str(cache), "XDG_CACHE_HOME": str(cache)}

    def __call__(self, *words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([*self.argv, *words], env=self.env, capture_output=True, text=True, cwd="/")


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    folder = tmp_path / "cache"
    folder.mkdir(mode=0o700)
    return folder


@needs("hatchling")
def test_it_unpacks_once_and_starts_from_there(pyz: Path, cache: Path) -> None:
    start = Start(pyz, cache)
    assert start("--version").stdout == f"vram {vram.__version__}\n"
    (tree,) = (cache / "vram-pyz").iterdir()
    assert (cache / "vram-pyz").stat().st_mode & 0o777 == 0o700
    unpacked = tree.stat().st_mtime_ns
    done = start("demo", "fork")
    assert "freed 4.5 GiB" in done.stdout, done.stderr
    assert [(each, each.stat().st_mtime_ns) for each in (cache / "vram-pyz").iterdir()] == [(tree, unpacked)]
    assert (tree / "lib" / f"python{PYTHON}" / "site-packages" / "vram" / "trace" / "lib").is_dir()


@needs("hatchling")
def test_starts_at_once_unpack_one_tree(pyz: Path, cache: Path) -> None:
    start = Start(pyz, cache)
    running = [
        subprocess.Popen([*start.argv, "--version"], env=start.env, stdout=subprocess.PIPE) for _ in range(4)
    ]
    assert [each.communicate()[0] for each in running] == [f"vram {vram.__version__}\n".encode()] * 4
    assert len(list((cache / "vram-pyz").iterdir())) == 1


@needs("hatchling")
@pytest.mark.parametrize("wrong", ["cache", "vram-pyz"])
def test_a_folder_that_others_can_write_to_is_not_used(pyz: Path, cache: Path, wrong: str) -> None:
    start = Start(pyz, cache)
    start("--version")
    (tree,) = (cache / "vram-pyz").iterdir()
    planted = next(tree.rglob("cli/__init__.py"))
    planted.write_text("print('planted')\n")
    (cache if wrong == "cache" else cache / "vram-pyz").chmod(0o777)
    done = start("--version")
    assert done.returncode == 1
    assert "others can change" in done.stderr or "not yours alone" in done.stderr
    assert str(cache) in done.stderr
    assert "planted" not in done.stdout


@needs("root", "hatchling")
def test_what_another_user_has_prepared_is_not_used(pyz: Path, tmp_path: Path) -> None:
    """In /tmp, where everybody can make a folder before root does."""
    public = tmp_path / "public"
    public.mkdir()
    public.chmod(0o1777)
    theirs = public / "vram-pyz"
    theirs.mkdir(mode=0o700)
    os.chown(theirs, 65534, 65534)
    start = Start(pyz, public)
    done = start("--version")
    assert done.returncode == 1
    assert f"{theirs} is not yours alone, it belongs to" in done.stderr
    assert list(theirs.iterdir()) == []


@needs("hatchling")
def test_an_old_python_says_so(pyz: Path, cache: Path) -> None:
    start = Start(pyz, cache)
    start.argv[0] = require_python("3.6")
    done = start("--version")
    assert done.returncode == 1
    assert f"needs Python {SUPPORTED[0]} or newer, and this is 3.6" in done.stderr


@needs("hatchling")
def test_a_processor_that_nothing_was_compiled_for_is_refused(
    made: Path, cache: Path, tmp_path: Path
) -> None:
    shutil.copytree(made, tmp_path / "other")
    (tmp_path / "other" / os.uname().machine).rename(tmp_path / "other" / "riscv64")
    done = Start(bundle.write_pyz(tmp_path / "other", tmp_path / "other.pyz"), cache)("--version")
    assert done.returncode == 1
    assert f"nothing compiled for Python {PYTHON} on {os.uname().machine}" in done.stderr
    assert list((cache / "vram-pyz").iterdir()) == []


@needs("hatchling")
def test_the_shell_finds_a_python_that_is_new_enough(pyz: Path, cache: Path, tmp_path: Path) -> None:
    folder = tmp_path / "bin"
    folder.mkdir()
    env = {**Start(pyz, cache).env, "PATH": str(folder)}
    done = subprocess.run(["/bin/sh", pyz, "--version"], env=env, capture_output=True, text=True)
    assert done.returncode in (0, 1)  # /opt may have one
    if done.returncode:
        assert f"no Python {SUPPORTED[0]} or newer" in done.stderr
    (folder / "python3").write_text("#!/bin/sh\nexit 1\n")  # too old
    (folder / "python3").chmod(0o755)
    (folder / f"python{PYTHON}").symlink_to(sys.executable)
    done = subprocess.run(["/bin/sh", pyz, "--version"], env=env, capture_output=True, text=True)
    assert done.stdout == f"vram {vram.__version__}\n", done.stderr


@needs("hatchling")
def test_the_same_bundle_is_the_same_file(made: Path, pyz: Path, tmp_path: Path) -> None:
    shutil.copytree(made, tmp_path / "copy")
    again: Path = bundle.write_pyz(tmp_path / "copy", tmp_path / "vram.pyz")
    assert again.read_bytes() == pyz.read_bytes()
    with zipfile.ZipFile(pyz) as archive:
        listing = json.loads(archive.read("vram.cdx.json"))
    assert [part["name"] for part in listing["components"] if part["name"] == "vram"]
    assert [part for part in listing["components"] if part["name"].endswith("libvramtracer.so")]


def test_all_that_vram_needs_is_locked_with_its_hash() -> None:
    """`python tools/bundle.py --lock` writes the file anew."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = [
        *project["dependencies"],
        *(each for name in bundle.EXTRAS for each in project["optional-dependencies"][name]),
    ]
    text = (DEPLOY / "bundle" / "requirements.txt").read_text()
    locked = re.findall(r"^([\w-]+)==.*\n    --hash=sha256:", text, re.MULTILINE)
    assert {re.match(r"[\w-]+", each)[0] for each in wanted} <= set(locked)  # type: ignore[index]
    assert len(locked) == len(re.findall(r"^\S", text, re.MULTILINE))


@needs("rpmbuild", "rpm2archive", "hatchling")
def test_the_rpm_package_runs_and_enables_nothing(made: Path, tmp_path: Path) -> None:
    done = subprocess.run([DEPLOY / "rpm" / "build", made, tmp_path], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    (package,) = tmp_path.glob("*.rpm")
    root = tmp_path / "root"
    root.mkdir()
    subprocess.run(f"rpm2archive - <{package} | tar -xz -C {root}", shell=True, check=True)
    query = ["rpm", "-qp", "--dbpath", str(tmp_path / "db")]
    ask = lambda *words: subprocess.run([*query, *words, str(package)], capture_output=True, text=True).stdout  # noqa: E731
    assert ask("--configfiles").split() == ["/etc/vram/serve.toml"]
    assert f"(python3 >= {SUPPORTED[0]} or python{SUPPORTED[0]} or" in ask("--requires")
    assert not re.search(r"systemctl (enable|start|restart)", ask("--scripts"))
    units = {path.name: path.read_text() for path in root.rglob("*.service")}
    assert units == {path.name: path.read_text() for path in (DEPLOY / "systemd").glob("*.service")}
    home = root / "usr" / "lib" / "vram"
    base = Path(sys.executable).resolve()
    (home / "bin" / "python").unlink()
    (home / "bin" / "python").symlink_to(base)
    (home / "pyvenv.cfg").write_text((home / "pyvenv.cfg").read_text().replace("/usr/bin", str(base.parent)))
    command = [home / "bin" / "python", "-I", root / "usr" / "bin" / "vram"]
    said = subprocess.run([*command, "--version"], capture_output=True, text=True, check=True).stdout
    assert said == f"vram {vram.__version__}\n"
    code = "import sys; from vram.installation import how_to_add; print(how_to_add('parquet'))"
    hint = subprocess.run([*command[:2], "-c", code], capture_output=True, text=True, check=True).stdout
    assert "vram's rpm package has only what it came with" in hint
