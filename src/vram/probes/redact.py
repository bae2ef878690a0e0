"""A survey that can be shown to strangers: the same bytes and pids, nobody's names.

Names of users, hosts, containers, pods, jobs and units become numbered stand-ins, so what
belonged together still does. Command lines and paths go. What stays is what the judgement
needs: pids, times, states, sizes, device files, and the names of NVIDIA's own programs.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from msgspec.structs import replace

from vram.model.files import DeviceFile, FilesFacts, UnreadableFacts
from vram.model.observation import Facts, HostFacts, Observation, Survey
from vram.model.process import ProcessFacts, Workload
from vram.model.windows import WindowsMemoryFacts

# The rules tell these from users' programs by name (as the kernel cuts it, at 15 letters).
_PUBLIC_COMMANDS = frozenset(
    ("nvidia-cuda-mps", "nvidia-persiste", "nv-fabricmanage", "nv-hostengine", "dcgm-exporter", "systemd")
)
_PUBLIC_WINDOWS = frozenset(
    ("vmmem", "vmmemwsl", "system", "dwm.exe", "csrss.exe", "explorer.exe", "searchhost.exe")
)
_FIRST_STAND_IN_UID = 100_000


class _StandIns:
    """Numbered stand-ins: the same name always gets the same one."""

    def __init__(self) -> None:
        self._given: dict[tuple[str, object], int] = {}
        self._counts: dict[str, int] = {}

    def number(self, kind: str, name: object) -> int:
        if (kind, name) not in self._given:
            self._counts[kind] = self._given[kind, name] = self._counts.get(kind, 0) + 1
        return self._given[kind, name]

    def word(self, kind: str, name: str | None) -> str | None:
        return None if name is None else f"{kind}{self.number(kind, name)}"

    def user(self, name: str | None) -> str | None:
        return name if name in (None, "root") else self.word("user", name)

    def uid(self, uid: int | None) -> int | None:
        return uid if not uid else _FIRST_STAND_IN_UID + self.number("uid", uid)


def redact(survey: Survey) -> Survey:
    """Return *survey* without anybody's names; every sum and pid is what it was."""
    stand_ins = _StandIns()
    return replace(
        survey,
        host=_host(survey.host, stand_ins),
        observations=tuple(_observation(each, stand_ins) for each in survey.observations),
        probes=tuple(replace(run, message=_message(run.message)) for run in survey.probes),
        parked=tuple(
            replace(each, user=stand_ins.user(each.user), command="redacted") for each in survey.parked
        ),
    )


def _host(host: HostFacts, stand_ins: _StandIns) -> HostFacts:
    uid = stand_ins.uid(host.uid) or 0
    wsl = replace(host.wsl_facts, libraries=None) if host.wsl_facts else None
    return replace(host, name="host1", user=stand_ins.user(host.user) or "", uid=uid, wsl_facts=wsl)


def _observation(observation: Observation, stand_ins: _StandIns) -> Observation:
    facts = _facts(observation.facts, stand_ins)
    return replace(observation, facts=facts, message=_message(observation.message))


def _message(message: str | None) -> str | None:
    """Our own sentences name nobody, but an unforeseen error may quote a path."""
    return message and re.sub(r"\S*/\S*", "…", message)


def _facts(facts: Facts | None, stand_ins: _StandIns) -> Facts | None:
    match facts:
        case ProcessFacts():
            return _process(facts, stand_ins)
        case FilesFacts():
            return replace(facts, files=tuple(map(_file, facts.files)))
        case WindowsMemoryFacts():
            public = (facts.name or "").lower() in _PUBLIC_WINDOWS
            return replace(facts, name=facts.name if public else "redacted")
        case UnreadableFacts():
            return replace(facts, users=tuple(stand_ins.user(user) or "" for user in facts.users))
    return facts


def _process(facts: ProcessFacts, stand_ins: _StandIns) -> ProcessFacts:
    public = facts.command in _PUBLIC_COMMANDS
    return replace(
        facts,
        command=facts.command if public else "redacted",
        argv=(),
        executable=None,
        uid=stand_ins.uid(facts.uid),
        user=stand_ins.user(facts.user),
        cgroup=None,
        workload=_workload(facts.workload, stand_ins.word),
    )


def _workload(workload: Workload, word: Callable[[str, str | None], str | None]) -> Workload:
    return Workload(
        container=word("container", workload.container),
        runtime=workload.runtime,
        pod=word("pod", workload.pod),
        slurm_job=word("job", workload.slurm_job),
        slurm_step=word("step", workload.slurm_step),
        unit=word("unit", workload.unit),
        container_name=word("container-name", workload.container_name),
        pod_name=word("pod-name", workload.pod_name),
        claimed_job=word("job", workload.claimed_job),
        job_name=word("job-name", workload.job_name),
        notebook=word("notebook", workload.notebook),
    )


def _file(file: DeviceFile) -> DeviceFile:
    """Real device files have public names; a virtual GPU's folder lies where its user put it."""
    if file.path.startswith(("/dev/nvidia", "/dev/dxg", "/dmabuf:")):
        return file
    return replace(file, path="/virtual/dev/" + file.path.rpartition("/")[2])
