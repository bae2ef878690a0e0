"""Giving memory back without killing: checkpoint and restore."""

from __future__ import annotations

import os

import theatre
from score import MIB, Score, Skipped, Table

TABLE = Table("Giving it back without killing")
RUNNING, LOCKED, CHECKPOINTED = 0, 1, 2
NOT_SUPPORTED, OPERATING_SYSTEM = 801, 304


def ask(score: Score, actor: theatre.Actor, verb: str) -> tuple[int, int]:
    """Send one verb; return the driver's code and the target's state after it."""
    actor.go(verb)
    score.measured[verb] = {"code": actor["code"], "took_s": actor["took_s"], "state": actor["state"]}
    return actor["code"], actor["state"]


@TABLE.row("checkpoint of a plain process", "0 MiB left, context included; restored contents are identical")
def checkpoint(score: Score) -> None:
    with score.theatre.scene("checkpoint", score.touched_bytes) as actor:
        target, digest = actor.pids["target"], actor["digest"]
        held = score.look("running")
        score.expect("lock", ask(score, actor, "Lock") == (0, LOCKED))
        score.expect("checkpoint", ask(score, actor, "Checkpoint") == (0, CHECKPOINTED))
        away = score.look("checkpointed")
        score.expect_near("used", score.grown(away), 0)
        score.expect("not listed", target not in away.listed)
        score.expect("restore", ask(score, actor, "Restore") == (0, LOCKED))
        score.expect("unlock", ask(score, actor, "Unlock") == (0, RUNNING))
        back = score.look("unlocked")
        score.expect_near("used again", back.used, held.used, within=64 * MIB)
        score.expect("contents identical", actor.go("digest")["digest"] == digest)


@TABLE.row("checkpoint of a process with managed memory", "801 not supported; unlock leaves it running")
def checkpoint_managed(score: Score) -> None:
    with score.theatre.scene("checkpoint", 64 * MIB, "managed") as actor:
        digest = actor["digest"]
        lock = ask(score, actor, "Lock")
        code, _ = ask(score, actor, "Checkpoint") if lock[0] == 0 else lock
        score.expect("not supported", code == NOT_SUPPORTED)
        ask(score, actor, "Unlock")
        score.expect("it runs on, contents identical", actor.go("digest")["digest"] == digest)


@TABLE.row("checkpoint by an unprivileged user of root's process", "304, and the process runs on")
def checkpoint_stranger(score: Score) -> None:
    if os.geteuid() != 0:
        raise Skipped("only root can play both users")
    # The virtual GPU's folder is private to its user: a stranger cannot even load its driver.
    who = "stranger" if score.real else "late-stranger"
    with score.theatre.scene("checkpoint", 64 * MIB, "plain", who) as actor:
        digest = actor["digest"]
        code, _ = ask(score, actor, "Lock")
        score.expect("refused by the operating system", code == OPERATING_SYSTEM)
        score.expect("it runs on, contents identical", actor.go("digest")["digest"] == digest)
