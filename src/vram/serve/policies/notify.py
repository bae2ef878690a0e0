"""Tells people: on their terminals, by a mail command, by a webhook. No shell; foreign text is inert.

Runs in a worker, so that a name server, a mail program or a web server that hangs holds up nothing else.
"""

from __future__ import annotations

import http.client
import os
import pwd
import re
import ssl
import stat
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from urllib.parse import urlsplit

import msgspec

from vram import untrusted
from vram.policy.policy import NotifyConfig
from vram.report.escape import ascii_only, inert
from vram.serve.socket.worker import Notification

TIMEOUT_S = 10.0
MAIL_S = 30.0
_TERMINALS = "/dev/pts"
_MAX_TOKEN = 4096
_USER = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,63}\$?", re.ASCII)


def notify(message: Notification, how: NotifyConfig) -> tuple[list[str], list[str]]:
    """Tell all whom *how* names; what was done, and what could not be."""
    done: list[str] = []
    failed: list[str] = []
    for uid in message.uids if how.terminals else ():
        count = write_to_terminals(uid, message)
        (done if count else failed).append(f"uid {uid}: written to {count} terminals")
    for user in _recipients(message, how):
        error = _mail(user, message, how)
        (failed if error else done).append(f"mail to {user}{error}")
    if how.webhook:
        error = _post(message, how)
        (failed if error else done).append(f"webhook{error}")
    return done, failed


# ---- terminals, as write(1) does ----


def write_to_terminals(uid: int, message: Notification, folder: str = _TERMINALS) -> int:
    """Write to the terminals of *uid* that take messages (`mesg y`); how many there were."""
    text = "".join(f"\r\n{ascii_only(line)[:500]}" for line in (message.title, *message.lines))
    try:
        numbers = sorted(filter(str.isdigit, os.listdir(folder)), key=int)[:4096]
    except OSError:
        return 0
    return sum(_write(f"{folder}/{number}", uid, f"\a{text}\r\n".encode()) for number in numbers)


def _write(path: str, uid: int, text: bytes) -> bool:
    try:
        about = os.lstat(path)
        if not _takes_messages(about, uid):
            return False
        file = os.open(path, os.O_WRONLY | os.O_NOCTTY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        # Judged again by the descriptor: the name may mean another terminal by now.
        return _takes_messages(os.fstat(file), uid) and os.isatty(file) and os.write(file, text) > 0
    except OSError:  # it is stopped (Ctrl-S), or full
        return False
    finally:
        os.close(file)


def _takes_messages(about: os.stat_result, uid: int) -> bool:
    return stat.S_ISCHR(about.st_mode) and about.st_uid == uid and bool(about.st_mode & stat.S_IWGRP)


# ---- mail ----


def _recipients(message: Notification, how: NotifyConfig) -> Iterator[str]:
    if not how.mail:
        return
    if how.mail_to:
        yield how.mail_to
        return
    for uid in message.uids:
        with suppress(KeyError):
            name = pwd.getpwuid(uid).pw_name
            if _USER.fullmatch(name):
                yield name


def _mail(user: str, message: Notification, how: NotifyConfig) -> str:
    """Run the mail command; why it did not work, or nothing."""
    text = "\n".join(ascii_only(line) for line in message.lines)
    whole = f"To: {ascii_only(user)}\nSubject: {ascii_only(message.title)[:200]}\n\n{text}\n"
    argv = [user if word == "{user}" else word for word in how.mail]
    try:
        done = subprocess.run(
            argv,
            input=whole.encode(),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            timeout=MAIL_S,
            env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LANG": "C.UTF-8"},
            cwd="/",
            start_new_session=True,
        )
    except subprocess.TimeoutExpired:
        return f": it took longer than {MAIL_S:g} s"
    except OSError as error:
        return f": {error.strerror}"
    return f": exit code {done.returncode}" if done.returncode else ""


# ---- webhook ----


def _post(message: Notification, how: NotifyConfig) -> str:
    """POST the message as JSON; why it did not work, or nothing. No proxy, no redirect, no cookies."""
    parts = urlsplit(how.webhook)
    body = msgspec.json.encode(
        {"title": inert(message.title), "lines": [inert(line) for line in message.lines], **message.facts}
    )
    headers = {"Content-Type": "application/json", "User-Agent": "vram"}
    try:
        if how.webhook_token_file:
            headers["Authorization"] = f"Bearer {_token(how.webhook_token_file)}"
        connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=TIMEOUT_S)
        if parts.scheme == "https":
            connection = http.client.HTTPSConnection(
                parts.hostname or "", parts.port, timeout=TIMEOUT_S, context=ssl.create_default_context()
            )
        path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        connection.request("POST", path, body, headers)
        status = connection.getresponse().status
        connection.close()
    except untrusted.Rejected as error:
        return f": the token file cannot be used: {error}"
    except (OSError, http.client.HTTPException, ValueError) as error:
        return f": {type(error).__name__}"  # its text may have the address, which may be a secret itself
    # A redirect is not followed: the token is for that server and no other.
    return "" if 200 <= status < 300 else f": the server answered {status}"


def _token(path: str) -> str:
    """The secret in *path*: a file of ours that no other user can read."""
    data = untrusted.read_file(path, nbytes=_MAX_TOKEN, owner=os.geteuid(), follow=True)
    if os.stat(path).st_mode & 0o077:
        raise untrusted.Rejected("not-ours", "others can read it; its mode should be 0600")
    token = data.decode("ascii", "replace").strip()
    if not token or not token.isprintable() or " " in token or not token.isascii():
        raise untrusted.Rejected("wrong-shape", "it does not contain one word")
    return token
