"""What people claim about GPU memory, measured."""

from __future__ import annotations

from score import GIB, MIB, Score, Table, mib

TABLE = Table("What is claimed, measured")


@TABLE.row("plain free keeps memory for reuse", "false: free memory is identical before and after")
def plain_free(score: Score) -> None:
    with score.machine.start("memory.plain", GIB) as program:
        held = score.read("allocated")
        after = score.read(program.go()["stage"])
        score.measured["free_difference"] = program["free"] - program["free_before"]
        score.expect("free memory is identical before and after", program["free"] == program["free_before"])
        score.expect_near("used shrinks by the allocation", held.used - after.used, GIB)


@TABLE.row("a stream-ordered pool keeps what was freed", "true until it is trimmed")
def pool(score: Score) -> None:
    with score.machine.start("pools.trim", GIB) as program:
        held = score.read("allocated")
        freed = score.read(program.go()["stage"])
        score.measured["freed_pool"] = {name: mib(program[name]) for name in ("reserved", "used")}
        score.expect("the pool says that nothing is used", program["used"] == 0)
        score.expect("it keeps nine tenths or more", program["reserved"] >= 0.9 * GIB)
        score.expect_near("used did not shrink", freed.used, held.used, within=64 * MIB)
        trimmed = score.read(program.go()["stage"])
        score.expect("the trimmed pool keeps nothing", program["reserved"] == 0)
        score.expect("used shrank by what it kept", held.used - trimmed.used >= 0.9 * GIB)


@TABLE.row("a pool hands over old bytes", "true: every byte")
def pool_reuse(score: Score) -> None:
    with score.machine.start("pools.reuse", score.touched_bytes) as program:
        score.measured["old_bytes"] = f"{program['old_bytes']} of {program.nbytes}"
        score.expect("old bytes are handed over", program["old_bytes"] == program.nbytes)


@TABLE.row("a free waits for the work before it", "true: behind one second of work it takes one second")
def waiting_free(score: Score) -> None:
    with score.machine.start("memory.waiting_free") as program:
        score.measured |= {"queued_s": round(program["queued_s"], 3), "freed_s": round(program["freed_s"], 3)}
        score.expect("queueing itself did not wait", program["queued_s"] < 0.5)
        score.expect("the free returned after the work", program["freed_s"] >= 0.99)


@TABLE.row("a thread's allocation outlives it", "an owner object frees it with the thread")
def thread_owner(score: Score) -> None:
    with score.machine.start("owners.owner_objects", GIB) as program:
        held = score.read("threads hold")
        nbytes = program.nbytes
        after = score.read(program.go()["stage"])
        score.expect_near("the owners freed it", held.used - after.used, nbytes)


@TABLE.row("freeing nothing is an error", "false: it succeeds")
def free_of_null(score: Score) -> None:
    with score.machine.start("contexts.one_by_one") as program:
        program.go()
        score.measured["code"] = program["free_of_null"]
        score.expect("it succeeds", program["free_of_null"] == 0)


@TABLE.row(
    "fresh plain memory shows old bytes",
    "false for large pieces: zeroed inside the process and across processes",
)
def remanence(score: Score) -> None:
    with score.machine.start("memory.old_bytes", score.touched_bytes) as program:
        score.measured |= {name: program[name] for name in ("across", "inside", "control")}
        score.expect("the control finds every byte", program["control"] == program.nbytes)
        score.expect("none across processes", program["across"] == 0)
        score.expect("none inside the process", program["inside"] == 0)


@TABLE.row("an exception that is kept holds memory", "true until it is dropped")
def exception_kept(score: Score) -> None:
    with score.machine.start("owners.kept_exception", 4 * GIB) as program:
        kept = score.read("kept")
        nbytes = program.nbytes
        score.expect("held through a collection", score.grown(kept) >= nbytes)
        dropped = score.read(program.go()["stage"])
        score.expect_near("gone with the exception", kept.used - dropped.used, nbytes)


@TABLE.row("a reset of the primary context may not be enough", "it returns everything that this process held")
def primary_reset(score: Score) -> None:
    with score.machine.start("contexts.reset", 4 * GIB) as program:
        held = score.read("allocated")
        score.expect("it held the bytes", score.grown(held) >= program.nbytes)
        after = score.read(program.go()["stage"])
        score.expect_near("used after the reset", score.grown(after), 0)
