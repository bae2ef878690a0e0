"""Speed, as ratios: every contender in one run, in turns, on the same virtual GPU.

python bench/run.py [--turns N] [--only CASE] [--json FILE] [--write] [--hardware]

Prints a table and writes the figures as JSON. Exits 1 where a target is missed or a case
could not be measured. ``--write`` keeps the run as docs/evidence/bench-<date>.md.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import time
from pathlib import Path
from subprocess import CalledProcessError

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from bench.cases import (  # noqa: E402
    answer,
    buffer,
    driver,
    fleet,
    forecast,
    free,
    growth,
    history,
    imports,
    injection,
    inside,
    jobs,
    lab,
    lines,
    live,
    looking,
    oom,
    park,
    scan,
    scopes,
    serve,
    serve_page,
    sleeping,
    top,
    trace,
    trace_page,
    trim,
    vendors,
    watch,
)
from bench.company import CompanyRefused  # noqa: E402
from bench.row import Row  # noqa: E402
from bench.timing import CommandFailed, program  # noqa: E402

CASES = {
    "answer": answer,
    "scan": scan,
    "growth": growth,
    "jobs": jobs,
    "history": history,
    "forecast": forecast,
    "vendors": vendors,
    "watch": watch,
    "imports": imports,
    "driver": driver,
    "buffer": buffer,
    "scopes": scopes,
    "live": live,
    "top": top,
    "serve": serve,
    "free": free,
    "trim": trim,
    "inside": inside,
    "looking": looking,
    "park": park,
    "sleeping": sleeping,
    "lab": lab,
    "lines": lines,
    "oom": oom,
    "trace": trace,
    "trace-page": trace_page,
    "serve-page": serve_page,
    "fleet": fleet,
    "injection": injection,
}
ONLY_WHEN_NAMED = ("injection",)
HEAD = ("what", "vram", "beside", "ratio", "target", "verdict")
GPU = ("--gpus", "2", "--memory", "80GiB")


def main() -> int:
    arguments = parse()
    if "VRAM_VIRTUAL_GPU" not in os.environ and not arguments.hardware:
        enter_virtual_gpu()
    rows, problems = measure(arguments.only or usual(), arguments.turns)
    print(table(rows))
    for problem in problems:
        print(f"not measured: {problem}")
    save(arguments.json, rows, problems, arguments.turns)
    if arguments.write:
        print(f"kept as {keep(rows, problems, arguments.turns).relative_to(ROOT)}")
    return 1 if problems or any(row.verdict == "MISSED" for row in rows) else 0


def usual() -> list[str]:
    return [name for name in CASES if name not in ONLY_WHEN_NAMED]


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Speed against others, as ratios.")
    parser.add_argument("--turns", type=int, default=15, help="how often each command is timed (15)")
    parser.add_argument("--only", action="append", choices=list(CASES), help="measure this case alone")
    parser.add_argument("--json", type=Path, default=ROOT / ".build" / "bench.json", help="where figures go")
    parser.add_argument("--write", action="store_true", help="keep the run under docs/evidence")
    parser.add_argument(
        "--hardware", action="store_true", help="on this machine's own GPUs, not virtual ones"
    )
    return parser.parse_args()


def enter_virtual_gpu() -> None:
    """Start again inside `vram virtual`, which takes its folder away at the end."""
    vram = program("vram")
    if vram is None:
        sys.exit("vram is not installed beside this Python: run it through `make bench`")
    os.execv(vram, [vram, "virtual", *GPU, "--", sys.executable, *sys.argv])


def measure(names: list[str], turns: int) -> tuple[list[Row], list[str]]:
    rows: list[Row] = []
    problems: list[str] = []
    for name in names:
        try:
            rows += CASES[name].run(turns)
        except (CompanyRefused, CommandFailed, CalledProcessError) as error:
            problems.append(f"{name}: {error}")
    return rows, problems


def table(rows: list[Row]) -> str:
    lines = [HEAD, *(row.cells() for row in rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(HEAD))]
    padded = ([cell.ljust(width) for cell, width in zip(line, widths, strict=True)] for line in lines)
    return "\n".join("  ".join(cells).rstrip() for cells in padded)


def save(path: Path, rows: list[Row], problems: list[str], turns: int) -> None:
    figures = [{**row._asdict(), "ratio": row.ratio, "verdict": row.verdict} for row in rows]
    path.parent.mkdir(parents=True, exist_ok=True)
    whole = {**machine(), "turns": turns, "rows": figures, "problems": problems}
    path.write_text(json.dumps(whole, indent=2) + "\n")


def keep(rows: list[Row], problems: list[str], turns: int) -> Path:
    facts = machine()
    path = ROOT / "docs" / "evidence" / f"bench-{facts['date']}.md"
    cells = [HEAD, tuple("---" for _ in HEAD), *(row.cells() for row in rows)]
    lines = [
        f"# Speed on {facts['date']}",
        "",
        f"`make bench`, {turns} turns, medians; {facts['cpus']} CPUs, Linux {facts['kernel']}, "
        f"Python {facts['python']}, virtual GPU. The ratio is vram over the other: below 1 vram is faster.",
        "",
        *(f"| {' | '.join(line)} |" for line in cells),
        *(f"\nNot measured: {problem}" for problem in problems),
    ]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(lines) + "\n")
    return path


def machine() -> dict[str, str | int | None]:
    return {
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "cpus": os.cpu_count(),
    }


if __name__ == "__main__":
    sys.exit(main())
