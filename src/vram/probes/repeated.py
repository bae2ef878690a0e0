"""Surveys of one host again and again: what cannot have changed since the last one is not read again.

The driver's figures and the states of the known processes are read every time. All processes' open files,
which are most of a survey's cost, are read again when a process comes or goes, and in any case after a while.
"""

from __future__ import annotations

from collections.abc import Iterable
from time import process_time

from msgspec.structs import replace

from vram.host.ports import Host, ProcessCondition
from vram.model.gpu import ChargeFacts
from vram.model.observation import Observation, Survey, with_code
from vram.model.process import ProcessFacts
from vram.probes.survey import survey

WHOLE_EVERY_S = 15.0
"""After so long everything is read anyway: a process that merely opens a GPU's files changes no figure."""
MAX_PAUSE_S = 300.0
_FIGURES = ("nvml.gpu", "nvml.memory", "nvml.processes")
_PROCESSES = "proc.processes"


class RepeatedSurvey:
    """Reads *host* each time :meth:`read` is called, within about *deadline_s*.

    Where reading everything takes long, *whole_share* of one core bounds how often that is done anyway.
    """

    def __init__(
        self,
        host: Host,
        deadline_s: float,
        whole_every_s: float = WHOLE_EVERY_S,
        *,
        whole_share: float | None = None,
    ) -> None:
        self._host = host
        self._whole_share = whole_share
        self._whole_cpu_s = 0.0
        self._deadline_s = deadline_s
        self._whole_every_s = whole_every_s
        self._whole: Survey | None = None
        self._whole_at = 0.0
        self._last: Survey | None = None
        self.number = 0
        """Of the survey that was returned last: another number, another survey."""
        self._conditions: dict[int, ProcessCondition] = {}
        self._holders: set[int] = set()

    @property
    def behind_s(self) -> float:
        """How long ago everything was read: ages of processes are from then."""
        return self._host.clock.monotonic() - self._whole_at

    def read(self) -> Survey:
        """Return what is there now; the object of the last time where nothing but the time has changed."""
        now = self._host.clock.monotonic()
        if self._whole is not None and now - self._whole_at < self._pause_s:
            again = self._figures_again()
            if again is not None:
                self.number += again is not self._last
                self._last = again
                return again
        return self.read_whole()

    @property
    def _pause_s(self) -> float:
        """How long figures alone are read after everything was."""
        if not self._whole_share:
            return self._whole_every_s
        return max(self._whole_every_s, min(MAX_PAUSE_S, self._whole_cpu_s / self._whole_share))

    def read_whole(self) -> Survey:
        """Read everything, whatever was read before."""
        now, used = self._host.clock.monotonic(), process_time()
        self._whole = self._last = None  # on a large machine two at a time are megabytes
        self.number += 1
        found = survey(self._host, deadline_s=self._deadline_s)
        # Other vendors' drivers and Windows report no figures apart from the rest.
        plain = not self._host.drm.drivers and not found.host.wsl
        self._whole = found if plain and _went_well(found.observations) else None
        self._whole_at = now
        self._last = found
        self._conditions = _conditions(self._host, found) if self._whole else {}
        # All that say more of a process than who it is: what ancestors are doing matters to no reader.
        self._holders = {
            each.process.pid for each in found.observations if each.process and each.probe != _PROCESSES
        }
        self._whole_cpu_s = process_time() - used
        return found

    def _figures_again(self) -> Survey | None:
        """The last survey with the figures of now; None where everything has to be read."""
        assert self._last is not None
        observed = self._host.nvml.read(self._deadline_s, figures_only=True)
        figures = tuple(with_code(each) for each in observed if each.probe in _FIGURES)
        before = tuple(each for each in self._last.observations if each.probe in _FIGURES)
        if not _went_well(figures) or _listed(figures) != _listed(before):
            return None
        states = self._states()
        if states is None:
            return None
        if figures == before and not states:
            return self._last
        others = (each for each in self._last.observations if each.probe not in _FIGURES)
        observations = (*figures, *(states.get(_pid(each), each) for each in others))
        return replace(self._last, taken_at=self._host.clock.now(), observations=observations)

    def _states(self) -> dict[int | None, Observation] | None:
        """Of processes that do something else than before, the new facts; None where one is not as it was."""
        assert self._last is not None
        changed: dict[int | None, Observation] = {}
        for each in self._last.observations:
            if each.probe != _PROCESSES or each.process is None or not isinstance(each.facts, ProcessFacts):
                continue
            pid = each.process.pid
            now, known = self._host.proc.condition(pid), self._conditions.get(pid)
            if now is None or known is None or _is_another(now, known):
                return None
            # Compared with what the survey says: the conditions were read after it.
            if (now.state, now.exiting) != (each.facts.state, each.facts.exiting) and pid in self._holders:
                if now.exiting or now.state == "Z":
                    return None
                facts = self._in_kernel(pid, replace(each.facts, state=now.state, exiting=now.exiting))
                changed[pid] = replace(each, facts=facts)
        return changed

    def _in_kernel(self, pid: int, facts: ProcessFacts) -> ProcessFacts:
        """*facts* with where in the kernel the process is now, if it is; its arguments stay as they were."""
        fresh = self._host.proc.facts(pid) if facts.state == "D" or facts.kill_pending else None
        now = fresh[1] if fresh else None
        return replace(
            facts,
            kill_pending=now is not None and now.kill_pending,
            waits_in=now.waits_in if now else None,
        )


def _conditions(host: Host, found: Survey) -> dict[int, ProcessCondition]:
    pids = {each.process.pid for each in found.observations if each.probe == _PROCESSES and each.process}
    conditions = {pid: host.proc.condition(pid) for pid in pids}
    return {pid: each for pid, each in conditions.items() if each is not None}


def _is_another(now: ProcessCondition, known: ProcessCondition) -> bool:
    """Whether it is another process, runs another program, or was adopted by another parent."""
    return (now.started_at, now.parent, now.image) != (known.started_at, known.parent, known.image)


def _pid(observation: Observation) -> int | None:
    return observation.process.pid if observation.probe == _PROCESSES and observation.process else None


def _went_well(observations: Iterable[Observation]) -> bool:
    return all(each.status not in ("failed", "timeout", "lost") for each in observations)


def _listed(figures: Iterable[Observation]) -> set[object]:
    """Who is charged where, and whether each of them lives on."""
    listed: set[object] = set()
    for each in figures:
        if isinstance(each.facts, ChargeFacts):
            facts = each.facts
            listed.add((each.gpu, each.process, facts.lists, facts.gpu_instance, facts.exiting, facts.ended))
        elif each.probe != "nvml.memory":
            listed.add((each.gpu, each.probe, each.status))
    return listed
