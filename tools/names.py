"""Hold "one name, one thing": no two public classes of one name, no word that we have replaced.

    python tools/names.py                    the whole tree; exit 1 with a line for each offence
    python tools/names.py src/vram/guard     that folder's words; the names of classes everywhere

A class whose name starts with an underscore is private to its file and may occur again.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "src" / "vram"
SUFFIXES = {".py", ".md", ".c", ".h", ".cpp", ".toml", ".txt"}

# These quote what others wrote, or tell of the old words.
EXEMPT = ("tools/names.py", "CHANGELOG.md", "docs/decisions/", "docs/evidence/", "tests/oom/corpus/")

# the word as a regular expression, in identifiers too: what to write instead
REPLACED = {
    r"untold": "unknown, unreported",
    r"sharers?\b": "co-holder",
    r"bystander": "has it open only",
    r"onlooker": "has it open only",
    r"\bopeners?\b": "has it open only",
    r"keeper": "holder, checkpoint worker",
    r"puppet": "worker",
    r"\bheirs?\b": "forked child",
    r"nursery": "worker pool",
    r"luggage": "payload source",
    r"\berrands?\b": "script drop",
    r"\bguardian": "supervisor",
    r"sightings?\b": "IndexedSurvey, observation",
    r"kinship": "process tree",
    r"household": "group",
    r"\bkin\b": "process tree, group",
    r"\brungs?\b": "action",
    r"\bladder": "actions",
    r"\bwish(?:es)?\b": "request",
    r"\bspared?\b": "skipped",
    r"\bgrips?\b": "pid handle",
    r"\bpremises\b": "host files",
    r"\bvitals\b": "process limits",
    r"\bsurroundings\b": "system info",
    r"(?<!\.)\bpeek\b": "safe introspection",
    r"\bmachinery\b": "internal references",
    r"\btrails?\b": "reference path",
    r"\b(?:lets?|letting) go\b": "releases, frees",
    r"\bg(?:ive|ives|iving|ave|iven) (?:it |them )?back\b": "releases, frees, returns",
    r"stands? still": "is paused",
    r"no way leads": "cannot attach",
    r"\bputs? (?:it )?into words\b": "describes",
}

# A constant that limits something says on which side.
OLD_LIMIT = re.compile(
    r"_?(?:MOST|LEAST|LONGEST|SHORTEST|LARGEST|SMALLEST|FEWEST)(?:_[A-Z0-9_]+)?\b[^=]*=[^=]"
)


def public_classes() -> dict[str, list[str]]:
    """Where each public class name of the package is defined."""
    places: dict[str, list[str]] = defaultdict(list)
    for file in sorted(PACKAGE.rglob("*.py")):
        for node in ast.parse(file.read_bytes()).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places[node.name].append(f"{file.relative_to(ROOT)}:{node.lineno}")
    return places


def tracked_files(below: list[str]) -> Iterator[str]:
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--", *below], cwd=ROOT, capture_output=True, text=True, check=True
    )
    for name in listed.stdout.split("\0"):
        if Path(name).suffix in SUFFIXES and not name.startswith(EXEMPT) and (ROOT / name).is_file():
            yield name


def replaced_words(below: list[str]) -> Iterator[str]:
    """A line for each word that the tree no longer uses."""
    # "_" separates words in identifiers, and \b does not know that.
    any_of = re.compile("|".join(f"(?P<w{i}>{word})" for i, word in enumerate(REPLACED)), re.IGNORECASE)
    instead = list(REPLACED.values())
    for name in tracked_files(below):
        for number, line in enumerate((ROOT / name).read_text("utf-8").splitlines(), 1):
            # A deprecated spelling, and a word of Python's own.
            if "old name" in line or "importlib.machinery" in line:
                continue
            if OLD_LIMIT.match(line):
                yield f"{name}:{number}: {line.split()[0]!r} is written: MAX_... or MIN_..."
            for found in any_of.finditer(line.replace("_", " ")):
                advice = instead[int((found.lastgroup or "w0")[1:])]
                yield f"{name}:{number}: {found[0]!r} is written: {advice}"


def main(below: list[str]) -> int:
    offences = [
        f"{name} is {len(places)} public classes: {', '.join(places)}"
        for name, places in public_classes().items()
        if len(places) > 1
    ]
    offences += replaced_words(below)
    print(*offences, sep="\n", end="\n" if offences else "")
    return 1 if offences else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
