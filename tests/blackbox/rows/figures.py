"""Raw figures that a virtual GPU must mimic: measured and kept, not judged."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import theatre
from score import GIB, MIB, Score, Skipped, Table, mib

TABLE = Table("Raw figures")


def footprint(pid: int) -> dict[str, object]:
    return {"descriptors": dict(theatre.device_files(pid)), "mappings": theatre.device_mappings(pid)}


@TABLE.row("files and cost of a context, of a second one, and of giving them back", "measured")
def contexts(score: Score) -> None:
    with score.theatre.scene("context_only") as actor:
        pid = actor.pids["self"]
        for stage in ("init", "context", "second", "one again", "none"):
            if stage != "init":
                actor.go()
            score.look(stage)
            score.measured[f"{stage}: files"] = footprint(pid)
            if stage == "context":
                score.measured["close-on-exec"] = dict(theatre.close_on_exec(pid))


@TABLE.row("what cuMemGetInfo tells beside NVML", "measured")
def memory_info(score: Score) -> None:
    with score.theatre.scene("context_only") as actor:
        actor.go()
        seen = score.theatre.look()
        score.measured |= {
            "driver total": actor["total"],
            "driver free": actor["free"],
            "v2 total": seen.total,
            "v2 free": seen.free,
            "v1 free": seen.v1_free,
            "v1 used": seen.v1_used,
            "v2 reserved": seen.reserved,
        }


@TABLE.row("what small allocations take", "measured")
def granularity(score: Score) -> None:
    with score.theatre.scene("granularity") as actor:
        score.measured["vmm granularity"] = actor["vmm_granularity"]
        pid, seen = actor.pids["self"], score.theatre.look()
        for nbytes in (1, 1, MIB, MIB, 2 * MIB, 3 * MIB, 3 * MIB, 64 * MIB + 1):
            actor.go(str(nbytes))
            after = score.theatre.look()
            used, listed = after.used - seen.used, after.listed.get(pid, 0) - seen.listed.get(pid, 0)
            taken = {"nbytes": nbytes, "driver": actor["taken"], "used": used, "listed": listed}
            score.measured.setdefault("taken", []).append(taken)
            seen = after


@TABLE.row("what managed memory takes before a kernel touches it", "measured")
def managed(score: Score) -> None:
    with score.theatre.scene("managed", 64 * MIB) as actor:
        score.look("allocated")
        score.look(actor.go()["stage"])


@TABLE.row("what an importer of an exported allocation is charged", "measured")
def vmm_import(score: Score) -> None:
    with score.theatre.scene("vmm_import", GIB) as actor:
        score.look("exported")
        for _ in range(4):
            score.look(actor.go()["stage"])
            if actor["stage"] in ("imported", "mapped"):
                score.measured[f"{actor['stage']}: codes"] = {
                    name: actor[name] for name in ("import", "map", "access") if name in actor.line
                }
        score.measured["pids"] = actor.pids


@TABLE.row("what the driver answers to misuse", "measured")
def error_codes(score: Score) -> None:
    with score.theatre.scene("error_codes") as actor:
        score.measured["codes"] = actor["codes"]


@contextmanager
def kept_export(score: Score, nbytes: int) -> Iterator[tuple[int, int]]:
    """Have a keeper hold an exported allocation whose allocator is dead; give its pid and descriptor."""
    with score.theatre.scene("export_handle", nbytes) as actor:
        actor.go()
        actor.go()
        yield actor.pids["keeper"], actor["descriptor"]


@TABLE.row("a process without a context measures a keeper's exported allocation", "measured")
def measure_export(score: Score) -> None:
    nbytes = 3 * GIB + 6 * MIB
    with kept_export(score, nbytes) as (keeper, descriptor):
        score.look("kept")
        with score.theatre.scene("measure_export", keeper, descriptor) as actor:
            score.look(actor["stage"])
            score.measured["import code"] = actor["import_code"]
            if actor["stage"] == "refused":
                return
            began = time.monotonic()
            score.look(actor.go()["stage"])
            score.measured |= {name: actor[name] for name in ("nbytes", "tries", "refusals")}
            score.measured["measured_s"] = round(time.monotonic() - began, 3)
            score.measured["exact"] = actor.nbytes == nbytes
            score.measured["files"] = footprint(actor.pids["self"])


@TABLE.row("a control descriptor that is no export, imported", "measured")
def measure_control(score: Score) -> None:
    with score.theatre.scene("plain", 64 * MIB) as owner:
        pid = owner.pids["self"]
        answers = []
        for descriptor in sorted(control_descriptors(pid)):
            with score.theatre.scene("measure_export", pid, descriptor) as actor:
                answers.append(actor["import_code"])
            if len(answers) == 3:
                break
        score.measured["import codes"] = answers


def control_descriptors(pid: int) -> list[int]:
    links = {int(name): os.readlink(f"/proc/{pid}/fd/{name}") for name in os.listdir(f"/proc/{pid}/fd")}
    return [number for number, target in links.items() if theatre.file_kind(target) == "nvidiactl"]


@TABLE.row("BAR1 with nothing, with a context, with 4 GiB", "measured")
def bar1(score: Score) -> None:
    score.measured["nothing"] = {name: mib(nbytes) for name, nbytes in score.theatre.ask("bar1").items()}
    with score.theatre.scene("context_only") as actor:
        actor.go()
        score.measured["context"] = mib(score.theatre.ask("bar1")["used"])
    with score.theatre.scene("plain", 4 * GIB):
        score.measured["4 GiB"] = mib(score.theatre.ask("bar1")["used"])


@TABLE.row("which management calls answer", "measured")
def support(score: Score) -> None:
    score.measured |= score.theatre.ask("support")


@TABLE.row("whom the driver lists inside a fresh PID namespace", "measured")
def pid_namespace(score: Score) -> None:
    if shutil.which("unshare") is None or os.geteuid() != 0:
        raise Skipped("needs unshare and root")
    command = ["unshare", "--pid", "--fork", "--mount-proc", "--kill-child"]
    if subprocess.run([*command, "true"], stderr=subprocess.DEVNULL).returncode:
        raise Skipped("no new PID namespace may be made here")
    with score.theatre.scene("plain", 64 * MIB) as outsider:
        script = str(theatre.HERE / "namespace_view.py")
        inside = theatre.Lines([*command, sys.executable, script], score.theatre.env)
        try:
            score.measured["inside"] = inside.hear()
            score.measured["outsider"] = outsider.pids["self"]
            score.look("outside")
        finally:
            inside.hang_up()
            inside.process.wait(theatre.LEAVE_S)
