"""Releasing memory without killing: checkpoint and restore."""

from __future__ import annotations

import os

import machine
from score import MIB, Score, Skipped, Table

TABLE = Table("Releasing it without killing")
RUNNING, LOCKED, CHECKPOINTED = 0, 1, 2
NOT_SUPPORTED, OPERATING_SYSTEM = 801, 304


def ask(score: Score, program: machine.Program, verb: str) -> tuple[int, int]:
    """Send one verb; return the driver's code and the target's state after it."""
    program.go(verb)
    score.measured[verb] = {"code": program["code"], "took_s": program["took_s"], "state": program["state"]}
    return program["code"], program["state"]


@TABLE.row("checkpoint of a plain process", "0 MiB left, context included; restored contents are identical")
def checkpoint(score: Score) -> None:
    with score.machine.start("checkpoint", score.touched_bytes) as program:
        target, digest = program.pids["target"], program["digest"]
        held = score.read("running")
        score.expect("lock", ask(score, program, "Lock") == (0, LOCKED))
        score.expect("checkpoint", ask(score, program, "Checkpoint") == (0, CHECKPOINTED))
        away = score.read("checkpointed")
        score.expect_near("used", score.grown(away), 0)
        score.expect("not listed", target not in away.listed)
        score.expect("restore", ask(score, program, "Restore") == (0, LOCKED))
        score.expect("unlock", ask(score, program, "Unlock") == (0, RUNNING))
        back = score.read("unlocked")
        score.expect_near("used again", back.used, held.used, within=64 * MIB)
        score.expect("contents identical", program.go("digest")["digest"] == digest)


@TABLE.row("checkpoint of a process with managed memory", "801 not supported; unlock leaves it running")
def checkpoint_managed(score: Score) -> None:
    with score.machine.start("checkpoint", 64 * MIB, "managed") as program:
        digest = program["digest"]
        lock = ask(score, program, "Lock")
        code, _ = ask(score, program, "Checkpoint") if lock[0] == 0 else lock
        score.expect("not supported", code == NOT_SUPPORTED)
        ask(score, program, "Unlock")
        score.expect("it runs on, contents identical", program.go("digest")["digest"] == digest)


@TABLE.row("checkpoint by an unprivileged user of root's process", "304, and the process runs on")
def checkpoint_stranger(score: Score) -> None:
    if os.geteuid() != 0:
        raise Skipped("only root can be both users")
    # The virtual GPU's folder is private to its user: a stranger cannot even load its driver.
    who = "unprivileged" if score.real else "unprivileged-later"
    with score.machine.start("checkpoint", 64 * MIB, "plain", who) as program:
        digest = program["digest"]
        code, _ = ask(score, program, "Lock")
        score.expect("refused by the operating system", code == OPERATING_SYSTEM)
        score.expect("it runs on, contents identical", program.go("digest")["digest"] == digest)
