"""Kubernetes events on pods and nodes: leftovers, unexplained memory, lost GPUs. Off by default.

As the kubelet does, what happens again to the same object is counted in the event that is there: one event
for an object, a reason and a GPU. Requests are few: a burst, then one a minute; what waits meanwhile is
counted together. An event names no command and no user: many may read events.
"""

from __future__ import annotations

import asyncio
import os
import re
import zlib
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, NamedTuple

from msgspec import Struct

from vram.errors import ConfigError
from vram.model.change import Change, Event
from vram.model.moment import Moment
from vram.serve.config import KubernetesConfig, ServeConfig
from vram.serve.part import PartHealth, ServicePart, counter
from vram.serve.state import Reading
from vram.units import size

if TYPE_CHECKING:
    from prometheus_client.core import Metric

    from vram.serve.kubernetes_api import ApiAnswer, ClusterApi
    from vram.serve.service import Service

BURST, REFILL_S = 25, 60.0
FORGET_S = 3600.0
"""The cluster deletes an event an hour after its last change: a later one begins anew."""
MAX_KNOWN = 500
FIRST_PAUSE_S, MAX_PAUSE_S = 2.0, 300.0
MAX_REFUSALS = 10
COMPONENT = "vram"

REASONS: dict[Event, str] = {
    "ghost": "GpuMemoryLeftover",
    "unattributed": "GpuMemoryUnexplained",
    "gpu-lost": "GpuLost",
}
_NAME = r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?"  # of pods and nodes
_NAMESPACE = r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?"
_UID = r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}"


class InvolvedObject(NamedTuple):
    """What an event is about: a pod, or the node."""

    kind: str
    name: str
    namespace: str = ""
    uid: str = ""

    @property
    def events_namespace(self) -> str:
        """Events about nodes lie where those of the kubelet do."""
        return self.namespace or "default"

    def fields(self) -> dict[str, str]:
        said = {"kind": self.kind, "name": self.name, "namespace": self.namespace, "uid": self.uid}
        return {"apiVersion": "v1", **{key: value for key, value in said.items() if value}}


class EventKey(NamedTuple):
    about: InvolvedObject
    reason: str
    gpus: tuple[int, ...]


class _Known(Struct, eq=False):
    """One event: how often it was told, and how much of that the cluster knows."""

    name: str
    message: str
    first: Moment
    last: Moment
    count: int = 1
    sent: int = 0
    failures: int = 0
    is_created: bool = False


class EventLedger:
    """Which events there are, and what of them has not been sent: pure, so that it can be tested."""

    def __init__(self, node: str) -> None:
        self.node = node
        self.known: dict[EventKey, _Known] = {}
        self.dropped = 0
        self._tokens = float(BURST)
        self._filled: Moment | None = None

    def note(self, changes: Iterable[Change], now: Moment) -> None:
        """Take what changed; what is not worth an event is left out."""
        for key in [key for key, each in self.known.items() if now.since(each.last) > FORGET_S]:
            if self.known[key].sent == self.known[key].count:
                del self.known[key]
        for change in changes:
            if reason := REASONS.get(change.event):
                self._add(EventKey(about(change, self.node), reason, change.gpus), message(change), now)

    def _add(self, key: EventKey, text: str, now: Moment) -> None:
        known = self.known.get(key)
        if known is not None:
            known.count, known.message, known.last = known.count + 1, text, now
        elif len(self.known) >= MAX_KNOWN:
            self.dropped += 1
        else:
            self.known[key] = _Known(_event_name(key, now), text, now, now)

    def next(self) -> EventKey | None:
        """The event whose request comes next: those that failed let the others go first."""
        waiting = [
            (each.failures, each.first.boot, key)
            for key, each in self.known.items()
            if each.sent < each.count
        ]
        return min(waiting)[2] if waiting else None

    def wait_s(self, now: Moment) -> float:
        """How long the next request must wait; counts it as sent where that is zero."""
        if self._filled is not None:
            self._tokens = min(float(BURST), self._tokens + now.since(self._filled) / REFILL_S)
        self._filled = now
        if self._tokens < 1.0:
            return (1.0 - self._tokens) * REFILL_S
        self._tokens -= 1.0
        return 0.0

    def created(self, key: EventKey) -> dict[str, Any]:
        """The body of an event that is not there yet."""
        known = self.known[key]
        namespace = key.about.events_namespace
        return {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"name": known.name, "namespace": namespace},
            "involvedObject": key.about.fields(),
            "reason": key.reason,
            "type": "Warning",
            "source": {"component": COMPONENT, "host": self.node},
            "reportingComponent": COMPONENT,
            "reportingInstance": self.node,
            "firstTimestamp": known.first.text,
            **self.patch(key),
        }

    def patch(self, key: EventKey) -> dict[str, Any]:
        """What changes in an event that happens again."""
        known = self.known[key]
        return {"message": known.message, "count": known.count, "lastTimestamp": known.last.text}


class KubernetesPart(ServicePart):
    """Sends in the background: a reading never waits for the cluster."""

    name = "kubernetes"

    def __init__(self, service: Service) -> None:
        self._service = service
        self._config = KubernetesConfig()
        self._api: ClusterApi | None = None
        self._ledger: EventLedger | None = None
        self._sender: asyncio.Task[None] | None = None
        self._wake = asyncio.Event()
        self._sent = self._failed = 0
        self._error = ""

    async def start(self) -> None:
        self._begin(self._service.config.kubernetes)

    def _begin(self, config: KubernetesConfig) -> None:
        self._config = config
        if not config.events:
            return
        node = config.node or os.environ.get("NODE_NAME", "")
        if not re.fullmatch(_NAME, node):
            raise ConfigError(
                "kubernetes.events is on, and the node has no name",
                hint="set NODE_NAME from spec.nodeName in the pod, or kubernetes.node",
            )
        from vram.serve.kubernetes_api import ClusterApi  # TLS is loaded only where it is used

        self._api = ClusterApi.of_this_pod(config.account)
        self._ledger = EventLedger(node)
        self._sender = asyncio.create_task(self._send_on())

    async def reload(self, config: ServeConfig) -> None:
        if config.kubernetes != self._config:
            await self.close()
            self._begin(config.kubernetes)

    async def close(self) -> None:
        sender, self._sender, self._ledger, self._error = self._sender, None, None, ""
        if sender is not None:
            sender.cancel()
            await asyncio.gather(sender, return_exceptions=True)

    async def on_reading(self, reading: Reading) -> None:
        if self._ledger is not None and reading.changes:
            self._ledger.note(reading.changes, reading.moment)
            self._wake.set()

    def health(self) -> PartHealth:
        if self._sender is not None and self._sender.done():
            return PartHealth("failed", "events are sent no more: start the service again")
        return PartHealth("degraded", self._error) if self._error else PartHealth()

    def metrics(self) -> Iterable[Metric]:
        if self._ledger is None:
            return
        what = "Kubernetes events: requests that were taken, requests that failed, events dropped."
        results = {"sent": self._sent, "failed": self._failed, "dropped": self._ledger.dropped}
        yield counter("vram_kubernetes_events", what, results.items(), "result")

    # ---- sending ----

    async def _send_on(self) -> None:
        ledger, pause_s = self._ledger, FIRST_PAUSE_S
        assert ledger is not None
        clock = self._service.clock
        while True:
            key = ledger.next()
            if key is None:
                await self._wake.wait()
                self._wake.clear()
                continue
            if wait_s := ledger.wait_s(clock.now()):
                await clock.sleep(wait_s)
                continue
            asked_s = await self._send(ledger, key)
            if not self._error:
                pause_s = FIRST_PAUSE_S
                continue
            await clock.sleep(min(MAX_PAUSE_S, max(pause_s, asked_s)))
            pause_s = min(MAX_PAUSE_S, 2 * pause_s)

    async def _send(self, ledger: EventLedger, key: EventKey) -> float:
        """Send what is new of one event; returns how long the server wants us to wait."""
        from vram.serve.kubernetes_api import ApiUnreachable

        known = ledger.known[key]
        count, path = known.count, f"/api/v1/namespaces/{key.about.events_namespace}/events"
        try:
            answer = await self._request(ledger, key, path)
        except ApiUnreachable as error:
            self._note_failure(f"the cluster's API server cannot be reached: {error}")
            return 0.0
        if answer.status == 404 and known.is_created:
            known.is_created = False  # the cluster has deleted it: the next request makes it anew
            return 0.0
        if answer.status == 409 and not known.is_created:
            known.is_created = True
            return 0.0
        if answer.status < 300:
            known.is_created, known.sent, known.failures = True, count, 0
            self._sent += 1
            self._error = ""
            return 0.0
        known.failures += 1
        if answer.status in (400, 404, 413, 422) or known.failures >= MAX_REFUSALS:
            # About this event alone: its namespace is gone, say. It is not sent again.
            known.sent, known.failures = count, 0
        self._note_failure(f"the cluster refuses an event: {answer.status} {answer.message}")
        return answer.wait_s

    async def _request(self, ledger: EventLedger, key: EventKey, path: str) -> ApiAnswer:
        assert self._api is not None
        known = ledger.known[key]
        if known.is_created:
            return await self._api.send("PATCH", f"{path}/{known.name}", ledger.patch(key))
        return await self._api.send("POST", path, ledger.created(key))

    def _note_failure(self, sentence: str) -> None:
        self._failed += 1
        if sentence != self._error:
            self._service.log.error(f"{self.name}: {sentence}")
        self._error = sentence


# ---- what an event says ----


def about(change: Change, node: str) -> InvolvedObject:
    """The pod of the holder, where the container's runtime names it; otherwise the node.

    A pod's name that a process says of itself has no namespace: it never becomes the object of an event.
    """
    namespace, _, name = (change.workload.pod_name or "").partition("/")
    if re.fullmatch(_NAMESPACE, namespace) and re.fullmatch(_NAME, name):
        uid = change.workload.pod or ""
        # A static pod's number is the kubelet's; the API knows another one.
        return InvolvedObject("Pod", name, namespace, uid if re.fullmatch(_UID, uid) else "")
    return InvolvedObject("Node", node, uid=node)


def message(change: Change) -> str:
    """One sentence of numbers; nothing in it was chosen by a process."""
    gpus = ", ".join(map(str, change.gpus))
    where = f"GPU {gpus}" if len(change.gpus) == 1 else f"GPUs {gpus}"
    if change.event == "gpu-lost":
        return f"{where}: the driver has lost it. The node needs a reset of the GPU, or a reboot."
    held = change.held_bytes if change.held_bytes is not None else change.nbytes
    amount = "memory of unknown size" if held is None else size(held)
    if change.event == "unattributed":
        return f"{where}: {amount} in use, and nothing visible accounts for it (VR106)."
    dead = f"pid {change.dead_pid}" if change.dead_pid is not None else "a process"
    holder = f"pid {change.pid}" if change.pid is not None else "no visible process"
    code = f" ({change.code})" if change.code else ""
    return f"{where}: {amount} of {dead}, which has ended, still held by {holder}{code}."


def _event_name(key: EventKey, now: Moment) -> str:
    """Unique for the object, as the kubelet's are: another start of the service writes another event."""
    number = zlib.crc32(repr(key).encode())
    return f"{key.about.name[:220].rstrip('-.')}.{number:08x}{int(now.wall * 1000) & 0xFFFFFFFFFF:010x}"
