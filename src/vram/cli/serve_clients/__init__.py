"""``vram serve status|free|allow-park``: ask a running service, over its socket."""

from __future__ import annotations

import argparse
from argparse import ArgumentParser


def add_socket_argument(parser: ArgumentParser) -> None:
    parser.add_argument(
        "--socket",
        default=argparse.SUPPRESS,  # so that it may also stand before the word
        metavar="PATH",
        help="the socket of the service (default: /run/vram/vram.sock, then your own)",
    )
