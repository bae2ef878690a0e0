"""One channel to a Jupyter kernel: signed messages over ZeroMQ (messaging protocol 5).

jupyter_client speaks it too; importing that takes longer than the whole visit (160 ms), and
everybody who has a kernel has ZeroMQ.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import time
from datetime import UTC, datetime
from typing import Any

from vram import untrusted
from vram.errors import TimedOut
from vram.reach.request import LONGEST_ANSWER, MOST_ITEMS

_DELIMITER = b"<IDS|MSG>"
_PROTOCOL = "5.3"
# Closing waits so long for what was sent last: a kernel that is no more must not hold us up.
_LINGER_MS = 500


class Wire:
    """Asks on one channel, and listens for answers that carry the right signature."""

    def __init__(self, connection: dict[str, Any], channel: str, until: float, session: str) -> None:
        import zmq

        self._key = str(connection["key"]).encode()
        self._digest = str(connection["signature_scheme"]).removeprefix("hmac-")
        self._until = until
        self._session = session
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.DEALER)
        self._socket.setsockopt(zmq.LINGER, _LINGER_MS)
        self._socket.setsockopt(zmq.MAXMSGSIZE, LONGEST_ANSWER)
        ip = str(connection["ip"])
        if ":" in ip:
            self._socket.setsockopt(zmq.IPV6, 1)
            ip = f"[{ip}]"
        self._socket.connect(f"tcp://{ip}:{int(connection[f'{channel}_port'])}")

    def close(self) -> None:
        self._socket.close()
        self._context.term()

    def ask(self, kind: str, content: dict[str, Any], **header: str) -> dict[str, Any]:
        """The content of the answer. Raises TimedOut."""
        number = self.send(kind, content, **header)
        while (left := self._until - time.monotonic()) > 0 and self._socket.poll(int(left * 1000)):
            parent, told = self._received(self._socket.recv_multipart())
            if parent.get("msg_id") == number:
                return told
        raise TimedOut(
            "the kernel did not answer in time; what was asked of it is called off",
            hint="it is busy with a cell: --deadline gives it longer; ipykernel 7 answers meanwhile",
        )

    def send(self, kind: str, content: dict[str, Any], **header: str) -> str:
        number = os.urandom(16).hex()
        whole = {
            "msg_id": number,
            "msg_type": kind,
            "session": self._session,
            "username": "vram",
            "date": datetime.now(UTC).isoformat(),
            "version": _PROTOCOL,
            **header,
        }
        parts = [json.dumps(part).encode() for part in (whole, {}, {}, content)]
        self._socket.send_multipart([_DELIMITER, self._signature(parts), *parts])
        return number

    def _received(self, frames: list[bytes]) -> tuple[dict[str, Any], dict[str, Any]]:
        """Parent header and content; empty where somebody answers who does not know the key, or nonsense."""
        at = frames.index(_DELIMITER) if _DELIMITER in frames else len(frames)
        signature, parts = frames[at + 1 : at + 2], frames[at + 2 : at + 6]
        if len(parts) < 4 or not hmac.compare_digest(signature[0], self._signature(parts)):
            return {}, {}
        try:
            parent, content = (
                untrusted.decode(parts[at], dict[str, Any], most_items=MOST_ITEMS) for at in (1, 3)
            )
        except untrusted.Rejected:
            return {}, {}
        return parent, content

    def _signature(self, parts: list[bytes]) -> bytes:
        signer = hmac.new(self._key, digestmod=getattr(hashlib, self._digest))
        for part in parts:
            signer.update(part)
        return signer.hexdigest().encode()
