"""The audit log: what is about to be done, and its outcome. No log, no action.

One JSON object on each line of ``audit.jsonl`` in the private state folder. A line is written
whole and is on the disk before anything is done. A file that is full becomes ``audit.jsonl.1``; the
oldest of these goes.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from itertools import product
from typing import Any

import msgspec

from vram import untrusted
from vram.errors import AuditUnavailable, NotPermitted, Protected, Refused
from vram.reclaim import state

FILE = "audit.jsonl"
LOCK_S = 5.0
MAX_BYTES, MAX_FULL_FILES = 16 << 20, 8
_PAUSE_S = 0.001


def log_intent(record: Mapping[str, Any]) -> str:
    """Log what is about to happen; return the token that its outcome will carry.

    Raises AuditUnavailable where it cannot be written, and then nothing may be done.
    """
    return log_intents((record,))[0]


def log_intents(records: Sequence[Mapping[str, Any]]) -> list[str]:
    """Log what is about to happen at once, all of it before the first is done; return the tokens."""
    tokens = [os.urandom(8).hex() for _ in records]
    pairs = zip(tokens, records, strict=True)
    _append([{"event": "intend", "token": token, **_header(), **record} for token, record in pairs])
    return tokens


def log_outcome(token: str, record: Mapping[str, Any]) -> None:
    """Log the outcome. Where that fails, nothing further may be done."""
    log_outcomes({token: record})


def log_outcomes(records: Mapping[str, Mapping[str, Any]]) -> None:
    """Log the outcomes of what was done at once, by their tokens."""
    _append(
        [{"event": "outcome", "token": token, **_header(), **record} for token, record in records.items()]
    )


def log_refusal(record: Mapping[str, Any]) -> None:
    """Log that something was asked for and denied. It stays denied where that fails."""
    with suppress(AuditUnavailable):
        _append([{"event": "refused", **_header(), **record}])


def log_decision(record: Mapping[str, Any]) -> None:
    """Log what a policy decided, and why. Raises AuditUnavailable, and then it may not be carried out."""
    _append([{"event": "decided", **_header(), **record}])


@contextmanager
def refusals_logged(action: str, pids: Sequence[int]) -> Iterator[None]:
    """A request for a process that the user may not touch is logged, as an action is."""
    try:
        yield
    except (NotPermitted, Protected) as error:
        log_refusal({"action": action, "message": str(error), "pids": list(pids)})
        raise


@contextmanager
def failures_logged(*tokens: str) -> Iterator[None]:
    """A refusal, Ctrl-C or a bug is logged as the outcome of these intents before it is raised."""
    try:
        yield
    except BaseException as error:
        status = "refused" if isinstance(error, Refused) else "failed"
        outcome = {"status": status, "message": f"{type(error).__name__}: {error}"}
        if tokens:
            log_outcomes(dict.fromkeys(tokens, outcome))
        raise


def records(*needles: bytes) -> Iterator[dict[str, Any]]:
    """Our own records that have one of *needles* in them; of the last two files of each place, in order."""
    for place, name in product(state.folder_paths(), (f"{FILE}.1", FILE)):
        try:
            content = untrusted.read_file(os.path.join(place, name), nbytes=2 * MAX_BYTES, owner=os.geteuid())
        except untrusted.Rejected:
            continue
        for line in content.splitlines():
            if any(needle in line for needle in needles):
                with suppress(untrusted.Rejected):  # a line that a full disk cut off
                    yield untrusted.decode(line, dict[str, Any])


def why_unusable() -> AuditUnavailable | None:
    """Why nothing could be logged; None where it could. Asking creates and writes nothing."""
    error = state.why_unusable()
    if error is None and os.path.lexists(path()):
        try:
            os.close(state.open_file(FILE, os.O_RDWR | os.O_APPEND))
        except AuditUnavailable as refusal:
            return refusal
    return error


def path() -> str:
    return os.path.join(state.folder_path(), FILE)


def _header() -> dict[str, Any]:
    return {
        "at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "uid": os.geteuid(),
        # Whom `sudo` was called by: a claim of the environment, kept as one.
        "sudo_uid": os.environ.get("SUDO_UID"),
        "vram_pid": os.getpid(),
    }


def _append(records: Sequence[Mapping[str, Any]]) -> None:
    file = _open_locked()
    try:
        lines = b"".join(_encode(record) + b"\n" for record in records)
        if _is_torn(file):
            lines = b"\n" + lines
        written = os.write(file, lines)
        os.fsync(file)
    except OSError as error:
        raise _unavailable(error.strerror or str(error)) from error
    finally:
        os.close(file)
    if written != len(lines):
        raise _unavailable("only part of the line was written; the disk is full")


def _open_locked() -> int:
    """The file, locked, and moved aside before where it is full."""
    while True:
        file = state.open_file(FILE, os.O_RDWR | os.O_APPEND | os.O_CREAT)
        try:
            _lock(file)
            about = os.fstat(file)
            is_named = os.path.samestat(about, os.lstat(path()))  # another vram may have moved it aside
            if is_named and about.st_size < MAX_BYTES:
                return file
            if is_named:
                _move_aside()
        except FileNotFoundError:
            pass  # it is moved aside at this moment
        except OSError as error:
            os.close(file)
            raise _unavailable(error.strerror or str(error)) from error
        except BaseException:
            os.close(file)
            raise
        os.close(file)


def _move_aside() -> None:
    for number in range(MAX_FULL_FILES - 1, 0, -1):
        with suppress(FileNotFoundError):
            os.replace(f"{path()}.{number}", f"{path()}.{number + 1}")
    os.replace(path(), f"{path()}.1")


def _lock(file: int) -> None:
    """One writer at a time; closing the file unlocks it. A stopped vram must not block this one for good."""
    deadline = time.monotonic() + LOCK_S
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError as error:
            if time.monotonic() > deadline:
                raise _unavailable("another vram has it locked") from error
            time.sleep(_PAUSE_S)


def _is_torn(file: int) -> bool:
    """Whether the last line is a part of one, left by a full disk or a crash."""
    size = os.fstat(file).st_size
    return size > 0 and os.pread(file, 1, size - 1) != b"\n"


def _encode(record: Mapping[str, Any]) -> bytes:
    try:
        return msgspec.json.encode(record)
    except UnicodeEncodeError:  # a name that was never UTF-8
        text = repr(msgspec.to_builtins(record)).encode("utf-8", "backslashreplace").decode()
        return msgspec.json.encode({"event": record["event"], "token": record.get("token"), "raw": text})


def _unavailable(reason: str) -> AuditUnavailable:
    return AuditUnavailable(
        f"cannot write the audit log {path()}: {reason}",
        hint="vram acts only if it can log what it does; commands that only read still work",
    )
