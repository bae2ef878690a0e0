"""What a hook did, for those who look later: JSON lines in a file or syslog, and lines in the job's output.

slurmd keeps nothing of what prolog and epilog print. A log that cannot be written is no reason to leave
memory held: the audit log, without which nothing is done, is another one.
"""

from __future__ import annotations

import os
import stat
import sys
import time
from collections.abc import Mapping
from typing import Any

import msgspec

from vram.model.slurm import EndedProcess, HookResult, SlurmJob
from vram.report.escape import inert, json_inert

_APPEND = os.O_WRONLY | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
_MAX_LENGTH = 4096
_CHILD_S = 5.0


class HookLog:
    """Writes each event as one JSON line to a file, to syslog, or to both."""

    def __init__(self, hook: str, job: SlurmJob | None, *, path: str | None, syslog: bool) -> None:
        self._header = {"hook": hook, "job": job.job if job else None, "uid": job.uid if job else None}
        self._path = path.replace("%j", job.job if job else "none") if path else None
        self._syslog = syslog

    def ended(self, ended: EndedProcess) -> None:
        self._write({"event": "ended", **msgspec.to_builtins(ended)})

    def result(self, result: HookResult, exit_code: int) -> None:
        for piece in result.held:
            self._write({"event": "held", **msgspec.to_builtins(piece)})
        self._write(
            {
                "event": "result",
                "verdict": result.verdict,
                "exit_code": exit_code,
                "gpus": result.gpus,
                "reasons": result.reasons,
                "freed_bytes": result.freed_bytes,
                "free_bytes": {str(gpu): nbytes for gpu, nbytes in result.free_bytes.items()},
                "took_s": result.took_s,
                "dry_run": result.dry_run,
            }
        )

    def drained(self, node: str, reason: str) -> None:
        self._write({"event": "drained", "node": node, "reason": reason})

    def failed(self, message: str, exit_code: int) -> None:
        self._write({"event": "failed", "message": message, "exit_code": exit_code})

    def _write(self, record: Mapping[str, Any]) -> None:
        if self._path is None and not self._syslog:
            return
        at = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        line = _line({"at": at, **self._header, **record})
        if self._path is not None:
            try:
                append(self._path, line + b"\n")
            except OSError as error:
                _warn(f"cannot write {self._path}: {error.strerror}")
                self._path = None
        if self._syslog:
            import syslog

            syslog.openlog("vram", 0, syslog.LOG_DAEMON)
            syslog.syslog(syslog.LOG_INFO, line.decode("ascii", "backslashreplace")[:_MAX_LENGTH])


def append(path: str, line: bytes) -> None:
    """Append *line* to a plain file, in one piece; raises OSError where it is none, or full."""
    file = os.open(path, _APPEND | os.O_CREAT, 0o640)
    try:
        if not stat.S_ISREG(os.fstat(file).st_mode):
            raise OSError(0, "it is not a regular file")
        if os.write(file, line) != len(line):
            raise OSError(0, "the disk is full")
    finally:
        os.close(file)


def append_to_job_output(variables: Mapping[str, str], job: SlurmJob, lines: str) -> None:
    """Append *lines* to the file that the job printed to, with the rights of the job's user.

    A path that cannot be told for sure, or that is no plain file of that user, is left alone.
    """
    path = _output_path(variables, job)
    gid = variables.get("SLURM_JOB_GID", "")
    if path is None or not gid.isdigit() or os.geteuid() != 0 or job.uid == 0:
        return
    child = os.fork()
    if child == 0:
        _append_as(path, lines, job.uid, int(gid))
    # A file system that hangs must not hang the epilog.
    deadline = time.monotonic() + _CHILD_S
    while os.waitpid(child, os.WNOHANG)[0] == 0:
        if time.monotonic() > deadline:
            _warn(f"{path} does not take what is written to it")
            return
        time.sleep(0.005)


def _append_as(path: str, lines: str, uid: int, gid: int) -> None:
    """In a child: become the user for good, write, and leave."""
    try:
        os.setgroups([])
        os.setgid(gid)
        os.setuid(uid)
        file = os.open(path, _APPEND)
        about = os.fstat(file)
        if stat.S_ISREG(about.st_mode) and about.st_uid == uid:
            os.write(file, lines.encode("utf-8", "backslashreplace"))
    except OSError:
        pass
    finally:
        os._exit(0)


def _output_path(variables: Mapping[str, str], job: SlurmJob) -> str | None:
    """Slurm hands the pattern over as the user wrote it; what it has besides the number is not known here."""
    pattern = variables.get("SLURM_JOB_STDOUT", "")
    path = pattern.replace("%j", job.job).replace("%u", job.user or "%u")
    if not path or "%" in path or "\0" in path:
        return None
    folder = variables.get("SLURM_JOB_WORK_DIR", "")
    whole = path if path.startswith("/") else f"{folder}/{path}"
    return whole if whole.startswith("/") else None


def _line(record: Mapping[str, Any]) -> bytes:
    try:
        return json_inert(msgspec.json.encode(record))
    except UnicodeEncodeError:  # a name that was never UTF-8
        return msgspec.json.encode({"event": record["event"], "raw": inert(repr(record))})


def _warn(message: str) -> None:
    if sys.stderr is not None:
        print(f"vram: {inert(message)}", file=sys.stderr, flush=True)
