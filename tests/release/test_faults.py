"""Servers that are slow, hostile, foreign or none at all: nothing is followed, nothing waits for ever."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import tests.reach.stalled_files
from tests.needs import needs, skip_without
from tests.patience import PATIENCE_S, must_end, until
from tests.reach.test_stalled import has_stuck_child
from tests.release.conftest import LOOKS, ServerWorld, StandIn, freed
from tests.release.server_program import CACHE, WEIGHTS
from vram.errors import ExitCode

NOBODY = 65534


def test_no_server_at_all(servers: ServerWorld) -> None:
    server = servers.start("vllm", "deaf")
    code, said = servers.refusal(server.pid)
    assert (code, "listens on no socket" in said) == (14, True), said


def test_an_unknown_server_gets_nothing_but_reads(servers: ServerWorld) -> None:
    server = servers.start("unknown")
    code, said = servers.refusal(server.pid)
    assert (code, f"127.0.0.1:{server.port} is no server that vram knows" in said) == (14, True), said
    asked = [(each["method"], each["path"]) for each in server.heard]
    assert {method for method, _ in asked} == {"GET"}
    paths = {path for _, path in asked}
    assert paths == {"/v1/models", "/is_sleeping", "/api/version", "/system_stats", "/v2"}


def test_what_does_not_look_like_a_server_gets_nothing(
    servers: ServerWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(LOOKS, "unknown")
    server = servers.start("unknown")
    code, said = servers.refusal(server.pid)
    assert (code, "nothing was sent" in said) == (14, True), said
    assert server.heard == []


def test_no_http(servers: ServerWorld) -> None:
    server = servers.start("not-http")
    code, said = servers.refusal(server.pid)
    assert (code, "does not speak HTTP" in said) == (14, True), said
    until(lambda: server.heard)
    assert len(server.heard) == 1  # and it is not asked again


@pytest.mark.parametrize("mode", ["huge", "endless"])
def test_an_answer_without_end(servers: ServerWorld, mode: str) -> None:
    server = servers.start("vllm", mode)
    code, said = servers.refusal(server.pid)
    assert (code, "longer than 4 MiB" in said) == (14, True), said


def test_an_answer_that_promises_more_than_it_has(servers: ServerWorld) -> None:
    server = servers.start("vllm", "lying")
    code, said = servers.refusal(server.pid)
    assert (code, "closed the connection" in said) == (14, True), said


def test_a_server_that_never_says_what_it_is(servers: ServerWorld) -> None:
    server = servers.start("vllm", "silent")
    code, said = servers.refusal(server.pid)
    assert (code, "did not answer in time" in said) == (14, True), said
    server.go_on()


@pytest.mark.parametrize("mode", ["redirect", "moved"])
def test_no_redirect_is_followed(servers: ServerWorld, mode: str) -> None:
    other = servers.start("vllm")
    server = servers.start("vllm", mode, f"to={other.port}")
    if mode == "redirect":
        assert servers.refusal(server.pid)[0] == 14
    else:
        receipt = servers.release(server.pid)
        assert (receipt["end"], receipt["asked"][0]["status"]) == ("refused", 307)
    assert other.heard == []


def test_no_proxy_is_asked(servers: ServerWorld) -> None:
    proxy = servers.start("unknown")
    server = servers.start("vllm")
    there = f"http://127.0.0.1:{proxy.port}"
    done = servers.vram(
        "release", server.pid, "--yes", http_proxy=there, HTTP_PROXY=there, all_proxy=there, no_proxy=""
    )
    assert (done.returncode, proxy.heard) == (0, []), done.stderr


def test_a_refusal_of_the_server_is_shown_and_harmless(servers: ServerWorld) -> None:
    server = servers.start("vllm", "error")
    done = servers.vram("release", server.pid, "--yes", "--ascii")
    assert (done.returncode, "HTTP 400" in done.stdout) == (3, True), done.stderr
    assert "\x1b" not in done.stdout
    assert "nothing freed" in done.stdout


def test_done_says_the_server_and_nothing_was_freed(servers: ServerWorld) -> None:
    server = servers.start("vllm", "frees-nothing")
    done = servers.vram("release", server.pid, "--yes", "--ascii", COLUMNS="200")
    assert done.returncode == 1, done.stderr
    assert "nothing freed" in done.stdout
    assert "answered that it is done, and the driver charges it with as much as before" in done.stdout
    assert f"vram release --undo {server.pid}" in done.stdout


def test_it_ends_meanwhile(servers: ServerWorld) -> None:
    server = servers.start("vllm", "dies")
    receipt = servers.release(server.pid)
    assert (receipt["end"], receipt["exit code"]) == ("ended", 3), receipt
    assert receipt["charged_after"] == 0


def test_it_does_not_answer_before_the_deadline(servers: ServerWorld) -> None:
    server = servers.start("vllm", "slow")
    receipt = servers.release(server.pid, "--deadline", "2s")
    assert (receipt["end"], receipt["exit code"], freed(receipt)) == ("unanswered", 3, 0)
    assert receipt["asked"] == [
        {
            "request": "POST /sleep?level=1",
            "status": None,
            "problem": "it did not answer in time",
            "model": None,
        }
    ]
    server.go_on()


def test_interrupted_says_what_was_asked(servers: ServerWorld) -> None:
    server = servers.start("vllm", "slow")
    command = [sys.executable, "-m", "vram", "release", str(server.pid), "--yes"]
    with subprocess.Popen(
        command, env=servers.world.environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as asking:
        server.wait_for("/sleep?level=1")
        asking.send_signal(signal.SIGINT)
        _, said = asking.communicate(timeout=PATIENCE_S)
    assert asking.returncode == 130
    assert "interrupted: POST /sleep?level=1 was sent and not answered: it may still be done" in said
    outcome = servers.world.audit()[-1]
    assert (outcome["status"], outcome["asked"][0]["status"]) == ("failed", None)
    server.go_on()


def test_one_at_a_time(servers: ServerWorld) -> None:
    first, second = servers.start("vllm", "slow"), servers.start("vllm")
    command = [sys.executable, "-m", "vram", "release", str(first.pid), "--yes", "--json"]
    with subprocess.Popen(command, env=servers.world.environment, stdout=subprocess.PIPE) as asking:
        first.wait_for("/sleep?level=1")
        done = servers.vram("release", second.pid, "--yes")
        assert (done.returncode, second.posts()) == (21, []), done.stderr
        first.go_on()
        answer, _ = asking.communicate(timeout=PATIENCE_S)
    assert json.loads(answer)["receipt"]["end"] == "answered"


def test_what_another_vram_asked_meanwhile_is_not_asked_again(
    servers: ServerWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both were prepared while SGLang had its memory; the second request would end it."""
    from vram.errors import WorldChanged
    from vram.host.local import LocalHost
    from vram.reclaim.actions.release import prepare_release, release

    for name in ("LD_LIBRARY_PATH", "VRAM_VIRTUAL_GPU", "XDG_STATE_HOME"):
        monkeypatch.setenv(name, servers.world.environment[name])
    server = servers.start("sglang", "backup")
    host = LocalHost()
    prepared = prepare_release(host, server.pid, undo=False, deadline_s=PATIENCE_S)
    servers.release(server.pid)
    with pytest.raises(WorldChanged, match="another vram asked SGLang meanwhile"):
        release(host, prepared, PATIENCE_S)
    assert server.posts() == ["/release_memory_occupation"]


def test_stopped(servers: ServerWorld) -> None:
    server = servers.start("vllm")
    server.process.send_signal(signal.SIGSTOP)
    os.waitid(os.P_PID, server.pid, os.WSTOPPED)
    code, said = servers.refusal(server.pid)
    assert (code, "is stopped" in said) == (14, True), said
    server.process.send_signal(signal.SIGCONT)


def test_who_holds_nothing_is_not_asked(servers: ServerWorld) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        process = subprocess.Popen(["cat"], stdin=subprocess.PIPE, pass_fds=[listening.fileno()])
        assert servers.refusal(process.pid)[0] == 11
        process.communicate()


def test_the_socket_of_another_process_is_never_used(servers: ServerWorld) -> None:
    """Two servers of one user: only the one that was named is spoken to."""
    named, other = servers.start("ollama"), servers.start("ollama")
    assert freed(servers.release(named.pid)) == WEIGHTS + CACHE
    assert other.heard == []


def test_a_port_that_another_process_shares(servers: ServerWorld) -> None:
    """With SO_REUSEPORT the kernel would choose who gets the request."""
    server = servers.start("vllm", "shared")
    with socket.socket() as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        other.bind(("127.0.0.1", server.port))
        other.listen()
        code, said = servers.refusal(server.pid)
    assert (code, "shared with another process" in said) == (14, True), said
    assert server.posts() == []


def test_no_log_no_action(servers: ServerWorld) -> None:
    server = servers.start("vllm")
    folder = servers.world.state / "vram"
    folder.mkdir(mode=0o700)
    (folder / "audit.jsonl").symlink_to("/dev/full")
    done = servers.vram("release", server.pid, "--yes")
    assert (done.returncode, server.posts()) == (17, []), done.stderr


@needs("root", detail="only root can play two users")
def test_root_asks_another_users_server_by_naming_it(servers: ServerWorld) -> None:
    server = servers.start("vllm", f"uid={NOBODY}")
    receipt = servers.release(server.pid)
    assert receipt["order"]["target"]["uid"] == NOBODY
    assert server.posts() == ["/sleep?level=1"]  # what it may free of the virtual GPU is root's to write


@needs("root", detail="only root can play two users")
def test_another_user_is_refused_and_nothing_is_sent(servers: ServerWorld) -> None:
    server = servers.start("vllm", f"uid={NOBODY}")
    assert _as_user(NOBODY - 1, server.pid) == "NotPermitted"
    root = servers.start("vllm")
    assert _as_user(NOBODY, root.pid) == "NotPermitted"
    assert server.heard == root.heard == []


def _as_user(uid: int, pid: int) -> str:
    """What release is refused with for a user who is not root: in a fork, which has imported all it needs."""
    import vram.reclaim.actions.release
    from vram.errors import VramError
    from vram.host.local import LocalHost

    host = LocalHost()
    host.facts()
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        try:
            os.setgroups([])
            os.setresgid(uid, uid, uid)
            os.setresuid(uid, uid, uid)
            vram.reclaim.actions.release.prepare_release(LocalHost(), pid, undo=False)
            os.write(writing, b"done")
        except VramError as error:
            os.write(writing, type(error).__name__.encode())
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as answer:
        said = answer.read()
    os.waitpid(child, 0)
    return said


@needs("root", detail="only root can play two users")
def test_an_ordinary_user_and_a_server_of_its_own(servers: ServerWorld, tmp_path: Path) -> None:
    state = tmp_path / "theirs"
    state.mkdir(mode=0o700)
    os.chown(state, NOBODY, NOBODY)
    server = servers.start("vllm", f"uid={NOBODY}")
    try:
        done = subprocess.run(
            [sys.executable, "-m", "vram", "release", str(server.pid), "--yes"],
            env={**servers.world.environment, "XDG_STATE_HOME": str(state), "HOME": str(state)},
            user=NOBODY,
            group=NOBODY,
            extra_groups=[],
            cwd="/",
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
        )
    except PermissionError:
        skip_without("readable-by-all", "others cannot start this Python")
    if "No module named" in done.stderr:
        skip_without("readable-by-all", "others cannot read this checkout")
    if done.returncode == ExitCode.NO_DRIVER:
        skip_without("readable-by-all", "others cannot read the folder of the virtual GPU")
    assert done.returncode == 0, done.stderr
    assert server.posts() == ["/sleep?level=1"]


@contextmanager
def stalled(folder: Path) -> Iterator[None]:
    """No name in *folder* is answered for meanwhile: a file system lies over it that its user made."""
    program = [sys.executable, tests.reach.stalled_files.__file__, str(folder), "names"]
    with subprocess.Popen(program, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as server:
        assert server.stdout is not None
        if server.stdout.readline() != b"ready\n":
            server.communicate()
            skip_without("fuse", "no FUSE file system can be mounted here: that takes root and /dev/fuse")
        yield
        server.communicate()


@pytest.fixture
def behind_a_stalled_folder(servers: ServerWorld, tmp_path: Path) -> Iterator[StandIn]:
    """Another user's server, whose Unix socket is in a folder that does not answer any more."""
    folder = tmp_path / "folder"
    folder.mkdir()
    server = servers.start("vllm", f"unix={folder}/socket", f"uid={NOBODY}")
    with stalled(folder):
        yield server


@needs("root", detail="only root asks another user's server")
def test_a_socket_on_a_file_system_that_never_answers(
    servers: ServerWorld, behind_a_stalled_folder: StandIn
) -> None:
    with must_end():
        code, said = servers.refusal(behind_a_stalled_folder.pid)
    assert (code, "on a file system that does not answer" in said) == (14, True), said
    assert behind_a_stalled_folder.heard == []


@needs("root", detail="only root asks another user's server")
def test_ctrl_c_ends_the_wait_for_such_a_file_system(
    servers: ServerWorld, behind_a_stalled_folder: StandIn
) -> None:
    command = [sys.executable, "-m", "vram", "release", str(behind_a_stalled_folder.pid), "--yes"]
    with subprocess.Popen(command, env=servers.world.environment, stderr=subprocess.DEVNULL) as asking:
        until(lambda: has_stuck_child(asking.pid), asking.poll)
        asking.send_signal(signal.SIGINT)
        assert asking.wait(PATIENCE_S) == 130
    assert behind_a_stalled_folder.heard == []
