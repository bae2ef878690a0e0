"""``vram serve status``: how the service is, its policies and what they decided last."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

from vram.cli.serve_clients import add_socket_argument
from vram.cli.terminal import emit
from vram.errors import ExitCode

HELP = "how the service is, its policies, and what they decided"
_DECISIONS = 10


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="one JSON object instead of text")
    add_socket_argument(parser)


def run(args: Namespace) -> int:
    from vram.serve.socket.client import ServeClient

    with ServeClient(args.socket) as client:
        data = client.data("status", timeout_s=10.0)
    if args.json:
        from vram.report.escape import json_inert

        emit(json_inert(data) + b"\n")
        return ExitCode.OK
    from vram.report.service import ServiceStatus, status
    from vram.untrusted import decode

    emit(status(decode(data, ServiceStatus), _DECISIONS))
    return ExitCode.OK
