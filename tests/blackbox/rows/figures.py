"""Figures: measured and kept on every GPU; on an H200, real or virtual, held to what was measured there."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import machine
from machine import GpuReading
from score import GIB, MIB, Score, Skipped, Table, mib

from rows import h200

TABLE = Table("Raw figures")
MEASURED = "as measured on an H200"


def footprint(score: Score, stage: str, pid: int, wanted: dict[str, object]) -> None:
    """Keep the device files that /proc shows of a process; an H200 has shown the *wanted* ones."""
    # The files under nvidia-caps depend on how the driver was set up on the machine.
    files = {name: n for name, n in machine.device_files(pid).items() if not name.startswith("nvidia-caps")}
    shown = {"descriptors": files, "mappings": machine.device_mappings(pid)}
    score.measured[f"{stage}: files"] = shown
    if score.is_h200:
        score.expect(f"{stage}: files as on an H200", shown == wanted)


def cost(score: Score, stage: str, pid: int, contexts: int) -> GpuReading:
    """GpuReading, and expect what so many contexts of one process cost on an H200."""
    seen = score.read(stage)
    if score.is_h200:
        used = h200.INIT_USED + contexts * h200.CONTEXT_USED
        score.expect_near(f"{stage}: used", score.grown(seen), used, within=h200.CLOSE)
        score.expect(f"{stage}: listed", seen.listed.get(pid, 0) == contexts * h200.CONTEXT_LISTED)
        score.expect(f"{stage}: in the list", (pid in seen.listed) == (contexts > 0))
    return seen


@TABLE.row("files of a process that only watches", MEASURED)
def monitor(score: Score) -> None:
    footprint(score, "NVML", score.machine.observer_pid, h200.MONITOR)


@TABLE.row("files and cost of a context, of a second one, and of releasing them", MEASURED)
def contexts(score: Score) -> None:
    stages = {
        "init": (0, h200.INIT),
        "context": (1, h200.ONE_CONTEXT),
        "second": (2, h200.TWO_CONTEXTS),
        "one again": (1, h200.ONE_CONTEXT),
        "none": (0, h200.INIT),
    }
    with score.machine.start("contexts.one_by_one") as program:
        pid = program.pids["self"]
        for stage, (count, files) in stages.items():
            if stage != "init":
                program.go()
            cost(score, stage, pid, count)
            footprint(score, stage, pid, files)
            closing = machine.close_on_exec(pid)
            score.measured[f"{stage}: close-on-exec"] = dict(closing)
            score.expect(f"{stage}: exec closes every device file", set(closing) == {"closed"})


@TABLE.row("what cuMemGetInfo tells beside NVML", "total = NVML's less reserved; the same free bytes")
def memory_info(score: Score) -> None:
    with score.machine.start("contexts.one_by_one") as program:
        program.go()
        seen = score.machine.read()
        score.measured |= {
            "driver total": program["total"],
            "driver free": program["free"],
            "v2 total": seen.total,
            "v2 free": seen.free,
            "v1 free": seen.v1_free,
            "v1 used": seen.v1_used,
            "v2 reserved": seen.reserved,
        }
        score.expect(
            "the driver's total is NVML's less reserved", program["total"] == seen.total - seen.reserved
        )
        score.expect("both tell the same free bytes", program["free"] == seen.free)
        if score.is_h200:
            told = (seen.total, seen.reserved)
            score.expect("total and reserved as on an H200", told == (h200.TOTAL, h200.RESERVED))


@TABLE.row("what small allocations take", "2 MiB at a time; up to 1 MiB share them")
def granularity(score: Score) -> None:
    with score.machine.start("memory.granularity") as program:
        score.measured["vmm granularity"] = program["vmm_granularity"]
        pid, seen = program.pids["self"], score.machine.read()
        for nbytes, wanted in h200.TAKEN:
            program.go(str(nbytes))
            after = score.machine.read()
            used, listed = after.used - seen.used, after.listed.get(pid, 0) - seen.listed.get(pid, 0)
            taken = {"nbytes": nbytes, "driver": program["taken"], "used": used, "listed": listed}
            score.measured.setdefault("taken", []).append(taken)
            seen = after
            if score.is_h200:
                score.expect(f"{nbytes} bytes take {wanted}", {program["taken"], used, listed} == {wanted})


@TABLE.row("what managed memory takes", "nothing until the device touches it; then it stays until freed")
def managed(score: Score) -> None:
    nbytes = 256 * MIB  # of less than 128 MiB the real driver keeps some when it is freed
    with score.machine.start("memory.managed", nbytes) as program:
        base = score.read("allocated")
        wanted = {"touched by the device": nbytes, "touched by the host": nbytes, "freed": 0}
        if score.is_h200:
            used = h200.INIT_USED + h200.CONTEXT_USED
            score.expect_near("allocated: only the context", score.grown(base), used, within=h200.CLOSE)
        for stage, taken in wanted.items():
            seen = score.read(program.go()["stage"])
            score.expect("stages in order", program["stage"] == stage)
            score.expect_near(f"{stage}: used", seen.used - base.used, taken)
            score.expect(f"{stage}: in no list", seen.listed == base.listed)


@TABLE.row(
    "what an importer of an exported allocation is charged",
    "nothing while the exporter lives; then the allocation",
)
def vmm_import(score: Score) -> None:
    with score.machine.start("imports.vmm", GIB) as program:
        exporter, importer = program.pids["exporter"], program.pids["importer"]
        wanted = {
            "exported": (GIB, 0),
            "imported": (GIB, 0),
            "mapped": (GIB, 0),
            "exporter killed": (None, GIB),
        }
        base = score.machine.read().listed.get(importer, 0)
        for stage, held in (wanted | {"released": (None, 0)}).items():
            seen = score.read(stage if stage == "exported" else program.go()["stage"])
            if stage in ("imported", "mapped"):
                codes = {name: program[name] for name in ("import", "map", "access") if name in program.line}
                score.measured[f"{stage}: codes"] = codes
                score.expect(f"{stage}: no call fails", not any(codes.values()))
            charged = seen.listed.get(exporter, base) - base, seen.listed.get(importer, 0) - base
            score.expect(f"{stage}: charged", charged == (held[0] or 0, held[1]))
            score.expect(
                f"{stage}: the exporter is listed while it lives", (exporter in seen.listed) == bool(held[0])
            )
        score.measured["pids"] = program.pids


@TABLE.row("what the driver answers to misuse", MEASURED)
def error_codes(score: Score) -> None:
    with score.machine.start("memory.misuse") as program:
        score.measured["codes"] = program["codes"]
        for misuse, answer in h200.CODES.items():
            score.expect(f"{misuse}: {answer}", program["codes"].get(misuse) == answer)


@contextmanager
def kept_export(score: Score, nbytes: int) -> Iterator[tuple[int, int]]:
    """Have a process hold an exported allocation whose allocator is dead; give its pid and descriptor."""
    with score.machine.start("exports.handle", nbytes) as program:
        program.go()
        program.go()
        yield program.pids["holder"], program["descriptor"]


@TABLE.row(
    "a process without a context measures a holder's exported allocation",
    "exactly: it maps at its own size and no other; the measurer is charged nothing",
)
def measure_export(score: Score) -> None:
    nbytes = 3 * GIB + 6 * MIB
    with kept_export(score, nbytes) as (holder, descriptor):
        kept = score.read("kept")
        score.expect_near("the holder holds the bytes", score.grown(kept), nbytes, within=h200.CLOSE)
        with score.machine.start("exports.measure", holder, descriptor) as program:
            pid = program.pids["self"]
            imported = score.read(program["stage"])
            score.measured["import code"] = program["import_code"]
            score.expect("the import succeeds", program["import_code"] == 0)
            if program["stage"] == "refused":
                return
            began = time.monotonic()
            measured = score.read(program.go()["stage"])
            score.measured |= {name: program[name] for name in ("nbytes", "tries", "refusals")}
            score.measured["measured_s"] = round(time.monotonic() - began, 3)
            score.expect("the size is exact", program.nbytes == nbytes)
            score.expect("other sizes are not supported", program["refusals"] == [801])
            score.expect("nobody is charged", not {pid, holder} & {*imported.listed, *measured.listed})
            if score.is_h200:
                for seen in (imported, measured):
                    more = seen.used - kept.used
                    score.expect_near("it uses what cuInit does", more, h200.INIT_USED, within=h200.CLOSE)
            footprint(score, "measured", pid, h200.INIT)


@TABLE.row("a control descriptor that is no export, imported", "999")
def measure_control(score: Score) -> None:
    with score.machine.start("memory.plain", 64 * MIB) as owner:
        pid = owner.pids["self"]
        answers = []
        for descriptor in sorted(control_descriptors(pid)):
            with score.machine.start("exports.measure", pid, descriptor) as program:
                answers.append(program["import_code"])
            if len(answers) == 3:
                break
        score.measured["import codes"] = answers
        score.expect("refused as unknown", set(answers) == {999})


def control_descriptors(pid: int) -> list[int]:
    links = {int(name): os.readlink(f"/proc/{pid}/fd/{name}") for name in os.listdir(f"/proc/{pid}/fd")}
    return [number for number, target in links.items() if machine.file_kind(target) == "nvidiactl"]


@TABLE.row(
    "BAR1 with nothing, with a context, with 4 GiB", "on an H200, all memory in use is seen through it"
)
def bar1(score: Score) -> None:
    nothing = score.machine.ask("bar1")
    score.measured["nothing"] = {name: mib(nbytes) for name, nbytes in nothing.items()}
    if score.is_h200:
        score.expect("nothing: as on an H200", nothing | h200.BAR1 == nothing)
    with score.machine.start("contexts.one_by_one") as program:
        program.go()
        expect_window(score, "context")
    with score.machine.start("memory.plain", 4 * GIB):
        expect_window(score, "4 GiB")


def expect_window(score: Score, stage: str) -> None:
    used = score.machine.ask("bar1")["used"]
    score.measured[stage] = mib(used)
    if score.is_h200:
        memory = score.grown(score.machine.read())
        score.expect_near(stage, used, h200.BAR1["used"] + memory, within=h200.CLOSE)


@TABLE.row("which management calls answer", MEASURED)
def support(score: Score) -> None:
    answers = score.machine.ask("support")
    score.measured |= answers
    if score.is_h200:
        for name, answer in h200.SUPPORT.items():
            score.expect(f"{name}: {answer}", answers[name] == answer)


@TABLE.row("whom the driver lists inside a fresh PID namespace", "those inside, by their pids there")
def pid_namespace(score: Score) -> None:
    if shutil.which("unshare") is None or os.geteuid() != 0:
        raise Skipped("needs unshare and root")
    command = ["unshare", "--pid", "--fork", "--mount-proc", "--kill-child"]
    if subprocess.run([*command, "true"], stderr=subprocess.DEVNULL).returncode:
        raise Skipped("no new PID namespace may be made here")
    with score.machine.start("memory.plain", 64 * MIB) as outsider:
        script = str(machine.HERE / "namespace_view.py")
        inside = machine.LineProcess([*command, sys.executable, script], score.machine.env)
        try:
            seen_inside = inside.hear()
            score.measured |= {"inside": seen_inside, "outsider": outsider.pids["self"]}
            score.expect("only its own", set(seen_inside["listed"]) == {str(seen_inside["mine"])})
            outside = score.read("outside").listed
            new = set(outside) - set(score.before.listed)
            score.expect("both are listed outside", len(new) == 2 and outsider.pids["self"] in new)
        finally:
            inside.close_input()
            inside.process.wait(machine.EXIT_S)
