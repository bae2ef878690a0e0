"""Telling people: terminals that take messages, a mail command, a webhook; hostile text, hostile servers."""

from __future__ import annotations

import json
import os
import select
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from tests.needs import needs
from vram.policy.policy import Decision, NotifyConfig, PolicyTarget
from vram.serve.policies.notify import notify, write_to_terminals
from vram.serve.policies.reports import notice
from vram.units import GIB

needs_root = needs("root", detail="only root can hand a terminal to another user")

HOSTILE = "x\x1b]0;owned\x07\n\r\x9b31m\u202eevil\udcff"
DECISION = Decision(
    number=1,
    at="2026-01-01T00:00:00Z",
    policy="tell",
    do="warn",
    mode="act",
    verdict="act",
    reason="2.0 GiB of a dead owner",
    subject="ghost",
    targets=(PolicyTarget(4711, 1, "alice", f"python {HOSTILE}"),),
    gpus=(0,),
    nbytes=2 * GIB,
    code="VR101",
    evidence=(f"pid 4711 {HOSTILE}",),
    held_s=600.0,
)
NOTICE = notice(DECISION, "node", (4101,))


def test_a_notice_says_what_where_since_when_and_how_to_free_it():
    text = "\n".join((NOTICE.title, *NOTICE.lines))
    for part in ("node", "2.0 GiB", "GPU 0", "10 min", "pid 4711", "vram kill 4711"):
        assert part in text


# ---- terminals ----


class Terminal:
    """A terminal of *uid*: what is written to it can be read."""

    def __init__(self, uid: int, mode: int) -> None:
        self.master, self.slave = os.openpty()
        self.path = os.ttyname(self.slave)
        os.chown(self.path, uid, -1)
        os.chmod(self.path, mode)

    def read(self) -> bytes:
        return os.read(self.master, 65536) if select.select([self.master], [], [], 0)[0] else b""

    def close(self) -> None:
        os.close(self.master)
        os.close(self.slave)


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as opened:
        yield opened


def terminal(stack: ExitStack, uid: int, mode: int = 0o620) -> Terminal:
    made = Terminal(uid, mode)
    stack.callback(made.close)
    return made


@needs_root
@pytest.mark.fault(26)
def test_only_the_owners_terminals_that_take_messages_are_written_to(stack: ExitStack):
    taking, refusing, others = terminal(stack, 4101), terminal(stack, 4101, 0o600), terminal(stack, 4102)
    assert write_to_terminals(4101, NOTICE) == 1
    written = taking.read()
    assert b"vram kill 4711" in written
    # One bell, and line ends: nothing else that a terminal would obey, whatever a process calls itself.
    assert set(written) - set(range(32, 127)) == set(b"\a\r\n")
    assert written.count(b"\a") == 1
    assert (refusing.read(), others.read()) == (b"", b"")


@needs_root
def test_a_terminal_that_is_full_holds_nobody_up(stack: ExitStack):
    taking = terminal(stack, 4101)
    os.set_blocking(taking.slave, False)
    with suppress(BlockingIOError):
        while True:
            os.write(taking.slave, b"x" * 4096)
    assert write_to_terminals(4101, NOTICE) in (0, 1)  # a part of it may still fit


def test_what_only_looks_like_a_terminal_is_not_written_to(tmp_path: Path):
    (tmp_path / "0").write_text("")
    os.chmod(tmp_path / "0", 0o660)
    (tmp_path / "1").symlink_to("/dev/null")
    os.mkfifo(tmp_path / "2", 0o660)
    assert write_to_terminals(os.geteuid(), NOTICE, str(tmp_path)) == 0
    assert (tmp_path / "0").read_text() == ""


# ---- mail ----


def mail_script(folder: Path, code: str) -> str:
    script = folder / "mail"
    script.write_text(f"#!{sys.executable}\nimport json, os, sys, time\n{code}")
    script.chmod(0o755)
    return str(script)


@pytest.mark.fault(26)
def test_mail_goes_to_a_command_without_a_shell(tmp_path: Path):
    out = tmp_path / "out.json"
    code = f"json.dump([sys.argv[1:], sys.stdin.read(), dict(os.environ)], open({str(out)!r}, 'w'))"
    user = os.environ["SECRET_OF_THE_TEST"] = "must not be passed on"
    how = NotifyConfig(mail=(mail_script(tmp_path, code), "-s", "$(touch x)", "{user}"), mail_to="root")
    done, failed = notify(NOTICE, how)
    del os.environ["SECRET_OF_THE_TEST"]
    assert (done, failed) == (["mail to root"], [])
    argv, message, environment = json.loads(out.read_text())
    assert argv == ["-s", "$(touch x)", "root"]
    head, body = message.split("\n\n", 1)
    assert head.splitlines()[0] == "To: root"
    assert len(head.splitlines()) == 2
    assert "vram kill 4711" in body
    assert message.isascii()
    assert "\x1b" not in message
    assert user not in environment.values()


@pytest.mark.parametrize("code", ["sys.exit(3)", "os.kill(os.getpid(), 9)"])
def test_a_mail_command_that_fails_is_a_sentence(tmp_path: Path, code: str):
    done, failed = notify(NOTICE, NotifyConfig(mail=(mail_script(tmp_path, code),), mail_to="root"))
    assert done == []
    assert "exit code" in failed[0]


def test_a_mail_command_that_is_missing_is_a_sentence():
    assert "No such file" in notify(NOTICE, NotifyConfig(mail=("/nonexistent/mail",), mail_to="x"))[1][0]


# ---- webhook ----


class Hook(HTTPServer):
    """Remembers what was posted, and answers as a test says."""

    def __init__(self, status: int = 200, location: str = "") -> None:
        self.posted: list[tuple[str, dict[str, str], bytes]] = []
        self.status, self.location = status, location
        super().__init__(("127.0.0.1", 0), _Answer)
        self._thread = threading.Thread(target=self.serve_forever, daemon=True)
        self._thread.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/hook?room=1"

    def close(self) -> None:
        self.shutdown()
        self.server_close()
        self._thread.join()


class _Answer(BaseHTTPRequestHandler):
    server: Hook

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.posted.append((self.path, dict(self.headers), body))
        self.send_response(self.server.status)
        if self.server.location:
            self.send_header("Location", self.server.location)
        self.end_headers()

    do_GET = do_POST

    def log_message(self, *_: Any) -> None:
        pass


def hook(stack: ExitStack, status: int = 200, location: str = "") -> Hook:
    made = Hook(status, location)
    stack.callback(made.close)
    return made


@pytest.mark.fault(27)
def test_a_webhook_gets_json_and_the_token_and_no_proxy_is_asked(
    stack: ExitStack, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    proxy, server = hook(stack), hook(stack)
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy"):
        monkeypatch.setenv(name, proxy.url)
    token = tmp_path / "token"
    token.write_text("s3cret\n")
    token.chmod(0o600)
    how = NotifyConfig(webhook=server.url, webhook_token_file=str(token))
    done, failed = notify(NOTICE, how)
    assert (done, failed) == (["webhook"], [])
    ((path, headers, body),) = server.posted
    assert path == "/hook?room=1"
    assert headers["Authorization"] == "Bearer s3cret"
    sent = json.loads(body)
    assert (sent["code"], sent["nbytes"], sent["processes"][0]["pid"]) == ("VR101", 2 * GIB, 4711)
    assert "s3cret" not in body.decode()
    assert sent["processes"][0]["command"].isprintable()
    assert proxy.posted == []


def test_a_redirect_is_not_followed(stack: ExitStack):
    elsewhere = hook(stack)
    server = hook(stack, 307, elsewhere.url)
    done, failed = notify(NOTICE, NotifyConfig(webhook=server.url))
    assert (done, failed) == ([], ["webhook: the server answered 307"])
    assert elsewhere.posted == []


def made_readable(path: Path) -> None:
    path.write_text("x")
    path.chmod(0o644)


def made_empty(path: Path) -> None:
    path.write_text("")
    path.chmod(0o600)


def made_two_lines(path: Path) -> None:
    path.write_text("a\r\nHost: evil")
    path.chmod(0o600)


@pytest.mark.parametrize("prepare", [made_readable, made_empty, made_two_lines, lambda path: None])
def test_a_token_file_that_cannot_be_trusted_sends_nothing(stack: ExitStack, tmp_path: Path, prepare: Any):
    server = hook(stack)
    prepare(tmp_path / "token")
    how = NotifyConfig(webhook=server.url, webhook_token_file=str(tmp_path / "token"))
    done, failed = notify(NOTICE, how)
    assert done == []
    assert "token file" in failed[0]
    assert server.posted == []


def test_nobody_listening_is_a_sentence_without_the_address(stack: ExitStack):
    server = Hook()
    server.close()
    (failed,) = notify(NOTICE, NotifyConfig(webhook=server.url))[1]
    assert "ConnectionRefused" in failed
    assert "127.0.0.1" not in failed
