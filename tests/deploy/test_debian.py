"""The Debian package: built here, unpacked, and run from where it was unpacked."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import vram
from tests.deploy.tools import DEPLOY, ROOT, SUPPORTED, build_wheel
from tests.needs import find_program, needs, require, skip_without
from vram.cli.app import COMMANDS

NEXT = f"3.{int(SUPPORTED[-1].partition('.')[2]) + 1}"
# What uv says where it cannot reach an index: the package needs a dozen packages of others.
_NO_INDEX = ("Failed to fetch", "error sending request", "dns error", "No module named uv")


def build(into: Path) -> Path:
    """The package, of a bundle of this checkout."""
    bundle, wheel = into / "bundle", build_wheel(into)
    command = [sys.executable, ROOT / "tools" / "bundle.py", "--into", bundle, wheel]
    made = subprocess.run(command, capture_output=True, text=True, check=False)
    if made.returncode and any(each in made.stderr for each in _NO_INDEX):
        skip_without("package-index", "uv cannot reach an index")
    assert made.returncode == 0, made.stderr
    quick = {"DPKG_DEB_COMPRESSOR_TYPE": "gzip", "DPKG_DEB_COMPRESSOR_LEVEL": "1"}
    answer = subprocess.run(
        [str(DEPLOY / "debian" / "build"), str(bundle), str(into)],
        env={**os.environ, **quick},
        capture_output=True,
        text=True,
        check=False,
    )
    assert answer.returncode == 0, answer.stdout + answer.stderr
    (package,) = into.glob("*.deb")
    return package


def deb(*words: str | Path) -> str:
    return subprocess.run(["dpkg-deb", *words], capture_output=True, text=True, check=True).stdout


@needs("dpkg-buildpackage", "dh", "hatchling")
def test_the_package_has_what_it_says_enables_nothing_and_runs(
    native_libraries: Path, tmp_path: Path
) -> None:
    require("system-python")
    package = build(tmp_path)
    root = tmp_path / "root"
    deb("--extract", package, root)
    deb("--control", package, tmp_path / "control")

    assert f"_{vram.__version__}_" in package.name
    depends = re.findall(r"^Depends: .*", (tmp_path / "control" / "control").read_text(), re.MULTILINE)
    assert depends == [f"Depends: libc6 (>= 2.17), python3 (>= {SUPPORTED[0]}), python3 (<< {NEXT})"]
    linked = {path.name for path in (root / "usr/lib/vram/lib").iterdir() if path.is_symlink()}
    assert linked == {f"python{each}" for each in SUPPORTED}
    assert (tmp_path / "control" / "conffiles").read_text().split() == ["/etc/vram/serve.toml"]
    enables_nothing(tmp_path / "control")
    units = {path.name: path.read_text() for path in root.rglob("*.service")}
    assert units == {path.name: path.read_text() for path in (DEPLOY / "systemd").glob("*.service")}
    has_pages_and_completion(root / "usr" / "share")
    mentions_no_build_folder(root)
    runs(root)


def enables_nothing(control: Path) -> None:
    install, remove = ((control / name).read_text() for name in ("postinst", "postrm"))
    assert not re.search(r"systemctl (enable|start|restart)|deb-systemd-invoke", install)
    # An upgrade enables what an administrator had enabled, and restarts what runs.
    enabling = re.findall(
        r"if deb-systemd-helper --quiet was-enabled '(\S+)'; then\n.*\n.*helper enable '\1'", install
    )
    assert sorted(enabling) == ["vram-observer.service", "vram.service"]
    assert install.count("helper enable") == 2
    assert "try-restart vram.service vram-observer.service" in install
    # State goes on purge, and only then.
    assert re.search(r'if \[ "\$1" = purge \]; then\n\s+rm -rf /var/lib/vram', remove)


def has_pages_and_completion(folder: Path) -> None:
    """Those of the wheel, where Debian's man and shells look."""
    pages = {path.name for path in (folder / "man" / "man1").iterdir()}
    assert pages == {"vram.1.gz", *(f"vram-{name}.1.gz" for name in COMMANDS)}
    for name in (
        "bash-completion/completions/vram",
        "zsh/vendor-completions/_vram",
        "fish/vendor_completions.d/vram.fish",
    ):
        assert (folder / name).is_file(), name


def mentions_no_build_folder(root: Path) -> None:
    for path in root.rglob("*"):
        if path.is_file() and not path.is_symlink():
            assert b"/debian/vram/" not in path.read_bytes(), path


def runs(root: Path) -> None:
    """With its own packages, and none of ours."""
    program = root / "usr" / "bin" / "vram"
    assert program.read_text().splitlines()[0] == "#!/usr/lib/vram/bin/python -I"
    python = root / "usr" / "lib" / "vram" / "bin" / "python"
    assert os.readlink(python) == "../../../bin/python3"
    (root / "usr" / "bin" / "python3").symlink_to("/usr/bin/python3")  # as on the machine that it is made for
    config = root / "etc" / "vram" / "serve.toml"
    clean = {"PATH": "/usr/bin:/bin", "HOME": str(root)}
    answer = subprocess.run(
        [python, "-I", program, "serve", "--check-config", "--config", config],
        env=clean,
        capture_output=True,
        text=True,
        check=True,
    )
    assert "acts on no process" in answer.stdout
    code = "import sys, msgspec, prometheus_client, pynvml, rich, vram; print(*(m.__file__ for m in "
    code += "(msgspec, prometheus_client, pynvml, rich, vram)))"
    found = subprocess.run([python, "-I", "-c", code], env=clean, capture_output=True, text=True, check=True)
    assert all(each.startswith(str(root)) for each in found.stdout.split())


def test_the_changelog_has_this_version() -> None:
    first = (DEPLOY / "debian" / "changelog").read_text().splitlines()[0]
    assert first.startswith(f"vram ({vram.__version__}) ")
    chart = (DEPLOY / "helm" / "vram" / "Chart.yaml").read_text()
    assert f'appVersion: "{vram.__version__}"' in chart


@needs("shellcheck")
def test_the_scripts_are_right() -> None:
    scripts = [
        DEPLOY / "debian" / "build",
        DEPLOY / "rpm" / "build",
        DEPLOY / "pyz" / "start.sh",
        DEPLOY / "kubernetes" / "render",
        *(DEPLOY / "debian").glob("vram.p*"),
    ]
    assert len(scripts) == 7
    subprocess.run([str(find_program("shellcheck")), *scripts], check=True)


@needs("hadolint")
def test_the_image_recipe_is_right() -> None:
    subprocess.run([str(find_program("hadolint")), DEPLOY / "container" / "Containerfile"], check=True)


def test_the_image_recipe_pins_its_base_and_carries_no_secret() -> None:
    recipe = (DEPLOY / "container" / "Containerfile").read_text()
    (base,) = re.findall(r"^ARG BASE=(.*)$", recipe, re.MULTILINE)
    assert re.search(r":\d+\.\d+-slim$", base)
    assert re.findall(r"^FROM (\S+)", recipe, re.MULTILINE) == ["${BASE}", "${BASE}"]
    assert re.findall(r"^USER (.*)$", recipe, re.MULTILINE) == ["65532:65532"]
    copied = {
        word
        for line in re.findall(r"^COPY (?!--from)(.*)$", recipe, re.MULTILINE)
        for word in line.split()[:-1]
    }
    ignored = (DEPLOY / "container" / "Containerfile.dockerignore").read_text().split()
    assert {f"!{word}" for word in copied} == {word for word in ignored if word.startswith("!")}
    assert all((ROOT / word).exists() for word in copied)
