"""A survey as a file: written whole or not at all, and refused when it is not what it says."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from typing import Any, TypeVar

import msgspec
from msgspec.structs import replace

from vram import untrusted
from vram.errors import BadSnapshot, NewerSnapshot
from vram.files import write_file
from vram.model.cgroups import CgroupLimit, DmemFacts
from vram.model.files import (
    CapacityFacts,
    ClientFacts,
    DeviceFile,
    FilesFacts,
    SystemMemoryFacts,
    UnreadableFacts,
)
from vram.model.gpu import MemoryFacts, MigFacts
from vram.model.observation import (
    NO_INTEROP,
    NO_NVML_BINDING,
    NO_POWERSHELL,
    NVML_BINDING_TOO_NEW,
    SURVEY_SCHEMA,
    WINDOWS_LEFT_OUT,
    Facts,
    HostFacts,
    Observation,
    ProbeRun,
    Survey,
)
from vram.model.process import ProcessFacts, Workload
from vram.model.windows import AdapterFacts, WindowsMemoryFacts

__all__ = ["dumps", "loads", "read", "redact", "write"]

_MAX_NBYTES = 256 << 20
# A machine with 10,000 processes that share 16 GPUs has about half of that.
_MAX_ITEMS = 16_000_000
_MAX_BYTES = 1 << 62  # beyond it lies no GPU, only the driver's "not available"
STDIN = "-"
_TAKE_AGAIN = "take it again with `vram snapshot -o FILE`"

Shape = TypeVar("Shape")
Said = TypeVar("Said", Observation, ProbeRun)


class _Label(msgspec.Struct):
    """The part of a snapshot that every version of this program can read."""

    schema: int
    program: str


def dumps(survey: Survey) -> bytes:
    return msgspec.json.format(msgspec.json.encode(survey), indent=1) + b"\n"


def loads(data: bytes, origin: str = "the snapshot") -> Survey:
    """Read a survey back, or say why that cannot be."""
    try:
        survey = _decode(data, Survey, f"{origin} is not a complete snapshot")
    except BadSnapshot:
        # Reading the label first would read everything twice, where nearly all snapshots are whole.
        _require_our_schema(_decode(data, _Label, f"{origin} is not a vram snapshot"), origin)
        raise
    _require_our_schema(_Label(schema=survey.schema, program=survey.program), origin)
    _check(survey, origin)
    return _with_codes(survey)


def _require_our_schema(label: _Label, origin: str) -> None:
    if label.schema > SURVEY_SCHEMA:
        raise NewerSnapshot(
            f"{origin} was written by a newer version of vram (schema {label.schema})",
            hint=f"this version reads schema {SURVEY_SCHEMA}: upgrade vram",
        )
    if label.schema != SURVEY_SCHEMA:
        raise BadSnapshot(f"{origin} has schema {label.schema}, which does not exist", hint=_TAKE_AGAIN)


# What earlier versions, whose statements had no codes, wrote where these codes matter.
_NVML_ERROR = "(NVML error "
_OLD_WORDS = {
    "Windows was left out": WINDOWS_LEFT_OUT,
    "powershell.exe is nowhere": NO_POWERSHELL,
    "Windows programs cannot be started": NO_INTEROP,
    "the Python package nvidia-ml-py": NO_NVML_BINDING,
    "nvidia-ml-py is newer": NVML_BINDING_TOO_NEW,
}


def _with_codes(survey: Survey) -> Survey:
    """*survey* with a code on each statement of an earlier version that was not ok."""
    said: Iterable[Observation | ProbeRun] = chain(survey.observations, survey.probes)
    if all(each.status == "ok" or each.code is not None for each in said):
        return survey
    return replace(
        survey,
        observations=tuple(map(_add_code, survey.observations)),
        probes=tuple(map(_add_code, survey.probes)),
    )


def _add_code(said: Said) -> Said:
    if said.status == "ok" or said.code is not None:
        return said
    message = said.message or ""
    _, mark, number = message.rpartition(_NVML_ERROR)
    if mark and number[:-1].isdecimal():
        return replace(said, code=f"nvml-{number[:-1]}")
    old = (code for words, code in _OLD_WORDS.items() if message.startswith(words))
    return replace(said, code=next(old, said.status))


def write(survey: Survey, path: str) -> None:
    """Write to *path*; a file that was there stays whole until the new one is."""
    # Command lines carry secrets: no other user reads it unless its owner says so.
    write_file(path, dumps(survey), secret=True)


def read(path: str) -> Survey:
    """Read the snapshot at *path*; "-" is standard input."""
    from_stdin = path == STDIN
    path = "standard input" if from_stdin else path
    try:
        if from_stdin:
            data = untrusted.read_stream(0, nbytes=_MAX_NBYTES)
        else:
            data = untrusted.read_file(path, nbytes=_MAX_NBYTES, follow=True, pipes=True)
    except untrusted.Rejected as error:
        hint = _TAKE_AGAIN if error.code == "too-large" else "check the path and its permissions"
        raise BadSnapshot(f"cannot read {path}: {error}", hint=hint) from error
    return loads(data, path)


def _decode(data: bytes, kind: type[Shape], complaint: str) -> Shape:
    try:
        return untrusted.decode(data, kind, most_items=_MAX_ITEMS)
    except untrusted.Rejected as error:
        broken = "" if error.code == "wrong-shape" else ", it is damaged or truncated"
        raise BadSnapshot(f"{complaint}{broken}: {error}", hint=_TAKE_AGAIN) from error


def _check(survey: Survey, origin: str) -> None:
    """Refuse sizes that no survey takes: the rules may trust them."""
    for at, observation in enumerate(survey.observations):
        for nbytes in (observation.nbytes, *_sizes(observation.facts)):
            if nbytes is not None and not 0 <= nbytes < _MAX_BYTES:
                raise BadSnapshot(f"{origin} has an invalid size in observations[{at}]", hint=_TAKE_AGAIN)


def _sizes(facts: Facts | None) -> Iterator[Any]:
    facts = facts.memory if isinstance(facts, MigFacts) else facts
    if isinstance(facts, MemoryFacts):
        yield from (facts.total, facts.free, facts.used, facts.reserved, facts.v1_used, facts.moved_bytes)
        if facts.limit is not None:
            yield from (facts.limit.hard, facts.limit.soft, facts.limit.used, facts.device_total)
        if facts.system is not None:
            yield from (facts.system.programs, facts.system.files, facts.system.kernel)
    elif isinstance(facts, DmemFacts):
        yield from (facts.limit.hard, facts.limit.soft, facts.limit.used)
    elif isinstance(facts, CapacityFacts | SystemMemoryFacts):
        yield from msgspec.structs.astuple(facts)
    elif isinstance(facts, WindowsMemoryFacts | AdapterFacts):
        names = ("local", "non_local", "dedicated", "shared", "total")
        yield from (getattr(facts, name, None) for name in names)
    elif isinstance(facts, ClientFacts):
        for region in facts.regions:
            yield from (region.nbytes, region.shared)


# ---- a survey that can be shown to strangers: the same bytes and pids, no names ----
#
# Names of users, hosts, containers, pods, jobs and units become numbered stand-ins, so what belonged together
# still does. Command lines and paths go. What stays is what the judgement needs: pids, times, states, sizes,
# device files, and the names of NVIDIA's own programs.

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

    def group(self, path: str | None) -> str | None:
        """A control group's path, each part by a number: what lies within what is the same."""
        if path is None:
            return None
        parts = path.strip("/").split("/")
        above = ["/".join(parts[: at + 1]) for at in range(len(parts)) if parts[at]]
        return "/" + "/".join(self.word("group", each) or "" for each in above)

    def user(self, name: str | None) -> str | None:
        return name if name in (None, "root") else self.word("user", name)

    def uid(self, uid: int | None) -> int | None:
        return uid if not uid else _FIRST_STAND_IN_UID + self.number("uid", uid)


def redact(survey: Survey) -> Survey:
    """Return *survey* without names of users or programs; every sum and pid is what it was."""
    stand_ins = _StandIns()
    return replace(
        survey,
        host=_host(survey.host, stand_ins),
        observations=tuple(
            replace(each, facts=_facts(each.facts, stand_ins), message=_message(each.message))
            for each in survey.observations
        ),
        probes=tuple(replace(run, message=_message(run.message)) for run in survey.probes),
        parked=tuple(
            replace(each, user=stand_ins.user(each.user), command="redacted") for each in survey.parked
        ),
    )


def _host(host: HostFacts, stand_ins: _StandIns) -> HostFacts:
    uid = stand_ins.uid(host.uid) or 0
    wsl = replace(host.wsl_facts, libraries=None) if host.wsl_facts else None
    return replace(host, name="host1", user=stand_ins.user(host.user) or "", uid=uid, wsl_facts=wsl)


def _message(message: str | None) -> str | None:
    """Our own sentences have no names in them, but an unforeseen error may quote a path."""
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
        case MemoryFacts(limit=CgroupLimit() as limit):
            return replace(facts, limit=replace(limit, cgroup=stand_ins.group(limit.cgroup) or ""))
        case DmemFacts(limit=limit):
            named = replace(limit, cgroup=stand_ins.group(limit.cgroup) or "")
            return DmemFacts(named, _workload(facts.workload, stand_ins.word))
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
        cgroup=stand_ins.group(facts.cgroup),
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
