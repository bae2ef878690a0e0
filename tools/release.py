"""Is this commit the release that its tag says? Prints its notes: `python tools/release.py v0.1.0`.

Before a tag is made: the version in src/vram/__init__.py, a section "## 0.1.0" at the top of CHANGELOG.md,
the Debian changelog and the Helm chart, and where the project lives: [project.urls] of pyproject.toml.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def main(arguments: list[str]) -> int:
    if len(arguments) != 1:
        print("which tag? python tools/release.py v0.1.0", file=sys.stderr)
        return 2
    (tag,) = arguments
    problems = find_problems(ROOT, tag)
    for problem in problems:
        print(f"tools/release.py: {problem}", file=sys.stderr)
    if not problems:
        print(notes(ROOT, tag))
    return 1 if problems else 0


def find_problems(root: Path, tag: str) -> list[str]:
    """What does not say the version of *tag*."""
    version = tag.removeprefix("v")
    said = re.search(
        r'^__version__ = "(.*)"', (root / "src" / "vram" / "__init__.py").read_text(), re.MULTILINE
    )
    debian = (root / "deploy" / "debian" / "changelog").read_text()
    chart = (root / "deploy" / "helm" / "vram" / "Chart.yaml").read_text()
    checks = {
        f"the tag is {tag}, not v and a version": not re.fullmatch(r"v\d+\.\d+\.\d+((a|b|rc)\d+)?", tag),
        f"src/vram/__init__.py says {said and said[1]}, not {version}": not said or said[1] != version,
        f"CHANGELOG.md does not begin with a section ## {version}": not notes(root, tag),
        f"deploy/debian/changelog does not begin with {version}": not debian.startswith(f"vram ({version}) "),
        f"deploy/helm/vram/Chart.yaml has not the appVersion {version}": f'appVersion: "{version}"'
        not in chart,
        "pyproject.toml has no [project.urls]: nobody who finds the release would find the project": (
            "\n[project.urls]\n" not in (root / "pyproject.toml").read_text()
        ),
    }
    return [problem for problem, holds in checks.items() if holds]


def notes(root: Path, tag: str) -> str:
    """The first section of the changelog, where it is that of *tag*; else nothing."""
    sections = re.split(r"^## ", (root / "CHANGELOG.md").read_text(), flags=re.MULTILINE)[1:]
    title, _, text = sections[0].partition("\n") if sections else ("", "", "")
    return text.strip() if title.split() and title.split()[0] == tag.removeprefix("v") else ""


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
