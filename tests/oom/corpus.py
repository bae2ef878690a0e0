"""The messages that the tests read: a file for each family in ``corpus/``, a section for each message.

    === NAME
    dialect = "pytorch"
    kind = "too-large"
    --- message
    the log, as it was written, up to the next section

What is expected stands above the message as TOML: its dialect and kind, and whatever else it must be read as.
``source`` is where its wording was found; names, paths and most lines were left out.
A message ends with a newline unless ``newline_at_end`` is false. To add one, append a section.
"""

from __future__ import annotations

import io
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from vram.model.oom import Case
from vram.oom.cases import cases
from vram.oom.reader import find_messages

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

FOLDER = Path(__file__).parent / "corpus"
_SECTION = re.compile(rb"^=== (\S+)\n(.*?)^--- message\n(.*?)(?=^=== \S+\n|\Z)", re.MULTILINE | re.DOTALL)


class Message(NamedTuple):
    """One message, and what it is to be read as."""

    name: str
    log: bytes
    expected: dict[str, Any]

    def cases(self) -> tuple[Case, ...]:
        return cases(find_messages(io.BytesIO(self.log))).cases

    def case(self) -> Case:
        """Its only case."""
        found = self.cases()
        assert len(found) == 1, [each.reading for each in found]
        return found[0]


def _load() -> dict[str, Message]:
    found: dict[str, Message] = {}
    for path in sorted(FOLDER.glob("*.txt")):
        text = path.read_bytes()
        sections = _SECTION.findall(text)
        assert len(sections) == len(re.findall(rb"^=== ", text, re.MULTILINE)), path.name
        for raw_name, raw_expected, log in sections:
            name, expected = raw_name.decode(), tomllib.loads(raw_expected.decode())
            assert name not in found, name
            whole = log if expected.pop("newline_at_end", True) else log.removesuffix(b"\n")
            found[name] = Message(name, whole, expected)
    return found


MESSAGES = _load()


def hold_for_all(check: Callable[[Message], None]) -> None:
    """Hold *check* for every message; all that fail it are listed."""
    failing = []
    for message in MESSAGES.values():
        try:
            check(message)
        except AssertionError as error:
            failing.append(f"{message.name}: {error}")
    assert not failing, "\n".join([f"{len(failing)} of {len(MESSAGES)} messages:", *failing])
