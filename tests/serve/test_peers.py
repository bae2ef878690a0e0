"""Who asks, and whose a process is: told by the kernel, never by a name or a number that somebody wrote."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import get_args

import pytest

from tests.needs import needs
from vram.errors import NoSuchProcess, NotPermitted
from vram.payloads.procfs import started_at
from vram.policy.policy import Consent
from vram.serve.socket import peers
from vram.serve.socket.peers import Peer, identify_own, opted_in, owner_of, peer_of, require_may_act

needs_root = needs("root", detail="only root can become another user")
ME = Peer(os.geteuid(), os.getegid(), os.getpid())


@contextmanager
def forked(become: Callable[[], None] = lambda: None) -> Iterator[tuple[int, int]]:
    """A child that has done *become*, with its start time."""
    told, tell = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            become()
            os.write(tell, b".")
            signal.pause()
        finally:
            os._exit(0)
    os.close(tell)
    os.read(told, 1)
    os.close(told)
    try:
        began = started_at(pid)
        assert began is not None
        yield pid, began
    finally:
        os.kill(pid, 9)
        os.waitpid(pid, 0)


def test_a_peer_is_what_the_kernel_says():
    ours, theirs = socket.socketpair()
    with ours, theirs:
        found = peer_of(ours)
    assert (found.uid, found.gid, found.pid) == (os.geteuid(), os.getegid(), os.getpid())
    assert set(found.groups) == set(os.getgroups())
    require_may_act(found)


@needs("root", detail="only root can join other groups")
def test_its_supplementary_groups_are_known():
    words = (
        "import socket; from vram.serve.socket.peers import peer_of; pair = socket.socketpair();"
        " print(peer_of(pair[0]).groups)"
    )
    said = subprocess.run(
        [sys.executable, "-c", words], extra_groups=[4321, 4322], capture_output=True, text=True
    )
    assert (said.stdout, said.stderr) == ("(4321, 4322)\n", "")


def test_a_kernel_without_a_pidfd_of_the_peer_is_asked_by_pid(monkeypatch: pytest.MonkeyPatch):
    """Before Linux 6.5; who has ended when the connection is accepted may not act."""
    monkeypatch.setattr(peers, "_SO_PEERPIDFD", 9999)
    ours, theirs = socket.socketpair()
    with ours, theirs:
        assert peer_of(ours).is_here
    listening = socket.socket(socket.AF_UNIX)
    listening.bind("")  # a name that the kernel chooses
    listening.listen()
    made = socket.socket(socket.AF_UNIX)
    pid = os.fork()
    if pid == 0:
        made.connect(listening.getsockname())
        os._exit(0)
    os.waitpid(pid, 0)
    with listening, made, listening.accept()[0] as accepted:
        found = peer_of(accepted)
    assert (found.pid, found.is_here) == (pid, False)


@pytest.mark.parametrize("peer", [Peer(0, 0, 0), Peer(65534, 65534, os.getpid()), Peer(0, 0, 1 << 22)])
def test_a_peer_that_is_nobody_or_elsewhere_may_not_act(peer: Peer):
    with pytest.raises(NotPermitted) as caught:
        require_may_act(peer)
    assert caught.value.hint


def test_a_process_is_identified_for_its_owner():
    with forked() as (pid, began):
        assert identify_own(pid, ME) == (pid, began)
        assert owner_of(pid, began) is not None
        assert owner_of(pid, began + 1) is None
    with pytest.raises(NoSuchProcess):
        identify_own(pid, ME)
    assert owner_of(pid, began) is None


@needs_root
@pytest.mark.fault(13, 15)
def test_a_process_with_the_rights_of_two_users_is_nobodys():
    """A set-uid program: its real user is not its effective one. Nobody alone decides about it."""
    with forked(lambda: os.setresuid(4101, 0, 0)) as (pid, began):
        assert owner_of(pid, began) is None
        for uid in (0, 4101):
            with pytest.raises(NotPermitted):
                identify_own(pid, Peer(uid, uid, os.getpid()))
    with forked(_as_somebody) as (pid, began):
        found = owner_of(pid, began)
        assert found is not None
        assert (found.uid, found.gid, found.groups) == (4101, 4102, (7,))
        with pytest.raises(NotPermitted, match="not yours"):
            identify_own(pid, ME)


def _as_somebody() -> None:
    os.setgroups([7])
    os.setresgid(4102, 4102, 4102)
    os.setresuid(4101, 4101, 4101)


@pytest.mark.parametrize("what", get_args(Consent))
@pytest.mark.parametrize(
    ("value", "allowed"), [("idle", True), ("yes", False), ("idle2", False), ("", False), (None, False)]
)
def test_consent_is_one_word_in_the_environment(what: Consent, value: str | None, allowed: bool):
    environment = {"PATH": "/bin", **({} if value is None else {f"VRAM_ALLOW_{what.upper()}": value})}
    code = "print(flush=True); input()"
    with subprocess.Popen([sys.executable, "-c", code], stdin=-1, stdout=-1, env=environment) as program:
        assert program.stdout is not None
        program.stdout.readline()  # before, its environment may still be that of the test, or empty
        began = started_at(program.pid)
        assert began is not None
        assert opted_in(what, program.pid, began) is allowed
        assert not opted_in(what, program.pid, began + 1)
        others = set(get_args(Consent)) - {what}
        assert not any(opted_in(other, program.pid, began) for other in others)
        program.kill()
