"""A process that judges snapshots for :mod:`vram.fleet.judges`: requests on stdin, nodes on stdout.

One JSON object a line. Memory is limited by the kernel and time by the process that asks, so that a snapshot
made to be expensive costs this process, and its node becomes a line.
"""

from __future__ import annotations

import resource
import sys

import msgspec

from vram import untrusted
from vram.fleet.judge import MAX_SNAPSHOT_BYTES, JudgeRequest, judge_snapshot, rejected
from vram.model.fleet import FleetNode, NodeCode
from vram.report.json import encode

_MAX_MEMORY = 2 << 30


def main() -> None:
    resource.setrlimit(resource.RLIMIT_AS, (_MAX_MEMORY, _MAX_MEMORY))
    for line in sys.stdin.buffer:
        node = _judge(msgspec.json.decode(line, type=JudgeRequest))
        sys.stdout.buffer.write(encode(node, compact=True))
        sys.stdout.buffer.flush()


def _judge(asked: JudgeRequest) -> FleetNode:
    try:
        data = untrusted.read_file(asked.path, nbytes=MAX_SNAPSHOT_BYTES, follow=True)
    except untrusted.Rejected as error:
        code: NodeCode = "too-large" if error.code == "too-large" else "unreachable"
        return rejected(asked.name, code, f"its snapshot cannot be read: {error}")
    try:
        return judge_snapshot(data, asked)
    except MemoryError:
        return rejected(asked.name, "not-judged", "judging its snapshot takes too much memory")
    except Exception as error:  # whatever it made us stumble over, the other nodes are judged
        return rejected(asked.name, "bad-snapshot", f"it cannot be judged: {type(error).__name__}")
