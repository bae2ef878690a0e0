"""The processes of experiments: they answer, they end when told, and their refusals are reasons."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator

import pytest

from vram.lab.actor import Ended, Puppet
from vram.lab.answer import CannotTell
from vram.lab.nursery import Nursery


@pytest.fixture
def puppet() -> Iterator[Puppet]:
    """One that has loaded no driver."""
    started = Puppet(os.environ)
    started.left_s = lambda: 30.0
    yield started
    started.close()


def test_lines_of_python_are_run_and_answered(puppet: Puppet) -> None:
    puppet.ask("python", "x = 20")
    assert puppet.ask("python", "answer = x + 1") == 21


def test_what_a_library_prints_does_not_come_between(puppet: Puppet) -> None:
    assert puppet.ask("python", "import os; print('chatter'); os.write(1, b'{}\\n'); answer = 1") == 1


def test_only_the_first_line_of_an_error_is_a_reason(puppet: Puppet) -> None:
    with pytest.raises(CannotTell) as caught:
        puppet.ask("python", r"raise ValueError('it failed\nat length')")
    assert str(caught.value) == "ValueError: it failed"


def test_a_missing_library_is_named_as_people_call_it(puppet: Puppet) -> None:
    with pytest.raises(CannotTell, match="CuPy is not installed"):
        puppet.ask("python", "raise ModuleNotFoundError('no', name='cupy.cuda')")


def test_one_that_dies_is_noticed_although_its_child_lives(puppet: Puppet) -> None:
    """A forked heir keeps the pipe open: end of file alone would never come."""
    puppet.ask("fork")
    with pytest.raises(Ended):
        puppet.ask("python", f"import os; os.kill(os.getpid(), {int(signal.SIGKILL)})")


def test_one_that_does_not_answer_is_given_up(puppet: Puppet) -> None:
    until = time.monotonic() + 0.5
    puppet.left_s = lambda: until - time.monotonic()
    with pytest.raises(CannotTell, match="not done by the deadline"):
        puppet.ask("python", "import signal; signal.pause()")


def test_one_that_waits_has_imported_its_library_already() -> None:
    nursery = Nursery("GPU-0")
    nursery.expect("wave")
    puppet = nursery.take("wave", lambda: 30.0)
    try:
        assert puppet.ask("python", "import sys; answer = 'wave' in sys.modules") is True
    finally:
        puppet.close()


def test_those_that_still_wait_are_ended() -> None:
    nursery = Nursery("GPU-0")
    nursery.expect("")
    (waiting,) = nursery._waiting[""]
    pidfd = os.pidfd_open(waiting.pid)
    nursery.close()
    with pytest.raises(ProcessLookupError):
        signal.pidfd_send_signal(pidfd, 0)
    os.close(pidfd)
