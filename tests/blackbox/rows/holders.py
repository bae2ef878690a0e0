"""Who keeps memory alive."""

from __future__ import annotations

import machine
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
    with score.machine.start("contexts.one_by_one") as program:
        pid = program.pids["self"]
        init = score.read("after cuInit")
        score.expect("cuInit alone lists nobody", pid not in init.listed)
        seen = score.read(program.go()["stage"])
        files = machine.device_files(pid)
        score.measured |= {"descriptors": dict(files), "mappings": machine.device_mappings(pid)}
        score.expect("the process is listed", pid in seen.listed)
        score.expect("used grew by what is listed or more", score.grown(seen) >= seen.listed.get(pid, 0) > 0)
        score.expect("open on the GPU's, the control and the uvm file", set(files) >= CONTEXT_FILES)
        score.expect("some mappings", machine.device_mappings(pid) > 0)
        if score.is_h200:
            score.expect("listed", seen.listed.get(pid, 0) == h200.CONTEXT_LISTED)
            used = h200.INIT_USED + h200.CONTEXT_USED
            score.expect_near("used", score.grown(seen), used, within=h200.CLOSE)


@TABLE.row("4 GiB never freed, SIGKILL", "back at the baseline the moment the process is reaped")
def killed(score: Score) -> None:
    with score.machine.start("memory.plain", 4 * GIB) as program:
        held = score.read("allocated")
        score.measured["gone_after_s"] = round(program.kill(), 3)
        after = score.read("killed")
        score.expect("it held the bytes", score.grown(held) >= program.nbytes)
        score.expect_near("used after the kill", score.grown(after), 0)
        score.expect("nobody is listed", program.pids["self"] not in after.listed)


@TABLE.row("fork, parent killed, child asleep", "all bytes stay, context too; the list names the dead parent")
def fork_orphan(score: Score) -> None:
    with score.machine.start("forks.orphan", 4 * GIB) as program:
        parent, child = program.pids["parent"], program.pids["child"]
        held = score.read("forked")
        score.expect("the child is not listed", child not in held.listed)
        program.kill()
        after = score.read("parent killed")
        files = machine.device_files(child)
        score.measured["child"] = {"descriptors": total(files), "mappings": machine.device_mappings(child)}
        score.expect_near("used after the kill", after.used, held.used)
        score.expect_near("charged to the dead pid", after.listed.get(parent, 0), held.listed.get(parent, 0))
        score.expect("the child is not listed", child not in after.listed)
        score.expect("the child has the device files", total(files) > 0)
        if score.is_h200:
            score.expect("the child has as many as on an H200", score.measured["child"] == h200.FORKED)
        program.kill(child)
        gone = score.read("child killed")
        score.expect_near("used after the child's end", score.grown(gone), 0)
        score.expect("the dead parent is no longer listed", parent not in gone.listed)


@TABLE.row(
    "the forked child closes the inherited descriptors, keeps the mappings",
    "released: mappings alone hold nothing",
)
def fork_child_closes(score: Score) -> None:
    with score.machine.start("forks.child_closes", 4 * GIB) as program:
        parent, child = program.pids["parent"], program.pids["child"]
        held = score.read("forked")
        closed = score.read(program.go()["stage"])
        score.expect_near("used while the parent lives", closed.used, held.used)
        program.kill()
        after = score.read("parent killed")
        mappings = machine.device_mappings(child)
        score.measured["child"] = {"descriptors": total(machine.device_files(child)), "mappings": mappings}
        score.expect_near("used after the kill", score.grown(after), 0)
        score.expect("nobody is listed", not {parent, child} & set(after.listed))
        score.expect("no device file is open", total(machine.device_files(child)) == 0)
        score.expect("the mappings are still there", mappings > 0)


@TABLE.row("zombie (killed, not reaped)", "released at once; nobody listed; no descriptors")
def zombie(score: Score) -> None:
    with score.machine.start("signals.zombie", 4 * GIB) as program:
        worker = program.pids["worker"]
        held = score.read("allocated")
        score.expect("it held the bytes", score.grown(held) >= program.nbytes)
        after = score.read(program.go()["stage"])
        score.measured["state"] = machine.state(worker)
        score.expect("the kernel calls it a zombie", machine.state(worker) == "Z")
        score.expect_near("used", score.grown(after), 0)
        score.expect("nobody is listed", worker not in after.listed)


@TABLE.row("stopped (SIGSTOP)", "held; listed; state T")
def stopped(score: Score) -> None:
    with score.machine.start("signals.stopped", 4 * GIB) as program:
        worker = program.pids["worker"]
        seen = score.read("stopped")
        score.measured["state"] = machine.state(worker)
        score.expect("the kernel calls it stopped", machine.state(worker) == "T")
        score.expect("the bytes are held", score.grown(seen) >= program.nbytes)
        score.expect("it is listed with them", seen.listed.get(worker, 0) >= program.nbytes)
        on = score.read(program.go()["stage"])
        score.expect_near("used once it goes on", on.used, seen.used)


@TABLE.row("IPC: exporter killed, importer alive", "held; the importer is now charged with it")
def ipc(score: Score) -> None:
    with score.machine.start("imports.ipc", 4 * GIB) as program:
        exporter, importer, nbytes = program.pids["exporter"], program.pids["importer"], program.nbytes
        held = score.read("allocated")
        imported = score.read(program.go()["stage"])
        score.expect_near("importing takes no new bytes", imported.used, held.used)
        score.expect_near(
            "the importer's charge", imported.listed.get(importer, 0), held.listed.get(importer, 0)
        )
        after = score.read(program.go()["stage"])
        score.expect("the exporter is no longer listed", exporter not in after.listed)
        taken_over = after.listed.get(importer, 0) - held.listed.get(importer, 0)
        score.expect_near("the importer takes over the charge", taken_over, nbytes)
        score.expect("the bytes are held", score.grown(after) >= nbytes)
        closed = score.read(program.go()["stage"])
        score.expect_near("released when it closes", closed.used, after.used - nbytes)


@TABLE.row(
    "VMM allocation exported as a descriptor to a process that never used CUDA; allocator killed",
    "the bytes stay; nobody is listed; the holder has one control descriptor, no GPU file, no mappings",
)
def export_handle(score: Score) -> None:
    with score.machine.start("exports.handle", 4 * GIB) as program:
        holder, nbytes = program.pids["holder"], program.nbytes
        held = score.read("allocated")
        score.expect("the allocator holds the bytes", score.grown(held) >= nbytes)
        exported = score.read(program.go()["stage"])
        score.expect_near("exporting takes no new bytes", exported.used, held.used)
        after = score.read(program.go()["stage"])
        files = machine.device_files(holder)
        score.measured["holder"] = {"descriptors": dict(files), "mappings": machine.device_mappings(holder)}
        score.measured["fdinfo"] = machine.fdinfo(holder, program["descriptor"])
        score.expect_near("the allocation stays, the context goes", score.grown(after), nbytes)
        score.expect("nobody is listed", not set(program.pids.values()) & set(after.listed))
        score.expect("one control descriptor, nothing else", dict(files) == {"nvidiactl": 1})
        score.expect("no mappings", machine.device_mappings(holder) == 0)
        score.expect("the holder never loaded the driver", not machine.loaded_driver(holder))
        closed = score.read(program.go()["stage"])
        score.expect_near("released when it closes", score.grown(closed), 0)


@TABLE.row(
    "dma-buf exported to a process that never used CUDA; allocator killed",
    "the bytes stay; nobody is listed; fdinfo tells size and exporter",
)
def dmabuf(score: Score) -> None:
    with score.machine.start("exports.dmabuf", 2 * GIB) as program:
        holder, nbytes = program.pids["holder"], program.nbytes
        score.read("allocated")
        score.read(program.go()["stage"])
        after = score.read(program.go()["stage"])
        files = machine.device_files(holder)
        info = machine.fdinfo(holder, program["descriptor"])
        score.measured["holder"] = {"descriptors": dict(files), "mappings": machine.device_mappings(holder)}
        score.measured["fdinfo"] = info
        score.expect_near("the allocation stays, the context goes", score.grown(after), nbytes)
        score.expect("nobody is listed", not set(program.pids.values()) & set(after.listed))
        score.expect("one dma-buf, nothing else", dict(files) == {"dmabuf": 1})
        score.expect("the holder never loaded the driver", not machine.loaded_driver(holder))
        if score.real:
            # Only the kernel writes these lines; the virtual GPU's file tells its size by stat.
            score.expect("fdinfo tells the size", info.get("size") == str(nbytes))
            score.expect("fdinfo names the exporter", info.get("exp_name") == "nv_dmabuf")
        closed = score.read(program.go()["stage"])
        score.expect_near("released when it closes", score.grown(closed), 0)


@TABLE.row(
    "four threads allocate 1 GiB each through raw pointers and end",
    "held until the process ends or the primary context is reset",
)
def threads(score: Score) -> None:
    with score.machine.start("owners.raw_pointers", GIB) as program:
        pid = program.pids["self"]
        seen = score.read("threads ended")
        score.expect("the bytes are held", score.grown(seen) >= program.nbytes)
        score.expect("the process is charged", seen.listed.get(pid, 0) >= program.nbytes)
        score.expect("no thread is left", program["threads_left"] == 0)
        after = score.read(program.go()["stage"])
        score.expect_near("released by the reset", score.grown(after), 0)


@TABLE.row("many processes with a context each", "each costs a context, whatever little it holds")
def small_contexts(score: Score) -> None:
    with score.machine.start("contexts.small", 2 * MIB) as program:
        seen = score.read("idle")
        workers = set(program.pids.values())
        score.expect("all are listed", workers <= set(seen.listed))
        listed = sum(seen.listed.get(pid, 0) for pid in workers)
        score.expect("contexts cost more than what is in them", listed > 10 * program.nbytes)
        score.expect("used grew by at least what is listed", score.grown(seen) >= listed)
        if score.is_h200:
            # What cuInit uses is there once, however many processes call it.
            used = h200.INIT_USED + len(workers) * (h200.CONTEXT_USED + 2 * MIB)
            score.expect_near("used", score.grown(seen), used, within=h200.CLOSE)
