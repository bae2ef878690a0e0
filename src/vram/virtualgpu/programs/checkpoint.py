"""A process is checkpointed and restored by another one, and its bytes come back unchanged.

The second argument is what the target holds: plain (the default) or managed memory. The
third makes the other process an unprivileged one: "unprivileged", or "unprivileged-later" where
only a privileged one can load the driver.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import sys
import time

import driver
import protocol

NOBODY = 65534


class CheckpointLockArguments(ctypes.Structure):
    _fields_ = (("timeout_ms", ctypes.c_uint), ("reserved", ctypes.c_uint * 15))


def checkpoint_code(verb: str, pid: int) -> int:
    """Return the answer to Lock, Checkpoint, Restore or Unlock of *pid*; a lock waits ten seconds at most."""
    arguments = ctypes.byref(CheckpointLockArguments(timeout_ms=10_000)) if verb == "Lock" else None
    return driver.code(f"cuCheckpointProcess{verb}", pid, arguments)


def digest(pointer: int, nbytes: int) -> str:
    whole = hashlib.blake2b()
    for at in range(0, nbytes, driver.CHUNK):
        whole.update(driver.read(pointer + at, min(driver.CHUNK, nbytes - at)))
    return whole.hexdigest()[:32]


def hold_plain(nbytes: int) -> protocol.Turns:
    """Hold random bytes, and yield their digest in every turn."""
    driver.context()
    pointer = driver.alloc(nbytes)
    for at in range(0, nbytes, driver.CHUNK):
        driver.write(pointer + at, os.urandom(min(driver.CHUNK, nbytes - at)))
    while True:
        yield digest(pointer, nbytes)


def hold_managed(nbytes: int) -> protocol.Turns:
    driver.context()
    pointer = driver.alloc_managed(nbytes)
    ctypes.memset(pointer, 0x5A, nbytes)
    while True:
        # A driver call shows that the process runs on.
        driver.call("cuCtxSynchronize")
        yield hashlib.blake2b(ctypes.string_at(pointer, nbytes)).hexdigest()[:32]


def become_nobody() -> None:
    os.setgroups([])
    os.setresgid(NOBODY, NOBODY, NOBODY)
    os.setresuid(NOBODY, NOBODY, NOBODY)
    # Changing user cleared it.
    protocol.die_with_parent()


def ask(who: str) -> protocol.Turns:
    """Take (verb, pid) in each turn; yield the driver's code, the seconds it took, and the target's state."""
    if who == "unprivileged":
        become_nobody()
    driver.init()
    if who == "unprivileged-later":
        become_nobody()
    verb, pid = yield None
    while True:
        began = time.monotonic()
        answer = checkpoint_code(verb, pid)
        took_s = time.monotonic() - began
        verb, pid = yield {"code": answer, "took_s": round(took_s, 4), "state": state_or_error(pid)}


def state_or_error(pid: int) -> int | str:
    state = ctypes.c_int(-1)
    try:
        driver.call("cuCheckpointProcessGetState", pid, ctypes.byref(state))
    except driver.CudaError as error:
        return str(error)
    return state.value


def checkpoint_by_another() -> None:
    nbytes = protocol.size_argument(protocol.GIB)
    kind = sys.argv[2] if len(sys.argv) > 2 else "plain"
    target = protocol.ForkedWorker(hold_managed if kind == "managed" else hold_plain, nbytes)
    other = protocol.ForkedWorker(ask, sys.argv[3] if len(sys.argv) > 3 else "same-user")
    pids = {"target": target.pid, "other": other.pid}
    protocol.ready("running", pids=pids, nbytes=nbytes, digest=target.first)
    while True:
        word = protocol.wait()
        if word == "digest":
            protocol.ready(word, pids=pids, nbytes=nbytes, digest=target.turn())
        else:
            protocol.ready(word, pids=pids, nbytes=nbytes, **other.turn([word, target.pid]))


if __name__ == "__main__":
    protocol.main(checkpoint_by_another)
