"""The systemd units: systemd understands them, the guide has their score, and their commands exist."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.deploy.tools import DEPLOY, ROOT
from tests.needs import needs, skip_without

UNITS = ("vram.service", "vram-observer.service")
GUIDE = ROOT / "docs" / "guides" / "systemd.md"


def text(unit: str) -> str:
    return (DEPLOY / "systemd" / unit).read_text()


def setting(unit: str, key: str) -> list[str]:
    return re.findall(rf"^{key}=(.*)$", text(unit), re.MULTILINE)


@needs("systemd-analyze")
@pytest.mark.parametrize("unit", UNITS)
def test_systemd_finds_nothing_wrong(unit: str, tmp_path: Path) -> None:
    # It asks that the program is there, which it is only where the package is installed.
    for each in UNITS:
        (tmp_path / each).write_text(text(each).replace("/usr/bin/vram", "/bin/true"))
    answer = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", tmp_path / unit],
        capture_output=True,
        text=True,
        check=False,
    )
    ours = [line for line in answer.stderr.splitlines() if unit in line]
    assert (answer.returncode, ours) == (0, [])


@needs("systemd-analyze")
@pytest.mark.parametrize("unit", UNITS)
def test_the_score_is_the_one_of_the_guide(unit: str) -> None:
    """Versions of systemd count differently by some tenths; more than that is a permission that was added."""
    command = ["systemd-analyze", "security", "--offline=true", "--no-pager", str(DEPLOY / "systemd" / unit)]
    answer = subprocess.run(command, capture_output=True, text=True, check=False)
    if "Overall exposure" not in answer.stdout:
        skip_without("systemd", f"this systemd cannot judge a file: {answer.stderr.strip()}")
    (score,) = re.findall(r"Overall exposure level for \S+ ([\d.]+)", answer.stdout)
    (said,) = re.findall(rf"^\| `{unit}` .*\| ([\d.]+) \|$", GUIDE.read_text(), re.MULTILINE)
    assert float(score) == pytest.approx(float(said), abs=0.3)


@pytest.mark.parametrize("unit", UNITS)
def test_the_command_is_one_that_vram_has(unit: str, tmp_path: Path) -> None:
    (line,) = setting(unit, "ExecStart")
    words = shlex.split(line)
    assert words[0] == "/usr/bin/vram"
    config = tmp_path / "serve.toml"
    config.write_text((DEPLOY / "debian" / "serve.toml").read_text())
    command = [sys.executable, "-m", "vram", *words[1:], "--check-config", "--config", str(config)]
    answer = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert "acts on no process" in answer
    assert ("socket    off" in answer) == (unit == "vram-observer.service")


def test_an_observer_ignores_policies_and_the_socket(tmp_path: Path) -> None:
    config = tmp_path / "serve.toml"
    policy = '[[policy]]\nname = "ends"\ndo = "end-leftovers"\nmode = "act"\nall = true\n'
    config.write_text("[socket]\nenabled = true\n" + policy)
    command = [sys.executable, "-m", "vram", "serve", "--observe", "--check-config", "--config", str(config)]
    answer = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert re.search(r"^policies\s+none: it acts on no process$", answer, re.MULTILINE)
    assert re.search(r"^socket\s+off$", answer, re.MULTILINE)


@pytest.mark.parametrize("unit", UNITS)
def test_the_service_says_when_it_is_ready_and_that_it_lives(unit: str) -> None:
    assert setting(unit, "Type") == ["notify"]
    assert setting(unit, "WatchdogSec")
    for key in ("StateDirectory", "RuntimeDirectory", "ConfigurationDirectory"):
        assert len(setting(unit, key)) == 1
    assert setting(unit, "StateDirectoryMode") == ["0700"]


def test_the_two_units_never_run_at_once() -> None:
    assert setting("vram.service", "Conflicts") == ["vram-observer.service"]
    assert setting("vram-observer.service", "Conflicts") == ["vram.service"]


@pytest.mark.parametrize("unit", UNITS)
def test_each_capability_has_its_reason_in_the_guide(unit: str) -> None:
    (line,) = setting(unit, "CapabilityBoundingSet")
    for name in line.split():
        assert f"`{name}`" in GUIDE.read_text(), name


# ---- the configuration of the package ----


def test_the_packaged_configuration_says_nothing() -> None:
    from vram.serve.config import ServeConfig, parse

    assert parse((DEPLOY / "debian" / "serve.toml").read_bytes(), "serve.toml") == ServeConfig()


def test_what_it_shows_in_comments_is_what_holds() -> None:
    """Every commented key exists, and its value is the default: uncommenting changes nothing."""
    from vram.serve.config import ServeConfig, parse

    packaged = (DEPLOY / "debian" / "serve.toml").read_text()
    shown = re.sub(r"^#(?=[\[a-z])", "", packaged, flags=re.MULTILINE)
    assert shown.count("=") >= 10
    assert parse(shown.encode(), "serve.toml") == ServeConfig()
