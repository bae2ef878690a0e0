"""A process is checkpointed and restored by another one, and its bytes come back unchanged.

The second argument is what the target holds: plain (the default) or managed memory. The
third makes the other process an unprivileged one: "stranger", or "late-stranger" where only
a privileged one can reach the driver.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import sys
import time

import driver
import stage

CHUNK = 64 * stage.MIB
NOBODY = 65534


class LockArguments(ctypes.Structure):
    _fields_ = (("timeout_ms", ctypes.c_uint), ("reserved", ctypes.c_uint * 15))


def checkpoint_state(pid: int) -> int:
    state = ctypes.c_int(-1)
    driver.call("cuCheckpointProcessGetState", pid, ctypes.byref(state))
    return state.value


def checkpoint_code(verb: str, pid: int) -> int:
    """Return the answer to Lock, Checkpoint, Restore or Unlock of *pid*; a lock waits ten seconds at most."""
    arguments = ctypes.byref(LockArguments(timeout_ms=10_000)) if verb == "Lock" else None
    return driver.code(f"cuCheckpointProcess{verb}", pid, arguments)


def digest(pointer: int, nbytes: int) -> str:
    whole = hashlib.blake2b()
    for at in range(0, nbytes, CHUNK):
        whole.update(driver.read(pointer + at, min(CHUNK, nbytes - at)))
    return whole.hexdigest()[:32]


def hold_plain(nbytes: int) -> stage.Play:
    """Hold bytes that no two chunks have in common."""
    driver.context()
    pointer = driver.alloc(nbytes)
    for at in range(0, nbytes, CHUNK):
        driver.write(pointer + at, os.urandom(min(CHUNK, nbytes - at)))
    while True:
        yield digest(pointer, nbytes)


def hold_managed(nbytes: int) -> stage.Play:
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
    stage.die_with_parent()


def ask(who: str) -> stage.Play:
    """Answer verbs with the driver's code, the seconds it took, and the target's state after it."""
    if who == "stranger":
        become_nobody()
    driver.init()
    if who == "late-stranger":
        become_nobody()
    verb, pid = yield None
    while True:
        began = time.monotonic()
        answer = checkpoint_code(verb, pid)
        took_s = time.monotonic() - began
        verb, pid = yield {"code": answer, "took_s": round(took_s, 4), "state": state_or_error(pid)}


def state_or_error(pid: int) -> int | str:
    try:
        return checkpoint_state(pid)
    except driver.CudaError as error:
        return str(error)


def scene() -> None:
    nbytes = stage.size_argument(stage.GIB)
    kind = sys.argv[2] if len(sys.argv) > 2 else "plain"
    target = stage.Worker(hold_managed if kind == "managed" else hold_plain, nbytes)
    other = stage.Worker(ask, sys.argv[3] if len(sys.argv) > 3 else "friend")
    pids = {"target": target.pid, "other": other.pid}
    stage.ready("running", pids=pids, nbytes=nbytes, digest=target.first)
    while True:
        word = stage.wait()
        if word == "digest":
            stage.ready(word, pids=pids, nbytes=nbytes, digest=target.turn())
        else:
            stage.ready(word, pids=pids, nbytes=nbytes, **other.turn([word, target.pid]))


if __name__ == "__main__":
    stage.act(scene)
