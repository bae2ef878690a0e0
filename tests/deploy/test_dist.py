"""What `make dist` builds, as far as seconds go: the source archive, the wheel without compiled parts, and
the list of what a wheel contains. The whole of it, with zig and on each Python, is `make dist` itself."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path
from zipfile import ZipFile

import pytest

import vram
from hatch_build import platform_tag
from tests.deploy.tools import ROOT, build_source, build_wheel
from tests.needs import needs
from vram.installation import how_to_add, how_to_get_native, requirements_of
from vram.virtualgpu import VirtualGpu
from vram.virtualgpu.demos import FORK, DemoProgram

pytestmark = needs("hatchling")
NOTHING_COMPILED = "which has nothing compiled"
EPOCH = {"SOURCE_DATE_EPOCH": "1700000000"}


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_source(tmp_path_factory.mktemp("source"))


@pytest.fixture(scope="module")
def pure(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel for any machine, built from the source archive."""
    return build_pure(source, tmp_path_factory.mktemp("pure"))


def build_pure(source: Path, folder: Path) -> Path:
    with tarfile.open(source) as archive:
        archive.extractall(folder)
    return build_wheel(folder / "dist", next(folder.glob("vram-*")), VRAM_BUILD_FOR="any", **EPOCH)


def test_the_source_has_what_wheels_are_built_from_and_no_tests(source: Path) -> None:
    with tarfile.open(source) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {"hatch_build.py", "LICENSE", "README.md", "native/build.py", "src/vram/cli/app.py"} <= names
    assert "deploy/debian/rules" in names
    assert not [name for name in names if name.startswith(("tests/", "bench/", ".build/", "docs/guides/"))]
    assert not [name for name in names if ".so" in name]


def test_two_builds_in_two_folders_are_the_same_to_the_byte(source: Path, pure: Path, tmp_path: Path) -> None:
    other = build_pure(source, tmp_path / "a-folder-with-a-longer-name")
    assert (other.name, other.read_bytes()) == (pure.name, pure.read_bytes())


def test_the_wheel_for_any_machine_has_nothing_compiled(pure: Path) -> None:
    assert pure.name == f"vram-{vram.__version__}-py3-none-any.whl"
    with ZipFile(pure) as wheel:
        assert not [name for name in wheel.namelist() if "/lib/" in name or ".so" in name]
        assert b"Root-Is-Purelib: true" in wheel.read(f"vram-{vram.__version__}.dist-info/WHEEL")
        assert sbom(wheel)["components"] == []


def test_a_wheel_lists_its_compiled_files(native_libraries: Path, tmp_path: Path) -> None:
    with ZipFile(build_wheel(tmp_path, **EPOCH)) as wheel:
        compiled = {
            name: hashlib.sha256(wheel.read(name)).hexdigest() for name in wheel.namelist() if ".so" in name
        }
        listing = sbom(wheel)
    assert len(compiled) >= 12
    assert {each["name"]: each["hashes"][0]["content"] for each in listing["components"]} == compiled
    assert listing["metadata"]["component"]["version"] == vram.__version__
    assert listing["metadata"]["timestamp"] == "2023-11-14T22:13:20Z"


def sbom(wheel: ZipFile) -> dict[str, object]:
    listing = json.loads(wheel.read(f"vram-{vram.__version__}.dist-info/sboms/vram.cdx.json"))
    assert (listing["bomFormat"], listing["specVersion"]) == ("CycloneDX", "1.6")
    return listing


def test_the_name_says_for_which_machines_it_is() -> None:
    assert platform_tag("any") == "any"
    assert platform_tag("aarch64-linux-gnu.2.17") == "manylinux_2_17_aarch64"
    assert platform_tag("").startswith("linux_")
    with pytest.raises(ValueError, match="neither"):
        platform_tag("aarch64-linux-musl")


# ---- a vram that has nothing compiled ----


@pytest.fixture(scope="module")
def installed(pure: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("installed")
    with ZipFile(pure) as wheel:
        wheel.extractall(folder)
    return folder


def call(installed: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return python(installed, "-m", "vram", *words)


def python(installed: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *words], env=bare(installed), capture_output=True, text=True)


def bare(installed: Path) -> dict[str, str]:
    """The environment in which Python finds that vram before this checkout's."""
    return {**os.environ, "PYTHONPATH": str(installed), "PYTHONDONTWRITEBYTECODE": "1"}


@pytest.mark.parametrize("words", ["demo fork", "virtual -- true", "run -- true"])
def test_a_command_that_needs_compiled_parts_says_so(installed: Path, words: str) -> None:
    done = call(installed, *words.split())
    assert done.returncode not in (0, 70)
    assert NOTHING_COMPILED in done.stderr


@pytest.mark.parametrize(
    "code",
    [
        "from vram.trace.native import _library as ask",  # vram report
        "from vram.trace.launch import require_library as ask",  # vram attach
        "import vram.reach.visitor_library as of; ask = lambda: print(of.why_missing())",
        "import vram.guard.dlpack as of; ask = lambda: of._deleters(False)",
    ],
)
def test_a_part_that_is_not_there_is_named(installed: Path, code: str) -> None:
    catch = "\ntry: ask()\nexcept Exception as error: print(type(error).__name__, error, error.hint)"
    done = python(installed, "-c", code + catch)
    assert NOTHING_COMPILED in done.stdout, done.stdout + done.stderr


def test_a_ghost_is_found_and_freed_without_them(
    virtual_gpu: VirtualGpu, installed: Path, tmp_path: Path
) -> None:
    """The virtual GPU is this checkout's; vram is the one without compiled parts."""

    def call(words: str) -> tuple[int, str]:
        command = [sys.executable, "-m", "vram", *words.split()]
        done = virtual_gpu.run(command, env=bare(installed), capture_output=True, text=True)
        return done.returncode, done.stdout + done.stderr

    snapshot = tmp_path / "machine.json"
    with DemoProgram(virtual_gpu, FORK.program, FORK.size) as program:
        FORK.prepare(program)
        assert call(f"snapshot -o {snapshot}")[0] == 0
        assert "GHOST" in call("why")[1]
        code, said = call("free --yes")
        assert (code, "freed 4.5 GiB" in said) == (0, True), said
    assert call("check --leftovers")[0] == 0
    assert "GHOST" in call(f"why --from {snapshot}")[1]


def test_the_doctor_says_what_they_are_for(installed: Path) -> None:
    doctor = " ".join(python(installed, "-m", "vram", "doctor", "-v").stdout.split())
    assert "vram run and attach cannot record" in doctor
    assert NOTHING_COMPILED in doctor


# ---- what a hint says that brings what is missing ----


def test_an_extra_is_named_by_its_packages_and_the_environment() -> None:
    assert how_to_add("serve") == f"{sys.executable} -m pip install 'prometheus-client>=0.14'"
    assert set(requirements_of("fleet")) == {"ray>=2.9", "pyarrow>=14"}
    assert "extra `none-such`" in how_to_add("none-such")


def test_what_came_with_all_its_packages_says_that_it_has_no_more(installed: Path, tmp_path: Path) -> None:
    """INSTALLER, beside the package, says how it was installed."""
    shutil.copytree(installed, tmp_path / "bundle")
    (metadata,) = (tmp_path / "bundle").glob("*.dist-info")
    (metadata / "INSTALLER").write_text("dpkg\n")
    code = "from vram.installation import how_to_add; print(how_to_add('parquet'))"
    assert "Debian package" in (said := python(tmp_path / "bundle", "-c", code).stdout)
    assert "'pyarrow>=14'" in said


def test_a_checkout_is_told_to_build_there() -> None:
    assert how_to_get_native() == f"run `python native/build.py` in {ROOT}"
