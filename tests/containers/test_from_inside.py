"""vram in a container with its own PIDs: what it does there, and what it says of what it cannot see."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from typing import Any

import pytest

from tests.needs import skip_without
from tests.reach.conftest import CACHED, SUBJECT, World, world
from vram.errors import ExitCode

__all__ = ["world"]

SEPARATE = ("--pid", "--net", "--ipc", "--uts", "--fork", "--mount-proc", "--kill-child")
WORDS = ("trim", "inside", "why", "park", "unpark")

# The first process there: it starts a program and asks vram about it, and about a process that is not there.
FIRST = f"""
import json, subprocess, sys
pipes = dict(stdin=subprocess.PIPE, stdout=subprocess.PIPE)
program = subprocess.Popen([sys.executable, {str(SUBJECT)!r}, "{CACHED}", "reading"], **pipes)
program.stdout.readline()
def vram(*words):
    done = subprocess.run([sys.executable, "-m", "vram", *words], capture_output=True, text=True)
    return done.returncode, done.stderr
codes = [vram(word, str(program.pid))[0] for word in {WORDS!r}]
program.stdin.write(b"\\n")
program.stdin.flush()
alive = b"alive" in program.stdout.readline()
print(json.dumps([codes, alive, vram("trim", sys.argv[1])]), flush=True)
program.kill()
"""


@pytest.mark.parametrize("own", [(), ("--user", "--map-root-user")], ids=["as root", "in a user namespace"])
def test_a_container_acts_on_its_own_and_sees_no_others(world: World, own: tuple[str, ...]) -> None:
    enter = ["unshare", *own, *SEPARATE]
    if not shutil.which("unshare") or subprocess.run([*enter, "true"], capture_output=True).returncode:
        skip_without("namespaces", "no such namespace may be made here")
    command = [*enter, sys.executable, "-c", FIRST, str(os.getpid())]
    done = subprocess.run(command, env=world.environment, capture_output=True, text=True)
    assert done.stdout, done.stderr
    codes, alive, outsider = json.loads(done.stdout)
    assert codes == [ExitCode.OK] * len(WORDS)
    assert alive
    assert _is_unknown(outsider)


def _is_unknown(answer: Any) -> bool:
    code, said = answer
    return bool(code != ExitCode.OK and "there is no process" in said)
