"""A check of the doctor: the facts of a host that it judges by, its answer, and its manual page."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cached_property, partial
from typing import cast, get_args

from msgspec import Struct

from vram.model.doctor import AttachTest, DriverTest, HostFiles, KernelTest, State, Topic, Tracing, Verb
from vram.model.gpu import ChargeFacts, DriverFacts, GpuFacts
from vram.model.observation import NVML_NO_LIBRARY, Observation, Survey
from vram.model.parking import ProcessLimits
from vram.pages import manual_page

EVERY_COMMAND: tuple[Verb, ...] = get_args(Verb)


class AttachTarget(Struct, frozen=True, kw_only=True):
    """A process with GPU memory: which injectors can be used, and why the others cannot."""

    pid: int
    user: str | None
    nbytes: int | None
    available: tuple[str, ...] = ()
    unavailable: dict[str, str] = {}
    is_kernel: bool = False
    """A Jupyter kernel of this user."""
    is_python: bool = True


class Records(Struct, frozen=True, kw_only=True):
    """The folder for what must survive us; ``error`` says why it cannot be used."""

    path: str
    exists: bool
    free_bytes: int | None = None
    error: str | None = None
    hint: str = ""


NEEDED = ("msgspec", "nvidia-ml-py", "rich")
"""The packages without which vram does not work."""


class Program(Struct, frozen=True, kw_only=True):
    """This very program: its version, its Python, what is installed beside it."""

    vram: str
    python: str
    packages: dict[str, str | None] = {}
    """Versions of what vram imports; None: not installed."""
    add_base: str = ""
    """The command that installs what ``packages`` lacks."""
    add_jupyter: str = ""
    """What brings the extra for Jupyter kernels."""
    get_native: str = ""
    """What brings vram's compiled parts."""


class DoctorFacts(Struct, frozen=True, kw_only=True, dict=True):
    """One host, at one moment. A check reads from it, and collects nothing itself."""

    survey: Survey
    host_files: HostFiles = HostFiles()
    driver_test: DriverTest = DriverTest()
    kernel_test: KernelTest = KernelTest()
    tracing: tuple[Tracing, ...] = ()
    targets: tuple[AttachTarget, ...] | None = ()
    """None: the search took too long."""
    cupti: tuple[str, ...] | None = ()
    """Where a libcupti lies. None: the search took too long."""
    attach_test: AttachTest | None = None
    """By which routes a Python that the doctor started itself was visited. None: it took too long."""
    records: Records
    program: Program
    room: ProcessLimits = ProcessLimits()
    """Host memory that the largest process on the GPUs, or we, could still take."""

    @cached_property
    def gpus(self) -> dict[int, GpuFacts]:
        """NVIDIA's, by their number."""
        return {index: gpu for index, gpu in self._all_gpus() if gpu.vendor == "nvidia"}

    @cached_property
    def other_gpus(self) -> dict[int, GpuFacts]:
        return {index: gpu for index, gpu in self._all_gpus() if gpu.vendor != "nvidia"}

    def _all_gpus(self) -> Iterator[tuple[int, GpuFacts]]:
        for each in self.survey.observations:
            if isinstance(each.facts, GpuFacts) and each.gpu is not None:
                yield each.gpu, each.facts

    @cached_property
    def driver(self) -> DriverFacts:
        found = (each.facts for each in self.survey.observations if isinstance(each.facts, DriverFacts))
        return next(found, DriverFacts())

    @cached_property
    def charges(self) -> tuple[Observation, ...]:
        """Lines of the driver's process lists."""
        return tuple(each for each in self.survey.observations if isinstance(each.facts, ChargeFacts))

    @property
    def virtual(self) -> bool:
        return self.survey.host.virtual

    @cached_property
    def _absence(self) -> Observation | None:
        found = (each for each in self.survey.observations if each.probe == "nvml.init")
        return next((each for each in found if each.status == "unsupported"), None)

    @property
    def no_driver(self) -> str | None:
        """Why no driver answers for any GPU; None where one does, well or badly."""
        return None if self._absence is None else self._absence.message or "it does not exist"

    @property
    def lacks_library(self) -> bool:
        """Whether no driver answers because its libraries are not to be found."""
        return self._absence is not None and self._absence.code == NVML_NO_LIBRARY


def gpu_names(numbers: list[int]) -> str:
    """ "GPU 0", "GPUs 0, 3 and 5"; many are only counted."""
    if len(numbers) > 6:
        return f"{len(numbers)} GPUs"
    *first, last = map(str, numbers)
    return f"GPUs {', '.join(first)} and {last}" if first else f"GPU {last}"


# ---- answers ----


class CheckAnswer(Struct, frozen=True, kw_only=True):
    """What a check says; who it is and what it bears on is the check's own."""

    state: State
    seen: str
    details: tuple[str, ...] = ()
    means: str = ""
    fix: str = ""
    command: str = ""


broken = partial(CheckAnswer, state="broken")
limited = partial(CheckAnswer, state="limited")
missing = partial(CheckAnswer, state="missing")
unknown = partial(CheckAnswer, state="unknown")


def ok(seen: str, *details: str) -> CheckAnswer:
    return CheckAnswer(state="ok", seen=seen, details=details)


def not_applicable(seen: str) -> CheckAnswer:
    return CheckAnswer(state="not-applicable", seen=seen)


def not_tried(why: str) -> CheckAnswer:
    return unknown(
        seen=f"not tried: {why}",
        fix="Raise this user's process limit (ulimit -u) and pids.max of its cgroup.",
        command="ulimit -u",
    )


NO_DRIVER = not_applicable("no driver answers")
UNFINISHED = unknown(seen="the self test did not finish", fix="Run it again.")


# ---- checks ----

Judge = Callable[[DoctorFacts], CheckAnswer]


class Check(Struct, frozen=True, kw_only=True):
    """``id`` never changes its meaning. ``verbs`` are the commands that it bears on, ``page`` is its manual
    page (None under Python -OO, which removes it). ``optional``: vram works without what it asks for."""

    id: str
    topic: Topic
    verbs: tuple[Verb, ...]
    optional: bool
    page: str | None
    judge: Judge


DEFINED: list[Check] = []
"""Every check whose module is imported."""


def check(
    id: str, verbs: tuple[Verb, ...], *, optional: bool = False, needs_gpu: bool = False
) -> Callable[[Judge], Judge]:
    """Define a check. The function's docstring is the page, the first word of *id* the topic.

    With *needs_gpu* it is asked only where a driver answers for a GPU.
    """

    def add(judge: Judge) -> Judge:
        def judge_gpus(facts: DoctorFacts) -> CheckAnswer:
            return judge(facts) if facts.gpus else NO_DRIVER

        topic = cast("Topic", id.partition(".")[0])
        page = f"{manual_page(judge.__doc__)}\n" if judge.__doc__ else None
        asked = judge_gpus if needs_gpu else judge
        DEFINED.append(Check(id=id, topic=topic, verbs=verbs, optional=optional, page=page, judge=asked))
        return asked

    return add
