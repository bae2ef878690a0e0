"""A program with many objects and a thread that must not wait; prints JSON.

python bench/looked_into.py OBJECTS

One thread sleeps for a millisecond at a time and notes the longest time between two beats. Each line that is
read begins anew; the answer is the longest time since the line before. With PyTorch on a GPU a small
transformer generates meanwhile, otherwise the program only has buffers.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from importlib import import_module
from typing import Any

BEAT_S = 0.001


class Beat:
    """The longest time between two beats of a thread that does nothing else."""

    def __init__(self) -> None:
        self.longest_s = 0.0
        threading.Thread(target=self._run, name="beat", daemon=True).start()

    def _run(self) -> None:
        before = time.perf_counter()
        while True:
            time.sleep(BEAT_S)
            now = time.perf_counter()
            self.longest_s = max(self.longest_s, now - before)
            before = now

    def taken(self) -> float:
        longest_s, self.longest_s = self.longest_s, 0.0
        return longest_s


class Record:
    """One of many small objects, as a data set has them."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.words = [number]


def generating() -> Any:
    """A model that generates in a thread, and what it holds; None where there is no PyTorch on a GPU."""
    try:
        torch = import_module("torch")
    except ImportError:
        return None
    if not torch.cuda.is_available():
        return None
    model = torch.nn.TransformerEncoder(
        torch.nn.TransformerEncoderLayer(512, 8, batch_first=True), 6, enable_nested_tensor=False
    )
    model = model.cuda().eval()

    def generate() -> None:
        tokens = torch.randn(1, 8, 512, device="cuda")
        while True:
            with torch.no_grad():
                out = model(tokens)
            tokens = torch.cat([tokens[:, -63:], out[:, -1:]], dim=1)

    threading.Thread(target=generate, name="generate", daemon=True).start()
    return model


def main(objects: int) -> None:
    model = generating()
    if model is None:
        import vram

        model = [vram.Buffer("4MiB") for _ in range(8)]
    # Two objects that the collector tracks for each record: itself and its list.
    kept = [Record(number) for number in range(objects // 2)]
    beat = Beat()
    print(json.dumps({"pid": os.getpid(), "kept": len(kept)}), flush=True)
    for _ in sys.stdin:
        print(json.dumps(beat.taken()), flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]))
