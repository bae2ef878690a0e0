"""What the hosting site runs and asks, and what must agree before a tag is a release. `make lint` holds the
files of .github to their schemas."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import vram
from tests.deploy.tools import ROOT, SUPPORTED
from tests.needs import NEEDS, needs

GITHUB = ROOT / ".github"
WORKFLOWS = sorted((GITHUB / "workflows").glob("*.yml"))
READ = (
    "src/vram/__init__.py",
    "CHANGELOG.md",
    "deploy/debian/changelog",
    "deploy/helm/vram/Chart.yaml",
    "pyproject.toml",
    "tools/release.py",
)


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda path: path.stem)
def test_a_workflow_pins_what_it_uses_and_may_only_read(workflow: Path) -> None:
    text = workflow.read_text()
    used = [each for each in re.findall(r"uses: (.*)", text) if not each.startswith("./")]
    assert all(re.fullmatch(r"[\w/-]+@[0-9a-f]{40} # v[\d.]+", each) for each in used), used
    assert re.search(r"^permissions:\n  contents: read$", text, re.MULTILINE)


@needs("make")
def test_what_workflows_make_can_be_made() -> None:
    made = {each for path in WORKFLOWS for each in re.findall(r"run: make ([a-z]+)\b", path.read_text())}
    assert {"test", "dist"} <= made
    for target in made:
        subprocess.run(["make", "--dry-run", target], cwd=ROOT, capture_output=True, check=True)


def test_the_oldest_and_the_newest_python_are_tested() -> None:
    (listed,) = re.findall(r"python: \[(.*)\]", (GITHUB / "workflows" / "ci.yml").read_text())
    assert listed == f'"{SUPPORTED[0]}", "{SUPPORTED[-1]}"'


def test_what_the_plain_machine_must_have_is_in_the_table() -> None:
    lines = (GITHUB / "must-have").read_text().splitlines()
    assert {line for line in lines if line and not line.startswith("#")} <= set(NEEDS)


def test_forms_about_a_machine_ask_for_a_redacted_snapshot() -> None:
    for name in ("wrong-answer", "failure"):
        assert "vram snapshot --redact" in (GITHUB / "ISSUE_TEMPLATE" / f"{name}.yml").read_text()


# ---- tools/release.py ----


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """This version as a release: a section of the changelog, and an address."""
    for name in READ:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    changelog = (tmp_path / "CHANGELOG.md").read_text()
    section = f"## {vram.__version__} (2026-12-01)\n\n- It is out.\n\n## 0.0.1\n\n- Older.\n"
    (tmp_path / "CHANGELOG.md").write_text(changelog.partition("## ")[0] + section)
    project = (tmp_path / "pyproject.toml").read_text()
    if "\n[project.urls]\n" not in project:
        (tmp_path / "pyproject.toml").write_text(
            f'{project}\n[project.urls]\nSource = "https://example.org"\n'
        )
    return tmp_path


def release(tree: Path, tag: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, tree / "tools" / "release.py", tag]
    return subprocess.run(command, capture_output=True, text=True)


def test_a_release_prints_its_notes(tree: Path) -> None:
    done = release(tree, f"v{vram.__version__}")
    assert (done.returncode, done.stdout) == (0, "- It is out.\n"), done.stderr


@pytest.mark.parametrize("name", [name for name in READ if not name.endswith("release.py")])
def test_each_file_must_say_the_version(tree: Path, name: str) -> None:
    text = (tree / name).read_text().replace("[project.urls]", "")
    (tree / name).write_text(text.replace(vram.__version__, "9.9.9"))
    done = release(tree, f"v{vram.__version__}")
    assert done.returncode == 1
    assert done.stdout == ""
    assert done.stderr.startswith("tools/release.py: ")
    assert done.stderr.count("\n") == 1
    assert name in done.stderr


def test_a_tag_of_another_version_is_none(tree: Path) -> None:
    done = release(tree, "v9.9.9")
    assert done.returncode == 1
    assert done.stderr.count("\n") == 4
