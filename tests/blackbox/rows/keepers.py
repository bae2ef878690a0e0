"""Who keeps memory alive."""

from __future__ import annotations

import theatre
from score import GIB, MIB, Score, Table, mib, total

from rows import h200

TABLE = Table("Who keeps memory alive")
CONTEXT_FILES = {"nvidia0", "nvidiactl", "nvidia-uvm"}


@TABLE.row("nothing running", "v1 counts the reserved part as used, v2 does not; the list is empty")
def nothing_running(score: Score) -> None:
    seen = score.before
    score.measured |= {
        "v1_used": mib(seen.v1_used),
        "v2_used": mib(seen.used),
        "reserved": mib(seen.reserved),
        "total": mib(seen.total),
        "listed": dict(seen.listed),
    }
    score.expect_near("v1 used = v2 used + reserved", seen.v1_used, seen.used + seen.reserved, within=MIB)
    score.expect("total = free + used + reserved", seen.total == seen.free + seen.used + seen.reserved)
    score.expect("v1 and v2 tell the same free bytes", seen.v1_free == seen.free)
    if score.is_h200:
        score.expect("reserved", seen.reserved == h200.RESERVED)


@TABLE.row("a context, no allocation", "used grows by more than is listed; /proc shows files and mappings")
def context_only(score: Score) -> None:
    with score.theatre.scene("context_only") as actor:
        pid = actor.pids["self"]
        init = score.look("after cuInit")
        score.expect("cuInit alone lists nobody", pid not in init.listed)
        seen = score.look(actor.go()["stage"])
        files = theatre.device_files(pid)
        score.measured |= {"descriptors": dict(files), "mappings": theatre.device_mappings(pid)}
        score.expect("the process is listed", pid in seen.listed)
        score.expect("used grew by what is listed or more", score.grown(seen) >= seen.listed.get(pid, 0) > 0)
        score.expect("open on the GPU's, the control and the uvm file", set(files) >= CONTEXT_FILES)
        score.expect("some mappings", theatre.device_mappings(pid) > 0)
        if score.is_h200:
            score.expect("listed", seen.listed.get(pid, 0) == h200.CONTEXT_LISTED)
            used = h200.INIT_USED + h200.CONTEXT_USED
            score.expect_near("used", score.grown(seen), used, within=h200.CLOSE)


@TABLE.row("4 GiB never freed, SIGKILL", "back at the baseline the moment the process is reaped")
def killed(score: Score) -> None:
    with score.theatre.scene("plain", 4 * GIB) as actor:
        held = score.look("allocated")
        score.measured["gone_after_s"] = round(actor.kill(), 3)
        after = score.look("killed")
        score.expect("it held the bytes", score.grown(held) >= actor.nbytes)
        score.expect_near("used after the kill", score.grown(after), 0)
        score.expect("nobody is listed", actor.pids["self"] not in after.listed)


@TABLE.row("fork, parent killed, child asleep", "all bytes stay, context too; the list names the dead parent")
def fork_orphan(score: Score) -> None:
    with score.theatre.scene("fork_orphan", 4 * GIB) as actor:
        parent, child = actor.pids["parent"], actor.pids["child"]
        held = score.look("forked")
        score.expect("the child is not listed", child not in held.listed)
        actor.kill()
        after = score.look("parent killed")
        files = theatre.device_files(child)
        score.measured["child"] = {"descriptors": total(files), "mappings": theatre.device_mappings(child)}
        score.expect_near("used after the kill", after.used, held.used)
        score.expect_near("charged to the dead pid", after.listed.get(parent, 0), held.listed.get(parent, 0))
        score.expect("the child is not listed", child not in after.listed)
        score.expect("the child has the device files", total(files) > 0)
        if score.is_h200:
            score.expect("the child has as many as on an H200", score.measured["child"] == h200.FORKED)
        actor.kill(child)
        gone = score.look("child killed")
        score.expect_near("used after the child's end", score.grown(gone), 0)
        score.expect("the dead parent is no longer listed", parent not in gone.listed)


@TABLE.row(
    "the forked child closes the inherited descriptors, keeps the mappings",
    "given back: mappings alone hold nothing",
)
def fork_child_closes(score: Score) -> None:
    with score.theatre.scene("fork_child_closes", 4 * GIB) as actor:
        parent, child = actor.pids["parent"], actor.pids["child"]
        held = score.look("forked")
        closed = score.look(actor.go()["stage"])
        score.expect_near("used while the parent lives", closed.used, held.used)
        actor.kill()
        after = score.look("parent killed")
        mappings = theatre.device_mappings(child)
        score.measured["child"] = {"descriptors": total(theatre.device_files(child)), "mappings": mappings}
        score.expect_near("used after the kill", score.grown(after), 0)
        score.expect("nobody is listed", not {parent, child} & set(after.listed))
        score.expect("no device file is open", total(theatre.device_files(child)) == 0)
        score.expect("the mappings are still there", mappings > 0)


@TABLE.row("zombie (killed, not reaped)", "given back at once; nobody listed; no descriptors")
def zombie(score: Score) -> None:
    with score.theatre.scene("zombie", 4 * GIB) as actor:
        worker = actor.pids["worker"]
        held = score.look("allocated")
        score.expect("it held the bytes", score.grown(held) >= actor.nbytes)
        after = score.look(actor.go()["stage"])
        score.measured["state"] = theatre.state(worker)
        score.expect("the kernel calls it a zombie", theatre.state(worker) == "Z")
        score.expect_near("used", score.grown(after), 0)
        score.expect("nobody is listed", worker not in after.listed)


@TABLE.row("stopped (SIGSTOP)", "held; listed; state T")
def stopped(score: Score) -> None:
    with score.theatre.scene("stopped", 4 * GIB) as actor:
        worker = actor.pids["worker"]
        seen = score.look("stopped")
        score.measured["state"] = theatre.state(worker)
        score.expect("the kernel calls it stopped", theatre.state(worker) == "T")
        score.expect("the bytes are held", score.grown(seen) >= actor.nbytes)
        score.expect("it is listed with them", seen.listed.get(worker, 0) >= actor.nbytes)
        on = score.look(actor.go()["stage"])
        score.expect_near("used once it goes on", on.used, seen.used)


@TABLE.row("IPC: exporter killed, importer alive", "held; the importer is now charged with it")
def ipc(score: Score) -> None:
    with score.theatre.scene("ipc", 4 * GIB) as actor:
        exporter, importer, nbytes = actor.pids["exporter"], actor.pids["importer"], actor.nbytes
        held = score.look("allocated")
        imported = score.look(actor.go()["stage"])
        score.expect_near("importing takes no new bytes", imported.used, held.used)
        score.expect_near(
            "the importer's charge", imported.listed.get(importer, 0), held.listed.get(importer, 0)
        )
        after = score.look(actor.go()["stage"])
        score.expect("the exporter is no longer listed", exporter not in after.listed)
        taken_over = after.listed.get(importer, 0) - held.listed.get(importer, 0)
        score.expect_near("the importer takes over the charge", taken_over, nbytes)
        score.expect("the bytes are held", score.grown(after) >= nbytes)
        closed = score.look(actor.go()["stage"])
        score.expect_near("given back when it closes", closed.used, after.used - nbytes)


@TABLE.row(
    "VMM allocation exported as a descriptor to a process that never used CUDA; allocator killed",
    "the bytes stay; nobody is listed; the keeper has one control descriptor, no GPU file, no mappings",
)
def export_handle(score: Score) -> None:
    with score.theatre.scene("export_handle", 4 * GIB) as actor:
        keeper, nbytes = actor.pids["keeper"], actor.nbytes
        held = score.look("allocated")
        score.expect("the allocator holds the bytes", score.grown(held) >= nbytes)
        exported = score.look(actor.go()["stage"])
        score.expect_near("exporting takes no new bytes", exported.used, held.used)
        after = score.look(actor.go()["stage"])
        files = theatre.device_files(keeper)
        score.measured["keeper"] = {"descriptors": dict(files), "mappings": theatre.device_mappings(keeper)}
        score.measured["fdinfo"] = theatre.fdinfo(keeper, actor["descriptor"])
        score.expect_near("the allocation stays, the context goes", score.grown(after), nbytes)
        score.expect("nobody is listed", not set(actor.pids.values()) & set(after.listed))
        score.expect("one control descriptor, nothing else", dict(files) == {"nvidiactl": 1})
        score.expect("no mappings", theatre.device_mappings(keeper) == 0)
        score.expect("the keeper never loaded the driver", not theatre.loaded_driver(keeper))
        closed = score.look(actor.go()["stage"])
        score.expect_near("given back when it closes", score.grown(closed), 0)


@TABLE.row(
    "dma-buf exported to a process that never used CUDA; allocator killed",
    "the bytes stay; nobody is listed; fdinfo tells size and exporter",
)
def dmabuf(score: Score) -> None:
    with score.theatre.scene("dmabuf", 2 * GIB) as actor:
        keeper, nbytes = actor.pids["keeper"], actor.nbytes
        score.look("allocated")
        score.look(actor.go()["stage"])
        after = score.look(actor.go()["stage"])
        files = theatre.device_files(keeper)
        info = theatre.fdinfo(keeper, actor["descriptor"])
        score.measured["keeper"] = {"descriptors": dict(files), "mappings": theatre.device_mappings(keeper)}
        score.measured["fdinfo"] = info
        score.expect_near("the allocation stays, the context goes", score.grown(after), nbytes)
        score.expect("nobody is listed", not set(actor.pids.values()) & set(after.listed))
        score.expect("one dma-buf, nothing else", dict(files) == {"dmabuf": 1})
        score.expect("the keeper never loaded the driver", not theatre.loaded_driver(keeper))
        if score.real:
            # Only the kernel writes these lines; the virtual GPU's file tells its size by stat.
            score.expect("fdinfo tells the size", info.get("size") == str(nbytes))
            score.expect("fdinfo names the exporter", info.get("exp_name") == "nv_dmabuf")
        closed = score.look(actor.go()["stage"])
        score.expect_near("given back when it closes", score.grown(closed), 0)


@TABLE.row(
    "four threads allocate 1 GiB each through raw pointers and end",
    "held until the process ends or the primary context is reset",
)
def threads(score: Score) -> None:
    with score.theatre.scene("threads", GIB) as actor:
        pid = actor.pids["self"]
        seen = score.look("threads ended")
        score.expect("the bytes are held", score.grown(seen) >= actor.nbytes)
        score.expect("the process is charged", seen.listed.get(pid, 0) >= actor.nbytes)
        score.expect("no thread is left", actor["threads_left"] == 0)
        after = score.look(actor.go()["stage"])
        score.expect_near("given back by the reset", score.grown(after), 0)


@TABLE.row("many processes with a context each", "each costs a context, whatever little it holds")
def small_contexts(score: Score) -> None:
    with score.theatre.scene("small_contexts", 2 * MIB) as actor:
        seen = score.look("idle")
        workers = set(actor.pids.values())
        score.expect("all are listed", workers <= set(seen.listed))
        listed = sum(seen.listed.get(pid, 0) for pid in workers)
        score.expect("contexts cost more than what is in them", listed > 10 * actor.nbytes)
        score.expect("used grew by at least what is listed", score.grown(seen) >= listed)
        if score.is_h200:
            # What cuInit uses is there once, however many processes call it.
            used = h200.INIT_USED + len(workers) * (h200.CONTEXT_USED + 2 * MIB)
            score.expect_near("used", score.grown(seen), used, within=h200.CLOSE)
