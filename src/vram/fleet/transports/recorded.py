"""Nodes that were recorded: a folder with one snapshot a node, as `vram snapshot -o NODE.json` writes it.

A user who can write to the folder could put a link to another user's file there: see `files.open_given`.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

from vram.errors import UsageError
from vram.files import open_given
from vram.fleet.transport import NodeAddress, NodeFailed

_SUFFIX = ".json"
_MAX_FILES = 100_000


class RecordedNodes:
    """The snapshots of a folder. Nothing can be run on them."""

    source = "recorded"

    def __init__(self, folder: str) -> None:
        self._folder = folder

    def nodes(self) -> tuple[NodeAddress, ...]:
        """A node for each file NODE.json; other files and hidden ones are not meant."""
        try:
            names = [entry.name for entry in os.scandir(self._folder)]
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or str(error)
            hint = "--from takes a folder with one snapshot a node: `vram snapshot -o FOLDER/NODE.json`"
            raise UsageError(f"cannot read {self._folder}: {reason}", hint=hint) from error
        names = [name for name in names if name.endswith(_SUFFIX) and not name.startswith(".")]
        if not names:
            hint = "write one with `vram snapshot -o FOLDER/NODE.json`"
            raise UsageError(f"{self._folder} has no snapshot (NODE{_SUFFIX})", hint=hint)
        if len(names) > _MAX_FILES:
            raise UsageError(f"{self._folder} has {len(names):,} snapshots; {_MAX_FILES:,} are the most")
        return tuple(_node(self._folder, name) for name in sorted(names))

    @contextmanager
    def opened(self, node: NodeAddress) -> Iterator[str]:
        """A path under which a child of ours can read the snapshot of *node*. Raises NodeFailed."""
        try:
            file = open_given(node.address)
        except (OSError, ValueError) as error:  # ValueError: a zero byte in the path
            reason = getattr(error, "strerror", None) or str(error)
            raise NodeFailed("unreachable", f"its snapshot cannot be read: {reason}") from error
        try:
            yield f"/proc/{os.getpid()}/fd/{file}"
        finally:
            os.close(file)

    def cancel(self) -> None:
        """Nothing runs that could be ended."""

    def close(self) -> None:
        """Nothing is held between two readings."""


def _node(folder: str, name: str) -> NodeAddress:
    node, path = name.removesuffix(_SUFFIX), os.path.join(folder, name)
    try:
        path.encode()
    except UnicodeEncodeError:
        # Bytes that are no text: every place that shows or keeps the name would need an exception.
        shown = os.fsencode(node).decode(errors="backslashreplace")
        return NodeAddress(shown, "", gone="its file name is not UTF-8")
    return NodeAddress(node, path)
