"""Looks at a host once, for all checks together. Nobody's process is touched, no context is made."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterable

from vram import __version__
from vram.doctor.packages import version
from vram.doctor.patience import Beside
from vram.doctor.sight import Program, PythonTarget, Records, Sight
from vram.errors import Refused
from vram.host.ports import Host
from vram.model.gpu import ChargeFacts
from vram.model.observation import Observation, Survey
from vram.model.plan import Target
from vram.model.process import ProcessFacts, ProcessRef
from vram.probes.survey import survey
from vram.reach import self_test
from vram.reach.injectors import BY_NAME
from vram.reach.python_process import PythonProcess, examine
from vram.reclaim import audit, state

_PACKAGES = {"msgspec": "msgspec", "nvidia-ml-py": "pynvml", "rich": "rich", "pyzmq": "zmq"}
_MOST_TARGETS = 32
_LIBRARIES = (
    "host/local/lib/libvramscan.so",
    "guard/lib/libvrambuffer.so",
    "virtualgpu/lib/libcuda.so.1",
    "virtualgpu/lib/libnvidia-ml.so.1",
)


def look(host: Host, deadline_s: float = 5.0) -> Sight:
    """See everything within about *deadline_s*, whatever hangs."""
    until = host.clock.monotonic() + deadline_s
    trials = host.surroundings.start_trials(libraries())
    attach = Beside(self_test.attach)
    records, cupti = Beside(_records), Beside(host.surroundings.cupti)
    seen = survey(host, deadline_s=deadline_s)
    charged = _charged(seen)
    targets = Beside(lambda: tuple(_targets(host, seen, charged, until)))
    tracing = Beside(lambda: host.surroundings.tracing(charged))
    return Sight(
        survey=seen,
        premises=host.surroundings.premises(),
        program=_program(),
        room=host.vitals.read(next(iter(charged), os.getpid())),
        driver_trial=trials.driver(_left_s(host, until)),
        kernel_trial=trials.kernel(_left_s(host, until)),
        targets=targets.result(_left_s(host, until)),
        attach_trial=attach.result(_left_s(host, until)),
        tracing=tracing.result(_left_s(host, until)) or (),
        cupti=cupti.result(_left_s(host, until)),
        records=records.result(_left_s(host, until)) or _unanswered(),
    )


def libraries() -> list[str]:
    """The native parts, where they should lie."""
    package = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    return [os.path.join(package, path) for path in _LIBRARIES]


def _left_s(host: Host, until: float) -> float:
    # Whoever comes late still gets a moment: a little more is better than nothing.
    return max(0.2, until - host.clock.monotonic())


def _charged(seen: Survey) -> dict[int, int | None]:
    """Processes that the driver charges with memory and that live here, the largest first."""
    charges = [each for each in seen.observations if isinstance(each.facts, ChargeFacts)]
    nbytes: dict[int, int | None] = {}
    for each in charges:
        if each.process is not None and each.process.started_at is not None:
            known = (nbytes.get(each.process.pid), each.nbytes)
            nbytes[each.process.pid] = None if known == (None, None) else sum(n or 0 for n in known)
    return dict(sorted(nbytes.items(), key=lambda item: -(item[1] or 0)))


def _targets(
    host: Host, seen: Survey, charged: dict[int, int | None], until: float
) -> Iterable[PythonTarget]:
    known = {each.process.pid: each for each in seen.observations if _tells_who(each) and each.process}
    for pid in list(charged)[:_MOST_TARGETS]:
        if pid not in known or host.clock.monotonic() > until:
            continue
        process, facts = known[pid].process, known[pid].facts
        assert process is not None
        assert isinstance(facts, ProcessFacts)
        target = _target(process, facts, charged[pid])
        if target is not None:
            yield target


def _tells_who(each: Observation) -> bool:
    return isinstance(each.facts, ProcessFacts)


def _target(process: ProcessRef, facts: ProcessFacts, nbytes: int | None) -> PythonTarget | None:
    """The ways into a process; None where it is no Python, or is gone."""
    if facts.uid is None:
        return None
    target = Target(
        process=process,
        uid=facts.uid,
        user=facts.user,
        command=facts.command,
        executable=facts.executable,
    )
    try:
        python = examine(target)
    except Refused as error:
        if "python" not in os.path.basename(facts.executable or ""):
            return None
        return PythonTarget(pid=process.pid, user=facts.user, nbytes=nbytes, closed={"all": str(error)})
    reasons = {name: _closed(name, python) for name in BY_NAME}
    return PythonTarget(
        pid=process.pid,
        user=facts.user,
        nbytes=nbytes,
        open=tuple(name for name, reason in reasons.items() if reason is None),
        closed={name: reason for name, reason in reasons.items() if reason is not None},
    )


def _closed(way: str, process: PythonProcess) -> str | None:
    try:
        return BY_NAME[way].unavailable_reason(process)
    except (Refused, OSError) as error:
        return str(error)


def _records() -> Records:
    path = state.folder_path()
    error = audit.why_unusable()
    return Records(
        path=path,
        exists=os.path.isdir(path),
        free_bytes=state.free_bytes(),
        error=str(error) if error else None,
        hint=error.hint if error else "",
    )


def _unanswered() -> Records:
    # Asking where the folder lies would look at the same disk again.
    return Records(
        path="",
        exists=False,
        error="the disk of the folder for vram's records does not answer",
        hint="set XDG_STATE_HOME to a folder on a disk of this machine",
    )


def _program() -> Program:
    python = f"{platform.python_implementation()} {platform.python_version()}"
    return Program(
        vram=__version__,
        python=python,
        packages={name: version(name, module) for name, module in _PACKAGES.items()},
    )
