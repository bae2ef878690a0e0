"""Functions and lines of ten thousand addresses, from DWARF, beside addr2line and llvm-symbolizer.

The program has six units of C++ templates, with functions inlined a dozen deep.
"""

from __future__ import annotations

import json
import random
import re
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from bench.row import Row
from bench.timing import interleaved
from vram.trace.lines import LIBRARY, WORKER, WantedLines

WHAT = "lines of 10,000 addresses, from DWARF"
ADDRESSES = 10_000
UNITS = 6
LINES_S = 2.0
RATIO = 1.0
UNIT = """
#include <algorithm>
#include <functional>
#include <map>
#include <regex>
#include <string>
#include <vector>
int unitNUMBER(const std::string &text) {
    std::map<std::string, std::vector<int>> table;
    std::vector<std::function<int(int)>> functions;
    for (int each = 0; each < NUMBER + 9; each++) {
        table[text + std::to_string(each)].push_back(each);
        functions.push_back([each, &text](int more) { return each + more + int(text.size()); });
    }
    std::vector<std::string> names;
    for (auto &[name, values] : table) names.push_back(name + std::to_string(values.size()));
    std::stable_sort(names.begin(), names.end());
    return std::regex_search(names[0], std::regex("a(b+)c")) + functions[3](4);
}
"""


def run(turns: int) -> list[Row]:
    if not shutil.which("g++"):
        return [Row(WHAT, 0.0, "s", "g++", None, RATIO, "there is no g++ here")]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        program = _build(folder)
        offsets = _addresses(program)
        (folder / "addresses").write_text("\n".join(map(hex, offsets)))
        wanted = WantedLines(str(program), None, 1 << 62, offsets)._asdict()
        (folder / "question").write_text(json.dumps({"library": str(LIBRARY), "files": [wanted]}))
        worker = f"{sys.executable} -I -S {WORKER} <question"
        others = {
            "addr2line": f"addr2line -f -i -e {program} <addresses",
            "llvm-symbolizer": f"llvm-symbolizer --no-demangle -e {program} <addresses",
        }
        commands = {"vram": worker, **{each: line for each, line in others.items() if shutil.which(each)}}
        shell = {each: ["/bin/sh", "-c", f"cd {folder} && {line}"] for each, line in commands.items()}
        samples = interleaved(shell, turns=min(turns, 3))
        mine = samples["vram"].median_s
        note = f"{program.stat().st_size / 1e6:.0f} MB"
        rows = [Row(WHAT, mine, "s", target=LINES_S, note=note)]
        for each in others:
            theirs = samples[each].median_s if each in samples else None
            rows.append(Row(WHAT, mine, "s", each, theirs, RATIO))
        return rows


def _build(folder: Path) -> Path:
    calls = []
    for number in range(UNITS):
        (folder / f"unit{number}.cpp").write_text(UNIT.replace("NUMBER", str(number)))
        calls.append(f"unit{number}")
    declared = "".join(f"int {call}(const std::string &);\n" for call in calls)
    work = " + ".join(f'{call}("x")' for call in calls)
    (folder / "main.cpp").write_text(f"#include <string>\n{declared}int main() {{ return {work}; }}\n")
    units = [*calls, "main"]
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda unit: _compile(folder, "-c", f"{unit}.cpp", "-o", f"{unit}.o"), units))
    _compile(folder, *(f"{unit}.o" for unit in units), "-o", "program")
    return folder / "program"


def _compile(folder: Path, *words: str) -> None:
    subprocess.run(["g++", "-std=c++17", "-g", "-O2", *words], cwd=folder, check=True)


def _addresses(program: Path) -> list[int]:
    """Anywhere in its functions."""
    listed = subprocess.run(
        ["nm", "-S", "--defined-only", program], capture_output=True, text=True, check=True
    )
    found = re.findall(r"^([0-9a-f]+) ([0-9a-f]+) [tTwW] ", listed.stdout, re.MULTILINE)
    functions = [(int(begin, 16), int(nbytes, 16)) for begin, nbytes in found]
    chooser = random.Random(1)
    chosen = [chooser.choice(functions) for _ in range(ADDRESSES)]
    return [begin + chooser.randrange(nbytes) for begin, nbytes in chosen]
