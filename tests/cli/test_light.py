"""msgspec and argparse without what they bring along: nothing of it is loaded, and nothing is missed."""

from __future__ import annotations

import subprocess
import sys

import pytest

LEFT_OUT = ("decimal", "gettext", "msgspec.inspect", "msgspec.toml", "msgspec.yaml", "platform", "uuid")


START = "import sys\nfrom vram.cli.light import import_lightly\nimport_lightly()\n"


def told(program: str, *options: str) -> str:
    command = [sys.executable, *options, "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_none_of_it_is_loaded() -> None:
    """Real modules have a file. A virtual environment may load some of them first: it is left out."""
    path = f"import sys; sys.path[:] = {sys.path!r}\n"
    look = f"print([name for name in {LEFT_OUT} if hasattr(sys.modules.get(name), '__file__')])"
    assert told(path + START + look, "-I", "-S") == "[]"


@pytest.mark.parametrize("name", [*LEFT_OUT, "datetime", "textwrap"])
def test_whoever_imports_one_afterwards_gets_it(name: str) -> None:
    assert told(START + f"import importlib; print(importlib.import_module({name!r}).__spec__.name)") == name


def test_msgspec_finds_what_it_left_out() -> None:
    assert told(START + "import msgspec; print(type(msgspec.inspect.type_info(int)).__name__)") == "IntType"
    assert told(START + "import msgspec; print(msgspec.json.schema(int))") == "{'type': 'integer'}"


def test_the_time_is_the_same() -> None:
    program = (
        "import msgspec, datetime\n"
        "moment = msgspec.json.decode(b'\"2026-01-02T03:04:05Z\"', type=datetime.datetime)\n"
        "print(moment.isoformat(), moment.strftime('%Y'), isinstance(moment, datetime.datetime))"
    )
    assert told(START + program) == "2026-01-02T03:04:05+00:00 2026 True"


def test_argparse_still_helps() -> None:
    program = "import argparse; argparse.ArgumentParser(prog='x').print_help()"
    assert told(START + program).startswith("usage: x [-h]")
