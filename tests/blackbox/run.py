"""Runs every row on the GPU at hand and prints what was measured. Needs nvidia-ml-py, nothing else.

python tests/blackbox/run.py                        the real GPU, or any the loader finds
python tests/blackbox/run.py fork_orphan ipc        only these rows
python tests/blackbox/run.py --evidence docs/evidence
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

import evidence
import score
from machine import Machine, ProgramFailed
from rows import ROWS


def main() -> int:
    args = arguments()
    try:
        machine = Machine()
    except ProgramFailed as error:
        print(f"no GPU answers: {error}", file=sys.stderr)
        return 4
    try:
        ran = [shown(score.run(row, machine, real=is_real(machine))) for row in chosen(args.rows)]
    finally:
        machine.close()
    if args.evidence:
        for path in evidence.write(args.evidence, machine.gpu, ran):
            print(path)
    print(f"{summary(ran)} on {machine.gpu['name']}")
    return 1 if any(result["ok"] is False for result in ran) else 0


def arguments() -> argparse.Namespace:
    as_written = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=as_written)
    parser.add_argument("rows", nargs="*", metavar="ROW", help="rows to run; all without it")
    parser.add_argument("--evidence", type=Path, metavar="DIR", help="write JSON and Markdown there")
    return parser.parse_args()


def is_real(machine: Machine) -> bool:
    return "virtual" not in machine.gpu["name"].lower()


def chosen(names: list[str]) -> list[score.Row]:
    unknown = set(names) - {row.name for row in ROWS}
    if unknown:
        known = ", ".join(row.name for row in ROWS)
        raise SystemExit(f"no such row: {', '.join(sorted(unknown))}; there are {known}")
    return [row for row in ROWS if not names or row.name in names]


def summary(ran: list[dict[str, Any]]) -> str:
    skipped = sum(result["ok"] is None for result in ran)
    met = sum(result["ok"] is True for result in ran)
    return f"{met} of {len(ran)} rows as expected" + (f", {skipped} skipped" if skipped else "")


def shown(result: dict[str, Any]) -> dict[str, Any]:
    """Print one row as soon as it is known; return it."""
    status = result["status"].partition(":")[0]
    print(f"{status:8}{result['took_s']:6.1f} s  {result['row']:22}{result['situation']}")
    for promise in result["unmet"]:
        print(f"{'':18}not met: {promise}")
    print(f"{'':18}{evidence.short(result['measured'])}", flush=True)
    return result


if __name__ == "__main__":
    raise SystemExit(main())
