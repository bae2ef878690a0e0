"""What a statement is, what decides it, and how its verdict follows from what was measured.

The verdict of a statement that an experiment can decide is not written down: it follows from the evidence. A
case may cite only what could have come out the other way. Where nothing can be measured (advice, what other
machines do, what documentation promises), the judgement is ours, is marked so, and counts apart.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Literal

import msgspec
from msgspec import Struct

from vram.lab.claim import OK, of
from vram.model.lab import LabReport, Result
from vram.report.lab import read_evidence
from vram.units import MIB, size

Verdict = Literal["true", "false", "depends", "not measured yet"]
Kind = Literal["statement", "technique", "program", "advice"]
Basis = Literal["measured", "judged in part", "judged"]

NEARLY_ALL, NEARLY_NOTHING = 0.9, 0.1
FAILURE = re.compile(r"Error|error:|failed|has no attribute")
NEAR_BYTES = MIB
"""Programs of examples/ run alone, and are read to the block."""

BLOCK = 2 * MIB
"""The driver hands out so much at a time."""

CHANGED = {
    "reset-not-enough": "2026-11-16T09:30:00Z",
    "pycuda-thread": "2026-11-16T09:30:00Z",
}
"""When the experiment of a claim began to measure something else: results from before are none of it."""


# ---- what was measured ----


class Step(Struct, frozen=True):
    """Device memory in use when a program of examples/ reached a step, more than before it started."""

    step: str
    nbytes: int


class ProgramRun(Struct, frozen=True):
    """One run of a program of examples/."""

    program: str
    question: str
    number: int
    version: str
    runtime: str | None = None
    steps: tuple[Step, ...] = ()
    exit_code: int | None = None
    output: tuple[str, ...] = ()
    skipped: str | None = None
    compiled_as: str | None = None
    compile_error: str | None = None

    @property
    def used(self) -> dict[str, int]:
        return {step.step: step.nbytes for step in self.steps}

    @property
    def error(self) -> str | None:
        """The first line of its output that tells of an error."""
        return next((line for line in self.output if FAILURE.search(line)), None)


class ProgramRuns(Struct, frozen=True):
    """What tests/hardware/test_examples.py keeps of all programs."""

    gpu: str
    driver: str
    virtual: bool
    date: str
    programs: tuple[ProgramRun, ...]


class Evidence(Struct, frozen=True):
    """The newest results for one GPU and driver: of the lab by claim, of the examples by program."""

    gpu: str
    driver: str
    date: str
    claims: dict[str, Result]
    programs: dict[str, ProgramRun] = {}


def read(folder: Path) -> Evidence:
    """What *folder* has about the GPU and driver of the lab's newest run on real hardware."""
    found = [read_evidence(path.read_bytes()) for path in folder.glob("*-lab.json")]
    reports = sorted((each for each in found if not each.virtual), key=lambda report: report.taken_at)
    newest = reports[-1]
    runs = [
        msgspec.json.decode(path.read_bytes(), type=ProgramRuns) for path in folder.glob("*-examples.json")
    ]
    return merged(
        [each for each in reports if (each.gpu, each.driver) == (newest.gpu, newest.driver)],
        [each for each in runs if (each.gpu, each.driver) == (newest.gpu, newest.driver)],
    )


def merged(reports: Sequence[LabReport], runs: Sequence[ProgramRuns] = ()) -> Evidence:
    """The newest decided result of each claim, and the newest run of each program, of one GPU and driver."""
    claims: dict[str, Result] = {}
    for report in reports:
        for result in report.results:
            if report.taken_at < CHANGED.get(result.experiment, ""):
                continue
            if result.verdict != "cannot tell" or result.experiment not in claims:
                claims[result.experiment] = result
    # A C++ program is there twice: with the runtime linked statically it shows the same.
    programs = {
        each.program: each
        for run in sorted(runs, key=lambda run: run.date)
        for each in run.programs
        if each.runtime != "static"
    }
    newest = reports[-1]
    return Evidence(newest.gpu, newest.driver or "unknown", newest.taken_at[:10], claims, programs)


# ---- what decides ----


class Answer(Struct, frozen=True):
    """Whether the statement holds in one case (None: it was not measured), and the figure."""

    holds: bool | None
    figure: str


class ByClaim(Struct, frozen=True):
    """A claim of the lab that says the same as the statement, or with *denied* the opposite."""

    claim: str
    denied: bool
    when: str

    def answer(self, evidence: Evidence) -> Answer:
        result = evidence.claims.get(self.claim)
        if result is None:
            return Answer(None, f"{self.claim} was not run yet")
        if result.verdict == "cannot tell":
            return Answer(None, result.because)
        return Answer((result.verdict == "true here") is not self.denied, result.because)


class ByReading(Struct, frozen=True):
    """An experiment of the lab: the statement says that from one of its stages to the next *nbytes* came into
    use."""

    claim: str
    first: str
    then: str
    nbytes: int
    when: str

    def answer(self, evidence: Evidence) -> Answer:
        result = evidence.claims.get(self.claim)
        used = {each.stage: each.used_bytes for each in result.readings} if result else {}
        if self.first not in used or self.then not in used:
            return Answer(None, f"{self.claim} was not run yet")
        grown = used[self.then] - used[self.first]
        share = _share(grown, self.nbytes)
        return Answer(share, f"{of(grown, self.nbytes)} came into use")


class ByFigures(Struct, frozen=True):
    """Two figures of one experiment: the statement says that the first is the smaller one."""

    claim: str
    smaller: str
    larger: str
    when: str

    def answer(self, evidence: Evidence) -> Answer:
        result = evidence.claims.get(self.claim)
        found = {each.name: each.value for each in result.figures} if result else {}
        if result is None or self.smaller not in found or self.larger not in found:
            return Answer(None, f"{self.claim} was not run yet" if result is None else result.because)
        return Answer(found[self.smaller] < found[self.larger], result.because)


class ByAnswer(Struct, frozen=True):
    """A figure of an experiment that is the answer of a call: the statement says that the call is refused."""

    claim: str
    figure: str
    when: str

    def answer(self, evidence: Evidence) -> Answer:
        result = evidence.claims.get(self.claim)
        found = {each.name: each.value for each in result.figures} if result else {}
        if result is None or self.figure not in found:
            return Answer(None, f"{self.claim} was not run yet" if result is None else result.because)
        return Answer(found[self.figure] != OK, result.because)


class ByProgram(Struct, frozen=True):
    """A program of examples/: how many of *nbytes* are in use at the step *then*.

    At the step *first* all of them were in use, or with *gained* none of them. Without *nbytes* it is all
    that the program has in use at *first*, its context included. The statement says that they are in use,
    or with *denied* that they are not.
    """

    program: str
    first: str
    then: str
    nbytes: int | None
    gained: bool
    denied: bool
    when: str

    def answer(self, evidence: Evidence) -> Answer:
        run = _run(self.program, evidence, self.first, self.then)
        if isinstance(run, Answer):
            return run
        used = run.used
        whole = used[self.first] if self.nbytes is None else self.nbytes
        kept = used[self.then] - used[self.first] + (0 if self.gained else whole)
        figure = f"{of(kept, whole)} in use at the step “{self.then}”"
        share = _share(kept, whole)
        return Answer(None if share is None else share is not self.denied, figure)


def _share(nbytes: int, whole: int) -> bool | None:
    """Whether *nbytes* are nearly all of *whole* (True), hardly any (False), or neither (None)."""
    if nbytes >= NEARLY_ALL * whole:
        return True
    return False if nbytes <= max(NEARLY_NOTHING * whole, NEAR_BYTES) else None


def _run(program: str, evidence: Evidence, *steps: str) -> ProgramRun | Answer:
    """The run of *program* that got to all of *steps*; or the answer that there is none."""
    run = evidence.programs.get(program)
    if run is None or run.skipped:
        return Answer(None, (run and run.skipped) or f"{program} was not run yet")
    if set(steps) <= set(run.used):
        return run
    return Answer(None, f"{program} did not get there: exit code {run.exit_code}")


class ByEnd(Struct, frozen=True):
    """The statement says that a program of examples/ leaves memory in use when it has ended, or with *denied*
    that it leaves none. A single block that stays is found."""

    program: str
    denied: bool
    when: str

    def answer(self, evidence: Evidence) -> Answer:
        run = _run(self.program, evidence, "started", "ended")
        if isinstance(run, Answer):
            return run
        left = run.used["ended"] - run.used["started"]
        figure = f"{size(max(0, left))} more in use when it had ended than before it began"
        return Answer((left > NEAR_BYTES) is not self.denied, figure)


class ByAmount(Struct, frozen=True):
    """The statement says that a program of examples/ frees no more than *nbytes* from *first* to *then*."""

    program: str
    first: str
    then: str
    nbytes: int
    when: str

    def answer(self, evidence: Evidence) -> Answer:
        run = _run(self.program, evidence, self.first, self.then)
        if isinstance(run, Answer):
            return run
        freed = run.used[self.first] - run.used[self.then]
        most = -(-self.nbytes // BLOCK) * BLOCK
        figure = f"{size(freed)} came back at the step “{self.then}”"
        return Answer(freed <= most, figure)


class ByRun(Struct, frozen=True):
    """The statement takes it that a program runs as it is written, without an error."""

    program: str
    when: str

    def answer(self, evidence: Evidence) -> Answer:
        run = _run(self.program, evidence)
        if isinstance(run, Answer):
            return run
        if run.error is None and run.exit_code == 0:
            return Answer(True, "it ran without an error")
        return Answer(False, f"it says: {run.error}" if run.error else f"its exit code is {run.exit_code}")


class ByWords(Struct, frozen=True):
    """The statement takes the last words of a program for proof that it did what they say.

    It holds where they are printed if all went well, and only then.
    """

    program: str
    words: str
    when: str

    def answer(self, evidence: Evidence) -> Answer:
        run = _run(self.program, evidence)
        if isinstance(run, Answer):
            return run
        printed = self.words in run.output
        if printed and run.error is None:
            return Answer(True, f"it printed “{self.words}”, and no error")
        figure = f"it {'printed' if printed else 'did not print'} “{self.words}”"
        return Answer(not printed, f"{figure} after: {run.error}" if run.error else figure)


class ByCompiler(Struct, frozen=True):
    """The statement takes it that a program compiles as it is written: as C++, or with *cuda* as CUDA."""

    program: str
    cuda: bool
    when: str

    def answer(self, evidence: Evidence) -> Answer:
        run = evidence.programs.get(self.program)
        if run is None:
            return Answer(None, f"{self.program} was not compiled yet")
        error = None if self.cuda and run.compiled_as else run.compile_error
        return Answer(error is None, f"the compiler says: {error}" if error else "it compiles")


class ByJudgement(Struct, frozen=True):
    """Nothing that can be measured decides: our judgement, and why."""

    holds: bool
    because: str
    when: str

    def answer(self, evidence: Evidence) -> Answer:
        return Answer(self.holds, self.because)


OfClaim = ByClaim | ByReading | ByFigures | ByAnswer
"""Cases that an experiment of the lab decides."""

OfProgram = ByProgram | ByEnd | ByAmount | ByRun | ByWords | ByCompiler
"""Cases that a program of examples/ decides."""

Case = OfClaim | OfProgram | ByJudgement


class Statement(Struct, frozen=True):
    """One statement of an article in our own words, the cases that decide it, and the pages that answer it.

    A page is named from docs/ on. Experiments and programs among the cases are linked by themselves.
    """

    text: str
    cases: tuple[Case, ...]
    pages: tuple[str, ...]
    kind: Kind = "statement"


class Judgement(Struct, frozen=True):
    """The verdict on one statement; each case with its answer."""

    verdict: Verdict
    answers: tuple[tuple[Case, Answer], ...]

    @property
    def basis(self) -> Basis:
        """Whether it rests on measurements, on our judgement, or on both."""
        judged = sum(isinstance(case, ByJudgement) for case, _ in self.answers)
        return "measured" if not judged else "judged" if judged == len(self.answers) else "judged in part"


def judge(statement: Statement, evidence: Evidence) -> Judgement:
    """True or false where all cases agree, depends where they differ.

    A case that was not measured leaves the verdict open, unless the others differ already.
    """
    answers = tuple((case, case.answer(evidence)) for case in statement.cases)
    decided = {answer.holds for _, answer in answers} - {None}
    if len(decided) > 1:
        return Judgement("depends", answers)
    if any(answer.holds is None for _, answer in answers):
        return Judgement("not measured yet", answers)
    return Judgement("true" if decided == {True} else "false", answers)


# ---- how the tables are written ----


def affirms(claim: str, when: str = "") -> Case:
    """The statement says what the claim says."""
    return ByClaim(claim, False, when)


def denies(claim: str, when: str = "") -> Case:
    """The statement says the opposite of the claim."""
    return ByClaim(claim, True, when)


def stays(program: str, first: str, then: str, nbytes: int | None = None, when: str = "") -> Case:
    """The statement says that what *program* had at *first* is still in use at *then*."""
    return ByProgram(program, first, then, nbytes, gained=False, denied=False, when=when)


def goes(program: str, first: str, then: str, nbytes: int | None = None, when: str = "") -> Case:
    """The statement says that what *program* had at *first* is not in use any more at *then*."""
    return ByProgram(program, first, then, nbytes, gained=False, denied=True, when=when)


def gains(program: str, first: str, then: str, nbytes: int, when: str = "") -> Case:
    """The statement says that *nbytes* came into use from *first* to *then*."""
    return ByProgram(program, first, then, nbytes, gained=True, denied=False, when=when)


def leaves(program: str, when: str = "") -> Case:
    """The statement says that memory is in use when *program* has ended."""
    return ByEnd(program, False, when)


def leaves_nothing(program: str, when: str = "") -> Case:
    """The statement says that no memory is in use when *program* has ended."""
    return ByEnd(program, True, when)


def frees_at_most(program: str, first: str, then: str, nbytes: int, when: str = "") -> Case:
    """The statement says that what *program* frees from *first* to *then* is *nbytes*."""
    return ByAmount(program, first, then, nbytes, when)


def compiles(program: str, when: str = "") -> Case:
    """The statement takes it that *program* compiles as it is, as C++."""
    return ByCompiler(program, False, when)


def compiles_as_cuda(program: str, when: str = "") -> Case:
    """The statement takes it that nvcc compiles *program* as it is, as a source of CUDA."""
    return ByCompiler(program, True, when)


def proves(program: str, words: str, when: str = "") -> Case:
    """The statement takes the *words* that *program* prints for proof."""
    return ByWords(program, words, when)


def runs(program: str, when: str = "") -> Case:
    """The statement takes it that *program* runs as it is, without an error."""
    return ByRun(program, when)


def takes(claim: str, first: str, then: str, nbytes: int, when: str = "") -> Case:
    """The statement says that *nbytes* were taken from *first* to *then*, two stages of an experiment."""
    return ByReading(claim, first, then, nbytes, when)


def less(claim: str, smaller: str, larger: str, when: str = "") -> Case:
    """The statement says that one figure of the claim's experiment is smaller than the other."""
    return ByFigures(claim, smaller, larger, when)


def refuses(claim: str, figure: str, when: str = "") -> Case:
    """The statement says that the call whose answer is that *figure* of the experiment is refused."""
    return ByAnswer(claim, figure, when)


def right(because: str, when: str = "") -> Case:
    """It cannot be measured here; we judge it right."""
    return ByJudgement(True, because, when)


def wrong(because: str, when: str = "") -> Case:
    """It cannot be measured here; we judge it wrong."""
    return ByJudgement(False, because, when)


def statement(text: str, *cases: Case, pages: Iterable[str] = (), kind: Kind = "statement") -> Statement:
    return Statement(text, cases, tuple(pages), kind)
