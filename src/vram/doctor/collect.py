"""Collects what the checks need to know of a host. No process of a user is touched, no context is made."""

from __future__ import annotations

import os
import platform
import re
import sys
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from importlib.util import find_spec
from threading import Thread
from typing import Generic, TypeVar

from vram import __version__
from vram.doctor.check import NEEDED, AttachTarget, DoctorFacts, Program, Records
from vram.errors import NoSuchProcess, Refused
from vram.host.ports import Host
from vram.installation import how_to_add, how_to_get_native, how_to_install
from vram.model.gpu import ChargeFacts
from vram.model.observation import Survey
from vram.model.plan import Target
from vram.model.process import ProcessFacts, ProcessRef
from vram.probes.survey import survey
from vram.reach.injectors import Injector, measure_routes, possible_injectors
from vram.reach.jupyter import connection_file
from vram.reach.target_process import TargetProcess, examine
from vram.reclaim import audit, state

_PACKAGES = {"msgspec": "msgspec", "nvidia-ml-py": "pynvml", "rich": "rich", "pyzmq": "zmq"}
_MAX_TARGETS = 32
_LIBRARIES = (
    "host/local/lib/libvramscan.so",
    "guard/lib/libvrambuffer.so",
    "reach/lib/libvramvisitor.so",
    "trace/lib/libvramtracer.so",
    "trace/lib/libvramreader.so",
    "trace/lib/libvramlines.so",
    "virtualgpu/lib/libcuda.so.1",
    "virtualgpu/lib/libnvidia-ml.so.1",
)

UNKNOWN = "of unknown version"

T = TypeVar("T")


def collect(host: Host, deadline_s: float = 5.0) -> DoctorFacts:
    """Everything within about *deadline_s*, whatever hangs."""
    until = host.clock.monotonic() + deadline_s
    tests = host.system.start_self_tests(libraries())
    attach = BestEffort(measure_routes)
    records, cupti = BestEffort(read_records), BestEffort(host.system.cupti)
    seen = survey(host, deadline_s=deadline_s)
    charged = _charged(seen)
    targets = BestEffort(lambda: tuple(_targets(host, seen, charged, until)))
    tracing = BestEffort(lambda: host.system.tracing(charged))
    return DoctorFacts(
        survey=seen,
        host_files=host.system.host_files(),
        program=_program(),
        room=host.limits.read(next(iter(charged), os.getpid())),
        driver_test=tests.driver(_left_s(host, until)),
        kernel_test=tests.kernel(_left_s(host, until)),
        targets=targets.result(_left_s(host, until)),
        attach_test=attach.result(_left_s(host, until)),
        tracing=tracing.result(_left_s(host, until)) or (),
        cupti=cupti.result(_left_s(host, until)),
        records=records.result(_left_s(host, until)) or _unanswered(),
    )


def libraries() -> list[str]:
    """The native parts, where they should lie."""
    package = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    return [os.path.join(package, path) for path in _LIBRARIES]


def _left_s(host: Host, until: float) -> float:
    # A test that is asked late still gets a moment: a little more is better than nothing.
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
) -> Iterable[AttachTarget]:
    known = {
        each.process.pid: (each.process, each.facts)
        for each in seen.observations
        if isinstance(each.facts, ProcessFacts) and each.process
    }
    for pid in list(charged)[:_MAX_TARGETS]:
        if pid in known and host.clock.monotonic() <= until:
            target = _target(*known[pid], charged[pid])
            if target is not None:
                yield target


def _target(process: ProcessRef, facts: ProcessFacts, nbytes: int | None) -> AttachTarget | None:
    """The injectors for a process; None where it is gone."""
    if facts.uid is None:
        return None
    target = Target(
        process=process, uid=facts.uid, user=facts.user, command=facts.command, executable=facts.executable
    )
    try:
        found = examine(target)
    except NoSuchProcess:
        return None
    except Refused as error:
        return AttachTarget(
            pid=process.pid,
            user=facts.user,
            nbytes=nbytes,
            unavailable={"all": str(error)},
            is_python="python" in os.path.basename(facts.executable or ""),
        )
    reasons = {each.NAME: _unavailable_reason(each, found) for each in possible_injectors(found)}
    return AttachTarget(
        pid=process.pid,
        user=facts.user,
        nbytes=nbytes,
        available=tuple(name for name, reason in reasons.items() if reason is None),
        unavailable={name: reason for name, reason in reasons.items() if reason is not None},
        is_kernel=found.is_python and found.is_ours and connection_file(found.argv) is not None,
        is_python=found.is_python,
    )


def _unavailable_reason(injector: Injector, process: TargetProcess) -> str | None:
    try:
        return injector.unavailable_reason(process)
    except (Refused, OSError) as error:
        return str(error)


def read_records() -> Records:
    """The folder for vram's records, as this user would use it; nothing is made."""
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
        error="the disk with vram's state folder does not answer",
        hint="set XDG_STATE_HOME to a folder on a local disk",
    )


def _program() -> Program:
    python = f"{platform.python_implementation()} {platform.python_version()}"
    packages = {name: version(name, module) for name, module in _PACKAGES.items()}
    return Program(
        vram=__version__,
        python=python,
        packages=packages,
        add_base=how_to_install([name for name in NEEDED if packages[name] is None]),
        add_jupyter=how_to_add("jupyter"),
        get_native=how_to_get_native(),
    )


def version(distribution: str, module: str, path: Sequence[str] | None = None) -> str | None:
    """The version as installed, or UNKNOWN where only the module is there; None where not even that.

    Told by the name of its folder: importlib.metadata would cost more than all the rest of the imports here.
    """
    name = re.sub(r"[-_.]+", "_", distribution).lower()
    for folder in sys.path if path is None else path:
        with suppress(OSError):  # zip files, and folders that are not there
            for entry in os.listdir(folder or "."):
                found = re.fullmatch(r"(.+?)-([^-]+)\.(?:dist-info|egg-info)", entry)
                if found and re.sub(r"[-_.]+", "_", found[1]).lower() == name:
                    return found[2]
    return UNKNOWN if find_spec(module) is not None else None


class BestEffort(Generic[T]):
    """*job*, run in a thread from now on. It may hang, as on a file of a server that is gone: then it is
    left alone, and ends with the process."""

    def __init__(self, job: Callable[[], T]) -> None:
        self._done: list[T] = []
        self._thread = Thread(target=self._run, args=(job,), daemon=True)
        with suppress(RuntimeError):  # no more threads for this user: what cannot be left alone is not begun
            self._thread.start()

    def _run(self, job: Callable[[], T]) -> None:
        with suppress(Exception):  # what fails is as unknown as what hangs, and must not print on its own
            self._done.append(job())

    def result(self, patience_s: float) -> T | None:
        """What it came to; None where it has not, within *patience_s*."""
        if self._thread.ident is not None:
            self._thread.join(patience_s)
        return self._done[0] if self._done else None
