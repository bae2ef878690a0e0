"""Run the parts of the frameworks that an interpreter has; the table is printed, or written to its page."""

from __future__ import annotations

import argparse
import sys

from tests.virtualgpu.frameworks.table import PAGE, read_page, record, write_page


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.virtualgpu.frameworks", description=__doc__)
    parser.add_argument("--python", default=sys.executable, help="the interpreter that has the frameworks")
    parser.add_argument("--only", action="append", default=[], help="a framework by its title; repeatable")
    parser.add_argument("--write", action="store_true", help=f"write what was found to {PAGE.name}")
    args = parser.parse_args()
    text = PAGE.read_text()
    sections = read_page(text)
    for framework, section in record(args.python, args.only):
        sections[framework.title] = section
        print(f"{framework.title} {section.version}")
        for part, cell in section.rows.items():
            print(f"  {cell:.60}  {part}")
    if args.write:
        PAGE.write_text(write_page(text, sections))


if __name__ == "__main__":
    main()
