"""Draw docs/bytes.svg: one GPU's memory as a bar with its lines, from an answer of `vram why --deep`.

python tools/bytes_picture.py FILE.svg

The answer is real: processes that run, on a virtual GPU. Only kinds and bytes are drawn.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory

from vram.units import GIB, size
from vram.virtualgpu import VirtualGpu
from vram.virtualgpu.demos import EXPORT, FORK, DemoProgram

VRAM = Path(sys.executable).with_name("vram")
# A process that lets vram in: 3 GiB live, 2 GiB freed into a pool that keeps them.
WILLING = """
import ctypes, sys
import vram
from vram.units import GIB
cuda = ctypes.CDLL("libcuda.so.1")
def call(name, *words):
    code = getattr(cuda, name)(*words)
    assert code == 0, (name, code)
device, context, pool = ctypes.c_int(), ctypes.c_void_p(), ctypes.c_void_p()
call("cuInit", 0)
call("cuDeviceGet", ctypes.byref(device), 0)
call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
call("cuCtxSetCurrent", context)
call("cuDeviceGetDefaultMemPool", ctypes.byref(pool), device)
call("cuMemPoolSetAttribute", pool, 4, ctypes.byref(ctypes.c_uint64(64 * GIB)))
kept = [ctypes.c_uint64(), ctypes.c_uint64()]
for pointer, nbytes in zip(kept, (3 * GIB, 2 * GIB)):
    call("cuMemAllocAsync", ctypes.byref(pointer), ctypes.c_size_t(nbytes), None)
call("cuMemFreeAsync", kept[1], None)
call("cuCtxSynchronize")
vram.agent()
print(flush=True)
sys.stdin.readline()
"""
ORDER = (
    *("live", "cached", "context", "process", "orphaned", "exported"),
    *("overhead", "unattributed", "reserved", "free"),
)
COLORS = {
    "live": "#2f855a",
    "cached": "#68b58c",
    "context": "#3b6ea5",
    "process": "#5d8fc4",
    "orphaned": "#c05621",
    "exported": "#b83280",
    "overhead": "#6b7280",
    "unattributed": "#9b2c2c",
    "reserved": "#8a8f98",
    "free": "#d5dbe1",
}
WIDTH, BAR, ROW, LEFT = 760, 34, 24, 20


def main(picture: str) -> None:
    entries, total = observed()
    if sum(entries.values()) != total:
        sys.exit("the answer does not balance: nothing was drawn")
    Path(picture).write_text("\n".join(drawn(entries, total)) + "\n")


def observed() -> tuple[Counter[str], int]:
    with ExitStack() as cleanup:
        gpu = cleanup.enter_context(VirtualGpu.create(memory_bytes=24 * GIB, name="NVIDIA GPU"))
        folder = cleanup.enter_context(TemporaryDirectory())
        variables = gpu.environment({**os.environ, "XDG_RUNTIME_DIR": folder})
        for demo in (FORK, EXPORT):
            demo.prepare(cleanup.enter_context(DemoProgram(gpu, demo.program, demo.size)))
        cleanup.enter_context(DemoProgram(gpu, "memory.plain", "2GiB"))
        willing = subprocess.Popen([sys.executable, "-c", WILLING], stdin=-1, stdout=-1, env=variables)
        cleanup.callback(willing.communicate, b"\n")
        assert willing.stdout is not None
        willing.stdout.readline()
        done = subprocess.run([VRAM, "why", "--deep", "--json"], env=variables, stdout=-1, check=True)
    (seen,) = json.loads(done.stdout)["gpus"]
    entries: Counter[str] = Counter()
    for entry in seen["entries"]:
        entries[entry["kind"]] += entry["nbytes"]
    return entries, seen["total_bytes"]


def drawn(entries: Counter[str], total: int) -> Iterator[str]:
    shown = [kind for kind in ORDER if entries[kind]] + sorted(set(entries) - set(ORDER))
    height = 40 + BAR + 16 + ROW * len(shown) + 40
    label = f"A GPU of {size(total)}: " + ", ".join(f"{kind} {size(entries[kind])}" for kind in shown)
    yield f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img">'
    yield f"  <title>{label}</title>"
    yield f'  <rect width="{WIDTH}" height="{height}" rx="8" fill="#ffffff"/>'
    yield '  <g font-family="system-ui, sans-serif" font-size="14" fill="#1f2933">'
    yield f'    <text x="{LEFT}" y="26" font-weight="600">NVIDIA GPU (virtual), {size(total)}</text>'
    yield from bar(entries, total, shown)
    for at, kind in enumerate(shown):
        yield from row(kind, entries[kind], total, 40 + BAR + 32 + ROW * at)
    y = height - 18
    yield f'    <text x="250" y="{y}" text-anchor="end" font-weight="600">{total:,}</text>'
    yield f'    <text x="270" y="{y}">bytes: the sum, and the total</text>'
    yield "  </g>"
    yield "</svg>"


def bar(entries: Counter[str], total: int, shown: list[str]) -> Iterator[str]:
    x, scale = float(LEFT), (WIDTH - 2 * LEFT) / total
    for kind in shown:
        width = entries[kind] * scale
        yield f'    <rect x="{x:.1f}" y="40" width="{width:.1f}" height="{BAR}" fill="{color(kind)}"/>'
        x += width


def row(kind: str, nbytes: int, total: int, y: int) -> Iterator[str]:
    yield f'    <rect x="{LEFT}" y="{y - 12}" width="14" height="14" fill="{color(kind)}"/>'
    yield f'    <text x="{LEFT + 24}" y="{y}">{kind}</text>'
    yield f'    <text x="250" y="{y}" text-anchor="end" font-variant="tabular-nums">{nbytes:,}</text>'
    yield f'    <text x="270" y="{y}">{size(nbytes)}, {100 * nbytes / total:.1f} %</text>'


def color(kind: str) -> str:
    return COLORS.get(kind, "#4a5568")


if __name__ == "__main__":
    main(sys.argv[1])
