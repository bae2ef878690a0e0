"""Which filters forbid to reach a process, by what /proc says of it, of us, and of the first process."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from vram.host.local.seccomp import given_up, given_up_since_start

FULL, DOCKER = 0x1FFFFFFFFFF, 0xA80425FB


class Proc:
    """A tree like /proc, in which vram is pid 50."""

    def __init__(self, root: Path) -> None:
        self.root = root
        (root / "self").symlink_to("50")

    def add(self, pid: int, *threads: str, namespace: int = 1) -> None:
        """Its first thread and further ones, each as `limits` says."""
        for at, status in enumerate(threads):
            folder = self.root / str(pid) / "task" / str(pid + at)
            folder.mkdir(parents=True)
            (folder / "status").write_text(status)
        (self.root / str(pid) / "status").write_text(threads[0])
        (self.root / str(pid) / "ns").mkdir()
        for name in ("mnt", "pid"):
            shared = self.root / f"{name}-{namespace}"
            shared.touch()
            os.link(shared, self.root / str(pid) / "ns" / name)

    def judged(self, pid: int = 7) -> tuple[str | None, str | None]:
        """What forbids to reach it, and what to park it."""
        return given_up(pid, str(self.root)), given_up_since_start(pid, str(self.root))


def limits(mode: int, filters: int | None, *, gave_up: int = 0, capabilities: int = FULL) -> str:
    lines = ["Name:\tpython", f"CapBnd:\t{capabilities:016x}", f"NoNewPrivs:\t{gave_up}", f"Seccomp:\t{mode}"]
    lines += [] if filters is None else [f"Seccomp_filters:\t{filters}"]
    return "\n".join(lines) + "\n"


FREE = limits(0, 0)
OWN_FILTER = limits(2, 1, gave_up=1)
IN_DOCKER = limits(2, 1, capabilities=DOCKER)
IN_POD = limits(2, 1, gave_up=1, capabilities=DOCKER)


@pytest.fixture
def proc(tmp_path: Path) -> Proc:
    return Proc(tmp_path)


@pytest.mark.parametrize(
    ("first", "vram", "program", "found"),
    [
        (FREE, FREE, FREE, (None, None)),
        (FREE, FREE, "Name:\tpython\n", (None, None)),  # a kernel without seccomp
        (FREE, FREE, limits(1, 0), ("strict", "strict")),
        (FREE, FREE, OWN_FILTER, ("filters", "filters")),
        # A service whose unit has filters: as many as the program has, and others.
        (FREE, OWN_FILTER, OWN_FILTER, ("filters", "filters")),
        # root itself sets them without giving anything up.
        (FREE, FREE, limits(2, 1), ("filters", "filters")),
        (FREE, limits(2, 1), limits(2, 1), ("filters", "filters")),
        # In a container, and in one with the host's PID namespace.
        (IN_DOCKER, IN_DOCKER, IN_DOCKER, (None, None)),
        (FREE, IN_DOCKER, IN_DOCKER, (None, None)),
        (IN_POD, IN_POD, IN_POD, (None, None)),
        (FREE, IN_POD, IN_POD, ("filters", "filters")),
        # With one of its own.
        (IN_DOCKER, IN_DOCKER, limits(2, 2, gave_up=1, capabilities=DOCKER), ("filters", "filters")),
        (IN_POD, IN_POD, limits(2, 2, gave_up=1, capabilities=DOCKER), ("filters", "filters")),
        # Started in it with more rights, as by `docker exec --privileged`, and with a filter of its own.
        (IN_DOCKER, IN_DOCKER, limits(2, 1, gave_up=1), ("filters", "filters")),
        # From outside: the driver may work in it, our code may not.
        (FREE, FREE, IN_DOCKER, ("filters", None)),
        (FREE, FREE, IN_POD, ("filters", "filters")),
        # Before Linux 5.9 nobody says how many there are.
        (limits(2, None, capabilities=DOCKER),) * 3 + ((None, None),),
        (limits(2, None, gave_up=1, capabilities=DOCKER),) * 3 + (("filters", "filters"),),
    ],
)
def test_only_filters_of_the_container_are_harmless(
    proc: Proc, first: str, vram: str, program: str, found: tuple[str | None, str | None]
) -> None:
    for pid, status in ((1, first), (50, vram), (7, program)):
        proc.add(pid, status)
    assert proc.judged() == found


def test_every_thread_counts(proc: Proc) -> None:
    proc.add(50, FREE)
    proc.add(7, FREE, FREE, OWN_FILTER)
    assert proc.judged() == ("filters", "filters")


def test_another_container_of_the_same_shape_may_forbid_more(proc: Proc) -> None:
    proc.add(1, IN_DOCKER)
    proc.add(50, IN_DOCKER)
    proc.add(7, IN_DOCKER, namespace=2)
    assert proc.judged() == ("filters", None)


def test_who_has_ended_has_given_up_nothing(proc: Proc) -> None:
    assert proc.judged() == (None, None)
