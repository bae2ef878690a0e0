"""Runs a program as the folder of debugpy does, without debugging: ``python .../debugpy OPTIONS PROGRAM``."""

from __future__ import annotations

import os
import runpy
import sys

# --connect ADDRESS --configure-qt none --adapter-access-token SECRET, or --listen ADDRESS
first = next(at for at, word in enumerate(sys.argv) if word.endswith(".py") and at > 0)
sys.argv = sys.argv[first:]
sys.path.insert(0, os.path.dirname(sys.argv[0]))
runpy.run_path(sys.argv[0], run_name="__main__")
