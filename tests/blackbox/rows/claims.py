"""What people claim about GPU memory, measured."""

from __future__ import annotations

from score import GIB, MIB, Score, Table, mib

TABLE = Table("What is claimed, measured")


@TABLE.row("plain free keeps memory for reuse", "false: free memory is identical before and after")
def plain_free(score: Score) -> None:
    with score.theatre.scene("plain", GIB) as actor:
        held = score.look("allocated")
        after = score.look(actor.go()["stage"])
        score.measured["free_difference"] = actor["free"] - actor["free_before"]
        score.expect("free memory is identical before and after", actor["free"] == actor["free_before"])
        score.expect_near("used shrinks by the allocation", held.used - after.used, GIB)


@TABLE.row("a stream-ordered pool keeps what was freed", "true until it is trimmed")
def pool(score: Score) -> None:
    with score.theatre.scene("pool", GIB) as actor:
        held = score.look("allocated")
        freed = score.look(actor.go()["stage"])
        score.measured["freed_pool"] = {name: mib(actor[name]) for name in ("reserved", "used")}
        score.expect("the pool says that nothing is used", actor["used"] == 0)
        score.expect("it keeps nine tenths or more", actor["reserved"] >= 0.9 * GIB)
        score.expect_near("used did not shrink", freed.used, held.used, within=64 * MIB)
        trimmed = score.look(actor.go()["stage"])
        score.expect("the trimmed pool keeps nothing", actor["reserved"] == 0)
        score.expect("used shrank by what it kept", held.used - trimmed.used >= 0.9 * GIB)


@TABLE.row("a pool hands over old bytes", "true: every byte")
def pool_reuse(score: Score) -> None:
    with score.theatre.scene("pool_reuse", score.touched_bytes) as actor:
        score.measured["old_bytes"] = f"{actor['old_bytes']} of {actor.nbytes}"
        score.expect("old bytes are handed over", actor["old_bytes"] == actor.nbytes)


@TABLE.row("a free waits for the work before it", "true: behind one second of work it takes one second")
def waiting_free(score: Score) -> None:
    with score.theatre.scene("waiting_free") as actor:
        score.measured |= {"queued_s": round(actor["queued_s"], 3), "freed_s": round(actor["freed_s"], 3)}
        score.expect("queueing itself did not wait", actor["queued_s"] < 0.5)
        score.expect("the free returned after the work", actor["freed_s"] >= 0.99)


@TABLE.row("a thread's allocation outlives it", "an owner object frees it with the thread")
def thread_owner(score: Score) -> None:
    with score.theatre.scene("thread_owner", GIB) as actor:
        held = score.look("threads hold")
        nbytes = actor.nbytes
        after = score.look(actor.go()["stage"])
        score.expect_near("the owners gave it back", held.used - after.used, nbytes)


@TABLE.row("freeing nothing is an error", "false: it succeeds")
def free_of_null(score: Score) -> None:
    with score.theatre.scene("context_only") as actor:
        actor.go()
        score.measured["code"] = actor["free_of_null"]
        score.expect("it succeeds", actor["free_of_null"] == 0)


@TABLE.row("fresh plain memory shows old bytes", "false: zeroed inside the process and across processes")
def remanence(score: Score) -> None:
    with score.theatre.scene("remanence", score.touched_bytes) as actor:
        score.measured |= {name: actor[name] for name in ("across", "inside", "control")}
        score.expect("the control finds every byte", actor["control"] == actor.nbytes)
        score.expect("none across processes", actor["across"] == 0)
        score.expect("none inside the process", actor["inside"] == 0)


@TABLE.row("an exception that is kept holds memory", "true until it is dropped")
def exception_kept(score: Score) -> None:
    with score.theatre.scene("exception_kept", 4 * GIB) as actor:
        kept = score.look("kept")
        nbytes = actor.nbytes
        score.expect("held through a collection", score.grown(kept) >= nbytes)
        dropped = score.look(actor.go()["stage"])
        score.expect_near("gone with the exception", kept.used - dropped.used, nbytes)


@TABLE.row("a reset of the primary context may not be enough", "it returns everything that this process held")
def primary_reset(score: Score) -> None:
    with score.theatre.scene("primary_reset", 4 * GIB) as actor:
        held = score.look("allocated")
        score.expect("it held the bytes", score.grown(held) >= actor.nbytes)
        after = score.look(actor.go()["stage"])
        score.expect_near("used after the reset", score.grown(after), 0)
