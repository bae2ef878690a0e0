"""One screen for people: problems first, each with its fix; whatever a name is made of."""

from __future__ import annotations

import io

from msgspec.structs import replace
from rich.console import Console

from tests.doctor.hosts import SOUND, USER, absent, confined, facts, survey, with_host_files
from vram.doctor.check import DoctorFacts
from vram.doctor.checks import examine
from vram.model.doctor import AttachTest, DriverTest, HostFiles, KernelTest
from vram.report.doctor import text
from vram.report.layout import RenderOptions

SCREEN = 40

# Everything is wrong that can be wrong at the same time, but for a driver that is not there.
AILING = facts(
    survey=replace(
        confined(unreadable=213).survey,
        host=replace(USER, initial_pid_namespace=False),
    ),
    host_files=replace(confined(yama=1, hidepid="2").host_files, nodes=()),
    cupti=(),
    driver_test=DriverTest(hung_in="cuInit"),
    kernel_test=KernelTest(pidfd_open=1, pidfd_getfd=1, kcmp=1, ptrace=1, natives={"libvramscan.so": "no"}),
    attach_test=AttachTest(version="3.12", errors={"at work": "EPERM"}),
    records=replace(SOUND.records, error="the folder is somebody else's", hint="set XDG_STATE_HOME"),
    program=replace(SOUND.program, packages={"msgspec": "1", "rich": "1", "nvidia-ml-py": "1"}),
)


def lines(host: DoctorFacts, width: int = 80, *, ascii: bool = False, verbose: bool = False) -> list[str]:
    found = examine(host)
    look = RenderOptions(width=width, ascii=ascii)
    out = io.StringIO()
    shown = text(found, host.survey.host, host.survey.taken_at, look, verbose=verbose)
    Console(file=out, width=width, markup=False, highlight=False, emoji=False).print(shown)
    return [line.rstrip() for line in out.getvalue().splitlines()]


def test_a_sound_host_needs_half_a_screen() -> None:
    shown = lines(SOUND)
    assert len(shown) <= SCREEN // 2
    assert "Everything that vram needs works." in shown


def test_a_host_with_some_trouble_fits_on_one_screen() -> None:
    host = replace(confined(unreadable=213, yama=1), attach_test=None)
    assert len(lines(host)) <= SCREEN


def test_no_line_is_wider_than_the_terminal() -> None:
    for width in (40, 80, 200):
        assert max(map(len, lines(AILING, width))) <= width


def test_problems_come_before_what_is_well_and_the_gravest_first() -> None:
    shown = "\n".join(lines(AILING, 200))
    broken, missing = shown.index("driver.cuda broken"), shown.index("driver.nodes missing")
    assert broken < missing < shown.index("permissions.processes limited")
    assert shown.index("permissions.processes limited") < shown.index("reaching.cupti missing, optional")
    assert shown.index("reaching.cupti") < shown.index("\n  driver  ")


def test_every_problem_has_its_fix_beside_it() -> None:
    shown = lines(AILING, 200)
    heads = [at for at, line in enumerate(shown) if line.startswith(("●", "▲", "○"))]
    assert len(heads) >= 10
    for at, after in zip(heads, [*heads[1:], len(shown)], strict=True):
        assert any(line.startswith("  → ") for line in shown[at:after]), shown[at]


def test_every_check_has_a_line_of_its_own_when_asked_for() -> None:
    shown = lines(SOUND, verbose=True)
    assert sum(line.startswith("·") for line in shown) == len(examine(SOUND).results)


def test_ascii_has_nothing_else() -> None:
    shown = "\n".join(lines(AILING, ascii=True) + lines(facts(survey=absent()), ascii=True))
    assert shown.isascii()


def test_names_cannot_steer_the_terminal() -> None:
    hostile = with_host_files(injection="/x\x1b[2J\u202e.so")
    records = replace(SOUND.records, error="\x1b]0;owned\x07 is not yours")
    shown = "\n".join(lines(replace(hostile, records=records), 200, verbose=True))
    assert "\x1b" not in shown
    assert "\u202e" not in shown
    assert "\\x1b[2J" in shown


def test_a_bare_host_is_a_short_story() -> None:
    shown = lines(facts(survey=absent(), host_files=HostFiles()))
    assert shown[1].startswith("No NVIDIA driver answers here: vram has no GPU to read.")
    assert len(shown) <= SCREEN


def test_a_virtual_gpu_says_that_it_is_one() -> None:
    virtual = facts(survey=survey(host=replace(USER, virtual=True)))
    assert "virtual GPUs, no real hardware" in " ".join(lines(virtual))
