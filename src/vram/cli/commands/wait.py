"""``vram wait``: wait until a GPU has room, then run a command there.

vram wait 20GiB -- python train.py
CUDA_VISIBLE_DEVICES=$(vram wait 20GiB --timeout 1h) ./evaluate
"""

from __future__ import annotations

import os
from argparse import Namespace
from typing import TYPE_CHECKING

import msgspec

from vram.cli.arguments import Parser, add_socket_argument, gpu_numbers
from vram.cli.terminal import emit, say
from vram.errors import ExitCode, TimedOut
from vram.units import size, spell_duration

if TYPE_CHECKING:
    from vram.serve.socket.client import ServeClient

HELP = "wait until a GPU has room, then run a command on it; asks `vram serve`"
_EPILOG = """\
The service of this machine (`vram serve`) keeps the queue. While somebody waits, its
policy park-idle may park idle processes whose owners allow it. With a command, the room counts
as in use until the command has ended; CUDA_VISIBLE_DEVICES names its GPU, unless it is set
already. Without a command, the number of the GPU is printed."""
_VISIBLE = "CUDA_VISIBLE_DEVICES"


def add_arguments(parser: Parser) -> None:
    parser.usage = "vram wait [--gpu N[,N...]] [--timeout DURATION] SIZE [-- COMMAND ...]"
    parser.epilog = _EPILOG
    parser.add_size("size", help="how much room, e.g. 20GiB")
    parser.add_argument("--gpu", action="append", metavar="N[,N...]", help="on one of these (repeatable)")
    parser.add_duration("--timeout", help="give up after this time (exit code 21)")
    add_socket_argument(parser)


class Room(msgspec.Struct, frozen=True):
    """Where there is room."""

    gpu: int
    free_bytes: int
    uuid: str | None = None


def run(args: Namespace) -> int:
    from vram.serve.socket.client import ServeClient

    with ServeClient(getattr(args, "socket", None)) as client:
        room = _room(client, args)
        say(f"{size(room.free_bytes)} free on GPU {room.gpu}")
        if not args.command:
            emit(f"{room.gpu}\n")
            return ExitCode.OK
        from vram.virtualgpu import launch

        variables = dict(os.environ)
        variables.setdefault(_VISIBLE, room.uuid or str(room.gpu))
        # The connection stays open for as long as the command runs: so long the room is in use.
        with launch.signals_held() as mask:
            return launch.run(args.command, variables, mask)


def _room(client: ServeClient, args: Namespace) -> Room:
    from vram.untrusted import decode

    gpus = sorted(gpu_numbers(args.gpu or []))
    try:
        for answer in client.ask("wait", timeout_s=args.timeout, nbytes=args.size, gpus=gpus):
            if answer.event == "room" and not isinstance(answer.data, msgspec.UnsetType):
                return decode(bytes(answer.data), Room)
    except TimedOut:
        raise TimedOut(
            f"no GPU had {size(args.size)} free within {spell_duration(args.timeout)}",
            hint="`vram who` shows who holds it",
        ) from None
    raise TimedOut("the service ended", hint="`vram serve status` shows whether there is one")
