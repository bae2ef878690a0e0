"""A plan on a screen: every program by its name, and a hundred processes in a few lines."""

from __future__ import annotations

import io

import pytest
from msgspec.structs import replace
from rich.console import Console

from vram.model.plan import Draft, JobActivity, Outcome, Plan, Skipped, Step, Target
from vram.model.process import Job, ProcessRef
from vram.report.layout import RenderOptions
from vram.report.plan import activity, draft, outcomes
from vram.units import GIB

SCREEN_LINES = 24
REASON = "in use: little more than the CUDA context, freed only when the process exits or is parked"


def step(pid: int, command: str, kind: str = "kill", reason: str = "memory of a dead process") -> Step:
    target = Target(
        process=ProcessRef(pid=pid, started_at=1), uid=1000, user="alice", command=command, executable=None
    )
    return Step(
        kind=kind,  # type: ignore[arg-type]
        target=target,
        gpus=(0,),
        predicted_bytes=GIB,
        loses="nothing",
        reversible=False,
        reason=reason,
    )


def plan(*steps: Step, skipped: tuple[Skipped, ...] = ()) -> Draft:
    made = Plan(made_at="", boot_id="", goal_bytes=None, gpus=(0,), steps=steps, digest="0" * 64)
    return Draft(plan=made, skipped=skipped)


def lines(shown: object) -> list[str]:
    console = Console(width=80, record=True, file=io.StringIO())
    console.print(shown)
    return console.export_text().splitlines()


def flat(shown: list[str]) -> str:
    """The words alone, wherever their lines break."""
    return " ".join(" ".join(shown).split())


def test_a_step_names_every_program_that_it_touches() -> None:
    steps = [step(10 + at, "gil.py --api-server") for at in range(4)]
    steps += [step(20 + at, "pool.py") for at in range(2)]
    text = flat(lines(draft(plan(*steps), RenderOptions(80))))
    assert "4× gil.py --api-server, 2× pool.py" in text
    assert "pids 10, 11, 12, 13, 20, 21" in text


def test_more_programs_than_fit_are_counted() -> None:
    steps = [step(at, f"program-{at}.py") for at in range(7)]
    assert "3 other programs" in flat(lines(draft(plan(*steps), RenderOptions(80))))


def test_a_hundred_processes_fit_a_screen_and_are_all_there_when_asked_for() -> None:
    steps = [step(100 + at, f"worker-{at % 9}.py", reason=f"memory of dead pid {at}") for at in range(100)]
    left = tuple(
        Skipped(
            pid=900 + at,
            nbytes=GIB,
            user="alice",
            name="train.py",
            why=REASON,
            command=f"vram park {900 + at}",
            gpus=(at % 2,),
        )
        for at in range(100)
    )
    options = RenderOptions(80)
    short = lines(draft(plan(*steps, skipped=left), options))
    assert len(short) <= SCREEN_LINES
    assert any("-v lists them all" in line for line in short)
    assert "100.0 GiB on GPU 0, 1 · 100 processes · 100× train.py" in flat(short)
    whole = "\n".join(lines(draft(plan(*steps, skipped=left), options, verbose=True)))
    assert all(f"pid {each} " in whole for each in (*range(100, 200), *range(900, 1000)))


def test_processes_that_are_ended_one_by_one_have_a_size_each() -> None:
    steps = [replace(step(10 + at, f"train-{at}.py"), predicted_bytes=(1 + at) * GIB) for at in range(3)]
    shown = lines(draft(plan(*steps), RenderOptions(80)))
    for at, line in enumerate(shown[1:4]):
        assert line.split() == [
            *(["kill"] if not at else []),
            f"{1 + at}.0",
            "GiB",
            *f"pid {10 + at} · alice · train-{at}.py".split(),
        ]
    assert flat(shown).count("memory of a dead process") == 1


def test_who_free_the_same_bytes_have_one_size() -> None:
    """Those who hold the same, or are one job: what the first ones free is not theirs alone."""
    held = [replace(step(10 + at, "pool.py"), predicted_bytes=at * GIB) for at in range(2)]
    assert "kill 1.0 GiB pids 10, 11 · alice · 2× pool.py" in flat(
        lines(draft(plan(*held), RenderOptions(80)))
    )
    ranks = [step(10 + at, "train.py") for at in range(2)]
    job = JobActivity(job=Job(by="torchrun", key="1"), pids=(10, 11), cpu_s=0.0, gpu_percent={})
    whole = replace(plan(*ranks), activity=(job,))
    assert "kill 2.0 GiB pids 10, 11 · alice · 2× train.py" in flat(lines(draft(whole, RenderOptions(80))))


def test_workers_of_multiprocessing_are_one_program() -> None:
    command = (
        "python -c from multiprocessing.spawn import spawn_main; spawn_main(tracker_fd=6, pipe_handle={})"
    )
    steps = [replace(step(10 + at, command.format(8 + at)), predicted_bytes=at * GIB) for at in range(3)]
    assert "3× multiprocessing worker" in flat(lines(draft(plan(*steps), RenderOptions(80))))


def test_what_can_be_undone_says_by_which_command() -> None:
    server = replace(step(10, "vllm serve", "release"), reversible=True)
    assert "`vram release --undo 10` undoes it" in flat(lines(draft(plan(server), RenderOptions(80))))
    idle = [replace(step(10 + at, "train.py", "park"), reversible=True) for at in range(2)]
    assert "`vram unpark PID` undoes it" in flat(lines(draft(plan(*idle), RenderOptions(80))))


def test_outcomes_of_a_kind_are_one_line_with_the_reason_of_those_that_failed() -> None:
    done = [
        Outcome(
            step=step(at, "w.py"),
            status="done",
            used_before=(100 - at) * GIB,
            used_after=(99 - at) * GIB,
            took_s=1,
        )
        for at in range(96)
    ]
    refused = [
        Outcome(
            step=step(at, "gil.py", kind="trim"),
            status="refused",
            used_before=None,
            used_after=None,
            took_s=10,
            message="it keeps the interpreter's lock",
        )
        for at in range(4)
    ]
    shown = lines(outcomes([*done, *refused], RenderOptions(80)))
    assert shown[0].strip() == "done  kill 96 processes: 96× w.py; 96.0 GiB freed"
    assert shown[1].strip() == "refused  trim 4 processes: 4× gil.py"
    assert shown[2].strip() == "it keeps the interpreter's lock"
    assert len(shown) == 3


# ---- what a job still does ----


def active(
    cpu_s: float | None, gpu_percent: dict[int, int | None], pids: tuple[int, ...] = (1, 2)
) -> JobActivity:
    job = Job(by="torchrun", key="k", is_orphan=True, rank=0, size=len(pids))
    return JobActivity(job=job, pids=pids, cpu_s=cpu_s, gpu_percent=gpu_percent)


@pytest.mark.parametrize(
    ("each", "sentence"),
    [
        (active(0.0, {0: 0}), "2 torchrun ranks: 0.0 s of CPU in the last second, GPU 0 is 0% busy"),
        (
            active(1.97, {0: 98, 1: 91, 3: 97}),
            "2 torchrun ranks: 2.0 s of CPU in the last second, GPUs 0-1,3 are 91% to 98% busy",
        ),
        (
            active(0.0, {0: 5, 1: 5, 2: None}),
            "2 torchrun ranks: 0.0 s of CPU in the last second, GPUs 0-1 are 5% busy,"
            " GPU 2 does not say how busy it is",
        ),
        (
            active(None, {0: None, 1: None}),
            "2 torchrun ranks: they have ended, GPUs 0-1 do not say how busy they are",
        ),
    ],
)
def test_what_a_job_still_does_is_one_sentence(each: JobActivity, sentence: str) -> None:
    assert activity(each) == sentence


def test_it_stands_between_the_actions_and_the_digest() -> None:
    made = replace(plan(step(1, "python a.py"), step(2, "python a.py")), activity=(active(0.0, {0: 0}),))
    shown = lines(draft(made, RenderOptions(80)))
    at = shown.index("What they still do")
    assert "2× python a.py" in flat(shown[:at])
    assert shown[at + 1].rstrip() == "  - 2 torchrun ranks: 0.0 s of CPU in the last second, GPU 0 is 0% busy"
    assert shown[-1].startswith("plan 0000")
    assert "still do" not in flat(lines(draft(replace(made, activity=()), RenderOptions(80))))


def test_of_many_jobs_the_busiest_are_shown() -> None:
    jobs = tuple(active(float(used), {0: 0}, (used + 1,)) for used in range(9))
    made = replace(plan(step(1, "python a.py")), activity=jobs)
    shown = lines(draft(made, RenderOptions(80)))
    at = shown.index("What they still do")
    assert [line.split()[4] for line in shown[at + 1 : at + 6]] == ["8.0", "7.0", "6.0", "5.0", "4.0"]
    assert shown[at + 6].strip() == "and 4 more jobs: -v lists them all"
    assert flat(lines(draft(made, RenderOptions(80), verbose=True))).count("of CPU") == 9
