"""`make serve-demo`: what it prints can be opened and typed, and nothing is left when it ends."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path

from tests.patience import PATIENCE_S, until

ROOT = Path(__file__).parents[2]


def test_the_demo_shows_a_ghost_and_takes_everything_along(native_libraries: Path) -> None:
    words = [sys.executable, str(ROOT / "tools" / "serve_demo.py")]
    demo = subprocess.Popen(words, stdout=subprocess.PIPE, text=True, start_new_session=True)
    try:
        assert demo.stdout is not None
        said = ""
        while "Ctrl-C ends it" not in said:
            line = demo.stdout.readline()
            assert line, "the demo ended early"
            said += line
        url = re.search(r"page +(http://\S+)/", said)
        enter = re.search(r"^  \. (\S+)$", said, re.MULTILINE)
        assert url
        assert enter
        until(lambda: _ghosts(url[1]))
        why = subprocess.run(["sh", "-c", f". {enter[1]}; vram ps"], capture_output=True, text=True)
        assert "GHOST" in why.stdout, why.stderr
        for words in re.findall(r"^  (vram (?:serve|history) .*)$", said, re.MULTILINE):
            done = subprocess.run(["sh", "-c", f". {enter[1]}; {words}"], capture_output=True, text=True)
            # The history is written once a minute: until then it says so, with a code of its own.
            assert done.returncode == 0 or "nothing was recorded yet" in done.stderr, (words, done.stderr)
        os.killpg(demo.pid, signal.SIGINT)
        assert demo.wait(PATIENCE_S) == 0
        assert not Path(enter[1]).exists()
    finally:
        demo.terminate()  # it ends what it has started
        demo.wait()


def _ghosts(url: str) -> list[object]:
    try:
        with urllib.request.urlopen(f"{url}/api/v1/ghosts", timeout=PATIENCE_S) as answer:
            found: list[object] = json.loads(answer.read())["ghosts"]
            return found
    except urllib.error.HTTPError:  # nothing was read yet
        return []
