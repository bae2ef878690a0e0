"""What is shipped for slurm.conf is what it says: scripts that run, with options that exist."""

from __future__ import annotations

import os
import subprocess

import pytest

from tests.slurm.cluster import HOOKS
from tests.slurm.conftest import DEPLOY, example_conf
from vram.cli.arguments import Parser
from vram.cli.commands import slurm


@pytest.mark.parametrize("key", HOOKS)
def test_a_script_calls_its_hook_by_whole_paths(key: str) -> None:
    """slurmd sets no PATH, and takes a program without arguments."""
    name = os.path.basename(example_conf()[key])
    script = DEPLOY / name
    assert os.access(script, os.X_OK)
    subprocess.run(["sh", "-n", script], check=True)
    (line,) = [line for line in script.read_text().splitlines() if line and not line.startswith("#")]
    command, path, *words = line.split()
    assert (command, path, words[:2]) == ("exec", "/usr/bin/vram", ["slurm", HOOKS[key]])
    parser = Parser(prog="vram slurm")
    slurm.add_arguments(parser)
    assert parser.parse_args(words[1:]).hook == HOOKS[key]
