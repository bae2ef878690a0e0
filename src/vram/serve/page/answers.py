"""What is answered at ``/`` and below ``/page/``: the page's files, and what it shows of the last reading.

A page asks for ``now.json`` at every interval: some hundred bytes, which say how old the last reading is and
which one it is. Only where that is another one than it shows, it asks for ``reading.json``. Both are made
while a page is open, and the reading once for each ledger.
"""

from __future__ import annotations

from asyncio import TimerHandle, get_running_loop
from collections.abc import Iterator, Mapping, Sequence
from hashlib import sha256
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple
from weakref import WeakKeyDictionary

from msgspec import Struct
from msgspec.structs import replace

import vram
from vram.diagnosis.leftover import GHOST_CODES
from vram.model.finding import Finding, Harm
from vram.model.hold import STATES
from vram.model.ledger import KINDS, MEANINGS, Entry, Ledger, known_bytes
from vram.model.moment import Moment
from vram.report.escape import inert
from vram.report.forecast import forecast_text
from vram.report.json import encode
from vram.report.layout import KIND_STYLES
from vram.report.process_rows import ProcessRow, rows
from vram.report.screen import LEADS, GpuBar, gpu_bars, the_remedy, unseen
from vram.report.text import HARMS
from vram.serve.web.http import JSON_TYPE, HttpRequest, HttpResponse, json_response, refusal

if TYPE_CHECKING:
    from vram.serve.service import Service

FOLDER = Path(__file__).parent
KIT = FOLDER.parents[1] / "report" / "web"
"""What this page shares with that of a trace."""
FORGET_S = 120.0
MAX_FINDINGS = 200
"""So many findings a page gets; ``left_out`` says how many there are besides."""
TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}


class PageForecast(Struct, frozen=True, kw_only=True):
    """When a GPU will be full, in words that are true when they are sent."""

    gpu: int
    text: str


class PageNow(Struct, frozen=True, kw_only=True):
    """Whether what a page shows is still true. ``reading`` names the newest one; null: nothing was read yet.

    ``now`` is the service's clock in unix seconds: that of the page's reader may be wrong.
    ``good_age_s`` is the age of the last reading without an error. Ages of processes in the reading were true
    ``ages_behind_s`` ago.
    """

    schema: Literal[1] = 1
    version: str
    now: float
    interval_s: float
    reading: str | None
    good_age_s: float | None
    ages_behind_s: float
    error: str | None
    history: bool
    """Whether it is recorded and can be asked."""
    policies: str | None
    """Names the policies and their decisions as they are now: another name, and there is something new."""
    forecasts: tuple[PageForecast, ...]


class _Kept(NamedTuple):
    """A reading as pages get it: what it was made of, its name and body, and how far its ages were behind."""

    ledger: Ledger
    shown_to_others: str
    digest: bytes
    name: str
    body: bytes
    behind_s: float
    made: Moment


_kept: WeakKeyDictionary[Service, _Kept] = WeakKeyDictionary()
_forgetting: WeakKeyDictionary[Service, TimerHandle] = WeakKeyDictionary()
_numbers = count(1)


def answer(service: Service, request: HttpRequest) -> HttpResponse:
    """Answer a request for ``/`` or for what lies below ``/page/``."""
    name = request.path.removeprefix("/page/") if request.path != "/" else "index.html"
    handlers = {"now.json": _now, "reading.json": _reading, "words.json": _words}
    if handler := handlers.get(name):
        return handler(service, request)
    return _file(name, request)


# ---- files ----


def _file(name: str, request: HttpRequest) -> HttpResponse:
    files = {path.name: path for path in (*FOLDER.iterdir(), *KIT.iterdir()) if path.suffix in TYPES}
    if name not in files or (name == "index.html" and request.path != "/"):
        return refusal(404, f"there is nothing at {request.path}", "the page is at /")
    return _tag(files[name].read_bytes(), request, content_type=TYPES[files[name].suffix])


def _words(service: Service, request: HttpRequest) -> HttpResponse:
    return _tag(encode(words(vram.__version__), compact=True), request)


def _tag(body: bytes, request: HttpRequest, *, content_type: str = JSON_TYPE) -> HttpResponse:
    """*body*, or 304 where the browser has it already. It asks each time: vram may have been updated."""
    tag = f'"{sha256(body).hexdigest()[:32]}"'
    is_known = request.headers.get("if-none-match") == tag
    return HttpResponse(
        status=304 if is_known else 200,
        body=b"" if is_known else body,
        content_type=content_type,
        headers=(("ETag", tag), ("Cache-Control", "no-cache")),
    )


# ---- the reading ----


def _now(service: Service, request: HttpRequest) -> HttpResponse:
    state, now, kept = service.state, service.clock.now(), _newest(service)
    return json_response(
        PageNow(
            version=vram.__version__,
            now=now.wall,
            interval_s=service.config.interval_s,
            reading=kept.name if kept else None,
            good_age_s=service.age_of(state.good),
            ages_behind_s=kept.behind_s + now.since(kept.made) if kept else 0.0,
            error=state.last.error if state.last else None,
            history=service.config.history.enabled,
            policies=_policies_name(service),
            forecasts=tuple(_forecasts(service)),
        )
    )


def _forecasts(service: Service) -> Iterator[PageForecast]:
    from vram.serve.forecast_part import ForecastPart
    from vram.serve.web.routes import tcp_viewer

    part = service.part(ForecastPart.name)
    if isinstance(part, ForecastPart) and part.made is not None:
        age_s = service.clock.now().since(part.made)
        for each in part.report(tcp_viewer(service)).forecasts:
            yield PageForecast(gpu=each.gpu, text=inert(forecast_text(each, age_s)))


def _policies_name(service: Service) -> str | None:
    from vram.serve.policies.policy_part import PolicyPart

    part = service.part(PolicyPart.name)
    if not isinstance(part, PolicyPart):
        return None
    decided = [(each.number, each.verdict, each.status) for each in part.decisions]
    return sha256(repr((part.engine.policies, decided)).encode()).hexdigest()[:16]


def _newest(service: Service) -> _Kept | None:
    """The newest reading. It keeps its name while nothing but ages differs from the one before."""
    from vram.serve.web.routes import tcp_viewer

    last, kept = service.state.last, _kept.get(service)
    if last is None or last.ledger is None:
        return None
    shown = tcp_viewer(service).others
    if kept is None or kept.ledger is not last.ledger or kept.shown_to_others != shown:
        kept = _kept[service] = _make_reading(service, last.ledger, shown, kept)
    _forget_later(service)
    return kept


def _forget_later(service: Service) -> None:
    """Forget it when no page has asked for a while: the ledger of thousands of processes is large."""
    if before := _forgetting.pop(service, None):
        before.cancel()
    _forgetting[service] = get_running_loop().call_later(FORGET_S, _kept.pop, service, None)


def _make_reading(service: Service, ledger: Ledger, shown: str, before: _Kept | None) -> _Kept:
    from vram.serve.web.routes import ghost_reports, visible

    view = visible(service)
    ghosts = [each for each in view.findings if each.code in GHOST_CODES][:MAX_FINDINGS]
    reports = ghost_reports(service, ghosts)
    since = {each: report.since for each, report in zip(ghosts, reports, strict=True)}
    reading = page_reading(view.ledger, view.findings, since)
    digest = sha256(encode(without_times(reading), compact=True)).digest()
    if before is not None and before.digest == digest:
        return before._replace(ledger=ledger, shown_to_others=shown)
    good = service.state.good
    return _Kept(
        ledger=ledger,
        shown_to_others=shown,
        digest=digest,
        # A service that was started again counts anew: its start is a part of the name.
        name=f"{service.state.started.wall:.3f}-{next(_numbers)}",
        body=encode(reading, compact=True),
        behind_s=(good.ages_behind_s + (service.age_of(good) or 0.0)) if good else 0.0,
        made=service.clock.now(),
    )


def _reading(service: Service, request: HttpRequest) -> HttpResponse:
    kept = _newest(service)
    if kept is None:
        return refusal(503, "nothing was read yet", "/healthz says how long the reading has taken")
    return HttpResponse(body=kept.body, headers=(("Vram-Reading", kept.name),))


# ---- what a page shows of one reading: values that become JSON, of a ledger and its findings alone ----


class Words(Struct, frozen=True, kw_only=True):
    """What never changes while a version runs: kinds in the order of the bars, states, harms."""

    version: str
    kinds: tuple[dict[str, Any], ...]
    states: tuple[dict[str, Any], ...]
    harms: Mapping[Harm, str]


def words(version: str) -> Words:
    """The words of the program, for the page: what each kind means and how `vram why` paints it."""
    kinds = (
        {
            "kind": kind,
            "meaning": MEANINGS[kind][0],
            "color": style.style,
            "glyph": style.glyph,
            "used": KINDS[kind].used,
            "leftover": KINDS[kind].leftover,
        }
        for kind, style in KIND_STYLES.items()
    )
    states = ({"state": state, **facts._asdict()} for state, facts in STATES.items())
    return Words(version=version, kinds=tuple(kinds), states=tuple(states), harms=HARMS)


class PageGpu(Struct, frozen=True, kw_only=True):
    """A bar: one GPU, or one MIG instance of it. ``complaint`` stands there where it cannot be read."""

    gpu: int
    label: str
    total_bytes: int | None
    kinds: Mapping[str, int]
    figures: str
    complaint: str = ""


class PageFinding(Struct, frozen=True, kw_only=True):
    """A finding, and the one command that answers it. ``ghost``: the owner of its memory is dead."""

    code: str
    title: str
    severity: str
    nbytes: int | None
    gpus: tuple[int, ...]
    pids: tuple[int, ...]
    cause: str
    evidence: tuple[str, ...]
    ghost: bool
    since: str | None = None
    lead: str = ""
    command: str = ""
    advice: str = ""
    harm: Harm | None = None


class PageWorker(Struct, frozen=True, kw_only=True):
    """A process that is counted in the row of another one."""

    pid: int
    user: str | None
    age_s: float | None
    command: str | None


class PageReading(Struct, frozen=True, kw_only=True):
    """One reading of a host. ``user`` is whom the commands of the findings are for.

    ``no_driver`` says why there is no GPU, where no driver answers.
    """

    schema: Literal[1] = 1
    taken_at: str
    node: str
    user: str
    driver: str | None
    gpus: tuple[PageGpu, ...]
    processes: tuple[ProcessRow, ...]
    workers: tuple[PageWorker, ...]
    findings: tuple[PageFinding, ...]
    left_out: int
    gaps: tuple[str, ...]
    no_driver: str | None = None


def page_reading(
    ledger: Ledger, findings: Sequence[Finding], since: Mapping[Finding, str | None] | None = None
) -> PageReading:
    """What the page shows of *ledger*; *since* is when each of its findings was first seen."""
    shown = [finding for finding in findings if finding.severity != "info"]
    ghosts_first = sorted(shown, key=lambda finding: finding.code not in GHOST_CODES)
    found = rows(ledger)
    return PageReading(
        taken_at=ledger.taken_at,
        node=ledger.host.name,
        user=ledger.host.user,
        driver=ledger.driver.driver_version if ledger.driver else None,
        gpus=tuple(_gpu(bar) for bar in gpu_bars(ledger)),
        processes=found,
        workers=tuple(_workers(ledger, found)),
        findings=tuple(_finding(each, (since or {}).get(each)) for each in ghosts_first[:MAX_FINDINGS]),
        left_out=max(0, len(shown) - MAX_FINDINGS),
        gaps=tuple(unseen(ledger)),
        no_driver=_no_driver(ledger),
    )


def without_times(reading: PageReading) -> PageReading:
    """*reading* without what differs in every reading of a machine on which nothing happens."""
    return replace(
        reading,
        taken_at="",
        processes=tuple(replace(row, age_s=None) for row in reading.processes),
        workers=tuple(replace(worker, age_s=None) for worker in reading.workers),
        findings=tuple(replace(finding, since=None) for finding in reading.findings),
    )


def _no_driver(ledger: Ledger) -> str | None:
    if ledger.gpus:
        return None
    silent = [each for each in ledger.probes if each.name == "nvml" and each.status != "ok"]
    return next((each.message or "no NVIDIA driver answers" for each in silent), None)


def _gpu(bar: GpuBar) -> PageGpu:
    return PageGpu(
        gpu=bar.gpu,
        label=bar.label,
        total_bytes=known_bytes(bar.entries) if bar.figures else None,
        kinds=_kinds(bar.entries),
        figures=bar.figures,
        complaint=bar.complaint,
    )


def _kinds(entries: Sequence[Entry]) -> dict[str, int]:
    """The bytes of each kind that there is, in the order of the bar."""
    sums: dict[str, int] = {}
    for entry in entries:
        sums[entry.kind] = sums.get(entry.kind, 0) + (entry.nbytes or 0)
    return {kind: sums[kind] for kind in KIND_STYLES if sums.get(kind)}


def _finding(finding: Finding, since: str | None) -> PageFinding:
    remedy = the_remedy(finding)
    return PageFinding(
        code=finding.code,
        title=finding.title,
        severity=finding.severity,
        nbytes=finding.nbytes,
        gpus=finding.gpus,
        pids=finding.pids,
        cause=finding.cause,
        evidence=finding.evidence,
        ghost=finding.code in GHOST_CODES,
        since=since,
        lead=LEADS.get(remedy.step, "Do") if remedy else "",
        command=remedy.command if remedy else "",
        advice=remedy.text if remedy else "",
        harm=remedy.harm if remedy else None,
    )


def _workers(ledger: Ledger, found: Sequence[ProcessRow]) -> Iterator[PageWorker]:
    """The processes that are counted in the row of another one."""
    folded = {pid for row in found for pid in (*row.workers, *row.co_holders)}
    folded -= {row.pid for row in found if row.pid is not None}
    for row in rows(ledger, every_process=True) if folded else ():
        if row.pid in folded:
            yield PageWorker(pid=row.pid, user=row.user, age_s=row.age_s, command=row.command)
