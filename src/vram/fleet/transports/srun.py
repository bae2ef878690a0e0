"""The nodes of a Slurm allocation: a step of one task on each, beside whatever the job runs there."""

from __future__ import annotations

import os
import re
import shutil
import time
from collections.abc import Sequence

from vram.errors import UsageError, VramError
from vram.fleet.programs import Programs
from vram.fleet.transport import CommandResult, NodeAddress, NodeFailed

_NAME = r"[A-Za-z0-9_][A-Za-z0-9._-]{0,252}"
_LISTED = re.compile(rf"^NodeName=({_NAME}) .*?\bNodeHostName=({_NAME})(?: |$)", re.ASCII | re.MULTILINE)
_LIST_S = 30.0
_MAX_LIST = 64 << 20
_NOT_FOUND = 127
_JOB, _NODES = "SLURM_JOB_ID", "SLURM_JOB_NODELIST"


class SrunNodes:
    """The nodes of the job that this command runs in. *vram* is the command there, as words."""

    source = "srun"

    def __init__(self, *, vram: Sequence[str] = ("vram",), options: Sequence[str] = ()) -> None:
        if not os.environ.get(_JOB) or not os.environ.get(_NODES):
            raise UsageError(
                "--srun works inside a Slurm allocation, and this is none",
                hint="salloc -N 4 --exclusive vram fleet --srun, or put it into a batch script",
            )
        self._srun, self._scontrol = _tool("srun"), _tool("scontrol")
        self._vram, self._options = tuple(vram), tuple(options)
        self._programs = Programs()

    def nodes(self) -> tuple[NodeAddress, ...]:
        """The nodes of the job; a node's name in Slurm need not be its host name."""
        argv = [self._scontrol, "--oneliner", "show", "node", os.environ[_NODES]]
        try:
            listed = self._programs.run(argv, until=time.monotonic() + _LIST_S, nbytes=_MAX_LIST)
        except NodeFailed as error:
            raise VramError(f"scontrol does not name the nodes of the job: {error}") from error
        found = _LISTED.findall(listed.output.decode(errors="replace"))
        if listed.status or not found:
            raise VramError(f"scontrol does not name the nodes of the job: {listed.last_words}")
        return tuple(NodeAddress(name, name, (name, host)) for name, host in found)

    def run(
        self, node: NodeAddress, words: Sequence[str], *, until: float, nbytes: int = 1 << 20
    ) -> CommandResult:
        argv = [
            self._srun,
            *("--overlap", "--ntasks-per-node=1", "--nodes=1", "--ntasks=1", "--cpu-bind=none"),
            *("--quiet", "--unbuffered", "--input=none", f"--nodelist={node.address}"),
            *self._options,
            "--",
            *self._vram,
            *words,
        ]
        result = self._programs.run(argv, until=until, nbytes=nbytes)
        if result.status == _NOT_FOUND or (result.status and not result.output and _no_file(result)):
            raise NodeFailed("no-vram", f"{self._vram[0]} is not found there")
        return result

    def cancel(self) -> None:
        self._programs.cancel()

    def close(self) -> None:
        self._programs.close()


def _no_file(result: CommandResult) -> bool:
    """slurmstepd's own words for a command that is not there; its exit status is that of many errors."""
    return b"execve()" in result.errors and b"No such file" in result.errors


def _tool(name: str) -> str:
    path = shutil.which(name)
    if path is None:
        raise UsageError(f"{name} is not installed here", hint="--srun needs Slurm's client programs")
    return path
