"""Events that the service writes into a cluster: real HTTPS, bodies held by the API's own schemas."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.needs import needs
from tests.patience import PATIENCE_S, until_async
from tests.serve.running import RunningService
from vram.errors import ConfigError
from vram.model.change import Change
from vram.model.moment import Moment
from vram.model.process import Workload
from vram.serve import kubernetes_part
from vram.serve.config import KubernetesConfig, ServeConfig, places
from vram.serve.kubernetes_part import (
    BURST,
    FORGET_S,
    MAX_KNOWN,
    REFILL_S,
    EventLedger,
    KubernetesPart,
)
from vram.serve.service import Service
from vram.serve.state import Reading
from vram.units import GIB
from vram.virtualgpu import VirtualGpu
from vram.virtualgpu.demos import DemoProgram

pytestmark = [
    needs("kubernetes_validate"),
    needs("openssl"),
]

UID = "9f3b1e2c-7a55-4c0d-8f6e-0123456789ab"
POD = Workload(pod=UID, pod_name="ml/trainer-0")


@pytest.fixture
def api(tmp_path: Path) -> Iterator[Any]:
    from tests.deploy.api_server import ApiServer

    folder = tmp_path / "account"
    folder.mkdir()
    with ApiServer(folder) as server:
        yield server


class SteppedClock:
    """A clock that goes on only where somebody sleeps; ``slept`` has how long."""

    def __init__(self) -> None:
        self.slept: list[float] = []
        self._now = 1000.0

    def now(self) -> Moment:
        return Moment(1.8e9 + self._now, self._now, "boot")

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self._now += seconds
        await asyncio.sleep(0)


def ghost(number: int = 1, gpu: int = 0, workload: Workload = POD, **more: Any) -> Change:
    values = {
        "pid": 100 + number,
        "dead_pid": 50,
        "held_bytes": number * GIB,
        "code": "VR101",
        "kind": "orphaned",
    }
    return Change(at="", event="ghost", gpus=(gpu,), workload=workload, **{**values, **more})


class Driver:
    """The part as the service has it, in this process: changes go in, requests come out."""

    def __init__(self, part: KubernetesPart, clock: SteppedClock) -> None:
        self.part, self.clock = part, clock

    async def read(self, *changes: Change) -> None:
        reading = Reading(moment=self.clock.now(), ledger=None, findings=(), changes=changes)
        await self.part.on_reading(reading)

    async def until(self, what: Callable[[], Any]) -> None:
        await until_async(what)


def drive(
    api: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, story: Callable[[Driver], Awaitable[None]]
) -> Driver:
    """Let *story* happen to a started part."""
    for name, value in api.environment.items():
        monkeypatch.setenv(name, value)

    async def run() -> Driver:
        config = ServeConfig(kubernetes=KubernetesConfig(events=True, account=str(api.account)))
        clock = SteppedClock()
        part = KubernetesPart(Service(config, places(config, state=str(tmp_path / "state")), clock=clock))
        driver = Driver(part, clock)
        await part.start()
        try:
            await story(driver)
        finally:
            await part.close()
        return driver

    return asyncio.run(run())


# ---- what is written ----


def test_a_leftover_in_a_pod_is_an_event_on_that_pod(
    api: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story(driver: Driver) -> None:
        await driver.read(ghost(8))
        await driver.until(lambda: api.events)

    drive(api, tmp_path, monkeypatch, story)
    (event,) = api.events.values()
    assert event["involvedObject"] == {
        "apiVersion": "v1",
        "kind": "Pod",
        "namespace": "ml",
        "name": "trainer-0",
        "uid": UID,
    }
    assert event["metadata"]["namespace"] == "ml"
    assert (event["reason"], event["type"], event["count"]) == ("GpuMemoryLeftover", "Warning", 1)
    assert event["source"] == {"component": "vram", "host": "node-7"}
    assert event["message"] == ("GPU 0: 8.0 GiB of pid 50, which has ended, still held by pid 108 (VR101).")


@pytest.mark.parametrize(
    ("change", "reason", "message"),
    [
        (
            Change(at="", event="unattributed", gpus=(3,), held_bytes=2 * GIB),
            "GpuMemoryUnexplained",
            "GPU 3: 2.0 GiB in use, and nothing visible accounts for it (VR106).",
        ),
        (
            Change(at="", event="gpu-lost", gpus=(1,)),
            "GpuLost",
            "GPU 1: the driver has lost it. The node needs a reset of the GPU, or a reboot.",
        ),
        (
            ghost(4, workload=Workload(), pid=None, dead_pid=None, code=None),
            "GpuMemoryLeftover",
            "GPU 0: 4.0 GiB of a process, which has ended, still held by no visible process.",
        ),
    ],
)
def test_what_belongs_to_no_pod_is_an_event_on_the_node(
    api: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: Change, reason: str, message: str
) -> None:
    async def story(driver: Driver) -> None:
        await driver.read(change)
        await driver.until(lambda: api.events)

    drive(api, tmp_path, monkeypatch, story)
    ((namespace, _), event) = next(iter(api.events.items()))
    assert namespace == "default"
    assert event["involvedObject"] == {"apiVersion": "v1", "kind": "Node", "name": "node-7", "uid": "node-7"}
    assert (event["reason"], event["message"]) == (reason, message)


def test_other_changes_are_no_events(api: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(driver: Driver) -> None:
        await driver.read(
            Change(at="", event="started", gpus=(0,), pid=7, held_bytes=GIB),
            Change(at="", event="ghost-gone", gpus=(0,), pid=7),
        )
        await driver.read(ghost())
        await driver.until(lambda: api.events)

    drive(api, tmp_path, monkeypatch, story)
    assert [method for method, _, _ in api.requests] == ["POST"]


@pytest.mark.parametrize(
    "name",
    [
        "trainer-0",  # the process's own word: it has no namespace
        "kube-system/../../../../api/v1/secrets",
        "ml/trainer 0",
        "ml/Trainer",
        "/trainer-0",
        "ml/",
        "a/b/c",
        "x" * 64 + "/trainer-0",
    ],
)
def test_a_name_that_the_runtime_cannot_have_written_is_no_object(name: str) -> None:
    found = kubernetes_part.about(ghost(workload=Workload(pod=UID, pod_name=name)), "node-7")
    assert (found.kind, found.name) == ("Node", "node-7")


def test_a_static_pods_number_is_not_the_api_s() -> None:
    found = kubernetes_part.about(ghost(workload=Workload(pod="a" * 32, pod_name="kube-system/x")), "node-7")
    assert (found.kind, found.uid) == ("Pod", "")


def test_no_event_has_a_command_or_a_user() -> None:
    change = ghost(user="mallory", command="python --password=secret\x1b[2J")
    ledger = EventLedger("node-7")
    ledger.note((change,), Moment(1.8e9, 1.0))
    key = ledger.next()
    assert key is not None
    body = json.dumps(ledger.created(key))
    assert "mallory" not in body
    assert "secret" not in body


# ---- how often ----


def test_what_happens_again_is_counted_in_the_same_event(
    api: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story(driver: Driver) -> None:
        for number in range(1, 4):
            await driver.read(ghost(number))
            await driver.until(lambda number=number: len(api.requests) == number)
        await driver.read(ghost(1, gpu=1))
        await driver.until(lambda: len(api.events) == 2)

    drive(api, tmp_path, monkeypatch, story)
    assert [method for method, _, _ in api.requests] == ["POST", "PATCH", "PATCH", "POST"]
    first, _ = api.events.values()
    assert first["count"] == 3
    assert "3.0 GiB" in first["message"]


def test_a_flood_becomes_few_requests(api: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A thousand leftovers of forty pods: a burst, then one a minute, and every one is counted."""
    floods = 25

    async def story(driver: Driver) -> None:
        for _ in range(floods):
            await driver.read(
                *(ghost(1, workload=Workload(pod=UID, pod_name=f"ml/trainer-{pod}")) for pod in range(40))
            )
        await driver.until(lambda: sum(each["count"] for each in api.events.values()) == 40 * floods)

    driver = drive(api, tmp_path, monkeypatch, story)
    assert len(api.requests) == 40
    # The burst went at once; each of the others waited for its minute.
    assert sum(driver.clock.slept) == pytest.approx((40 - BURST) * REFILL_S, rel=0.01)


def test_what_is_known_has_a_limit_and_is_forgotten() -> None:
    ledger = EventLedger("node-7")
    many = [ghost(1, workload=Workload(pod_name=f"ml/pod-{number}")) for number in range(MAX_KNOWN + 10)]
    ledger.note(many, Moment(1.8e9, 1.0))
    assert (len(ledger.known), ledger.dropped) == (MAX_KNOWN, 10)
    for known in ledger.known.values():
        known.sent = known.count
    ledger.note((), Moment(1.8e9, 2.0 + FORGET_S))
    assert not ledger.known


# ---- a cluster that does not want it ----


def test_an_event_that_the_cluster_deleted_is_made_anew(
    api: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story(driver: Driver) -> None:
        await driver.read(ghost(1))
        await driver.until(lambda: api.events)
        api.events.clear()
        await driver.read(ghost(2))
        await driver.until(lambda: api.events)

    drive(api, tmp_path, monkeypatch, story)
    assert [(method, status) for method, _, status in api.requests] == [
        ("POST", 201),
        ("PATCH", 404),
        ("POST", 201),
    ]


def test_a_namespace_that_ends_holds_up_nobody_else(
    api: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The API forbids events in a namespace that is being deleted, for as long as that takes."""
    api.refuse = lambda method, path: (403, {}) if "/ending/" in path else None

    async def story(driver: Driver) -> None:
        await driver.read(ghost(1, workload=Workload(pod=UID, pod_name="ending/trainer")))
        await driver.read(ghost(1))
        await driver.until(lambda: api.events)
        await driver.until(lambda: sum("/ending/" in path for _, path, _ in api.requests) == 10)
        await driver.read(ghost(2))
        await driver.until(lambda: next(iter(api.events.values()))["count"] == 2)

    drive(api, tmp_path, monkeypatch, story)
    assert sum("/ending/" in path for _, path, _ in api.requests) == kubernetes_part.MAX_REFUSALS


def test_a_server_that_asks_for_patience_gets_it(
    api: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refusals = iter([(429, {"Retry-After": "77"}), (503, {}), (500, {"Retry-After": "-1; x"})])
    api.refuse = lambda method, path: next(refusals, None)

    async def story(driver: Driver) -> None:
        await driver.read(ghost())
        await driver.until(lambda: api.events)

    driver = drive(api, tmp_path, monkeypatch, story)
    assert driver.clock.slept == [77.0, 4.0, 8.0]
    assert driver.part.health().status == "ok"


def test_a_token_that_is_replaced_is_read_again(
    api: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    right = (api.account / "token").read_text()
    (api.account / "token").write_text("an-old-one")

    async def story(driver: Driver) -> None:
        await driver.read(ghost())
        await driver.until(lambda: api.requests)
        await driver.until(lambda: driver.part.health().status == "degraded")
        (api.account / "token").write_text(right)
        await driver.until(lambda: api.events)

    drive(api, tmp_path, monkeypatch, story)
    assert api.requests[0][2] == 401


@pytest.mark.parametrize("token", ["", "a\nHost: elsewhere", "a b\0c", "x" * 100_000])
def test_a_token_that_is_none_is_never_sent(
    api: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, token: str
) -> None:
    (api.account / "token").write_text(token)

    async def story(driver: Driver) -> None:
        await driver.read(ghost())
        await driver.until(lambda: driver.part.health().status == "degraded")

    drive(api, tmp_path, monkeypatch, story)
    assert not api.requests


def test_a_server_of_another_authority_is_not_told_anything(
    api: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever answers in the API server's place has no certificate of the cluster: the token stays here."""
    from tests.deploy.api_server import make_certificate

    other = tmp_path / "other"
    other.mkdir()
    make_certificate(other)
    (api.account / "ca.crt").write_bytes((other / "ca.crt").read_bytes())

    async def story(driver: Driver) -> None:
        await driver.read(ghost())
        await driver.until(lambda: driver.part.health().status == "degraded")
        assert "CERTIFICATE_VERIFY_FAILED" in driver.part.health().message

    drive(api, tmp_path, monkeypatch, story)
    assert not api.requests


def test_a_server_that_never_answers_does_not_hold_up_the_end(
    api: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:

    async def hang(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    monkeypatch.setattr("vram.serve.kubernetes_api.REQUEST_S", 1e6)

    async def story(driver: Driver) -> None:
        server = await asyncio.start_server(hang, "127.0.0.1", 0)
        driver.part._api.port = server.sockets[0].getsockname()[1]  # type: ignore[union-attr]
        await driver.read(ghost())
        await driver.until(lambda: driver.part._ledger.next() is not None)  # type: ignore[union-attr]
        await asyncio.wait_for(driver.part.close(), PATIENCE_S)
        server.close()

    drive(api, tmp_path, monkeypatch, story)
    assert not api.requests


# ---- off, wrong, and in the service itself ----


@pytest.mark.parametrize(
    ("environment", "sentence"),
    [
        ({"NODE_NAME": "node-7"}, "KUBERNETES_SERVICE_HOST names no API server"),
        ({"NODE_NAME": "node-7", "KUBERNETES_SERVICE_HOST": "evil.example"}, "names no API server"),
        ({"KUBERNETES_SERVICE_HOST": "10.0.0.1"}, "the node has no name"),
        ({"KUBERNETES_SERVICE_HOST": "10.0.0.1", "NODE_NAME": "../x"}, "the node has no name"),
    ],
)
def test_outside_of_a_pod_it_is_an_error_with_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, environment: dict[str, str], sentence: str
) -> None:
    for name in ("KUBERNETES_SERVICE_HOST", "KUBERNETES_SERVICE_PORT", "NODE_NAME"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)

    async def start() -> None:
        config = ServeConfig(kubernetes=KubernetesConfig(events=True))
        await KubernetesPart(Service(config, places(config, state=str(tmp_path)))).start()

    with pytest.raises(ConfigError, match=sentence):
        asyncio.run(start())


def test_the_service_writes_an_event_for_a_real_leftover(
    api: Any, virtual_gpu: VirtualGpu, tmp_path: Path
) -> None:
    """And none where it is off: SIGHUP turns it on."""
    import signal

    config = tmp_path / "serve.toml"
    config.write_text("")
    with ExitStack() as stack:
        service = stack.enter_context(
            RunningService(tmp_path, virtual_gpu, "--config", str(config), environment=api.environment)
        )
        assert ("vram_kubernetes_events_total", "sent") not in service.metrics()
        config.write_text(f'[kubernetes]\nevents = true\naccount = "{api.account}"\n')
        service.send(signal.SIGHUP)
        service.until(lambda: ("vram_kubernetes_events_total", "sent") in service.metrics())
        assert not api.requests
        family = stack.enter_context(DemoProgram(virtual_gpu, "forks.orphan", 2 * GIB))
        parent, child = family.pids["parent"], family.pids["child"]
        family.kill("parent")
        service.until(lambda: api.events)
        (event,) = api.events.values()
        assert f"of pid {parent}, which has ended, still held by pid {child} (VR101)" in event["message"]
        assert event["involvedObject"]["kind"] == "Node"
        service.until(lambda: service.metrics()["vram_kubernetes_events_total", "sent"] == 1)
