"""Whatever a ledger holds: judging it never fails, and no finding is larger than its GPUs."""

from __future__ import annotations

import re
from typing import Any, get_args, get_type_hints

from hypothesis import given
from hypothesis import strategies as st
from msgspec import Struct
from msgspec.structs import replace

from vram.cli.manual import rules
from vram.diagnosis.engine import diagnose
from vram.model.cgroups import CgroupHolder, CgroupLimit, DmemFacts
from vram.model.gpu import DriverFacts, GpuFacts, MemoryFacts
from vram.model.ledger import (
    Entry,
    GpuLedger,
    Holder,
    Instance,
    Ledger,
    MigDevice,
    Note,
    NoteCode,
    OpenOnly,
    ParkedProcess,
    SystemMemory,
    known_bytes,
)
from vram.model.observation import HostFacts, ProbeRun
from vram.model.process import Job, Workload
from vram.model.windows import WindowsProcess, WindowsSide

# Few pids, so that charged pids, parents and holders often meet; among them the largest there is.
PIDS = st.sampled_from([1, 2, 3, 4, 4194303, 4194304])
SIZES = st.integers(0, 1 << 42)
TEXTS = st.text(max_size=12)
NAMED: dict[str, st.SearchStrategy[Any]] = {
    "pid": PIDS,
    "parent": st.none() | PIDS,
    "charged_pid": st.none() | PIDS,
    "inherited_from": st.none() | PIDS,
    "nbytes": SIZES,
    "total_bytes": st.none() | SIZES,
    "state": st.none() | st.sampled_from("RSDTtZX"),
    "charged_state": st.none() | st.just("Z"),
    "executable": st.none() | TEXTS | st.sampled_from(["/usr/bin/python3", "/usr/lib/xorg/Xorg"]),
    "slurm_job": st.none() | TEXTS | st.from_regex(r"[0-9]{1,5}", fullmatch=True),
    "container": st.none() | TEXTS | st.from_regex(r"[0-9a-f]{12}", fullmatch=True),
    "runtime": st.none() | TEXTS | st.sampled_from(["docker", "podman"]),
    "lists": st.sampled_from([(), ("compute",), ("mps",)]),
}


def any_of(struct: type[Struct], **fixed: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Build *struct* from its own type hints, every field included."""
    hints = get_type_hints(struct)
    fields = {name: st.from_type(hints[name]) for name in struct.__struct_fields__}
    return st.builds(struct, **(fields | {name: NAMED[name] for name in fields if name in NAMED} | fixed))


def few(strategy: st.SearchStrategy[Any], most: int = 4) -> st.SearchStrategy[tuple[Any, ...]]:
    return st.lists(strategy, max_size=most).map(tuple)


jobs = any_of(Job, key=st.sampled_from(["one", "other"]))
holders = any_of(Holder, workload=any_of(Workload), job=st.none() | jobs)
entries = any_of(
    Entry,
    holder=st.none() | holders,
    co_holders=few(holders, 2),
    evidence=few(TEXTS, 2),
    claimed=st.none() | SIZES,
    cgroup=st.none() | st.builds(CgroupHolder, TEXTS, st.just(Workload())),
    windows=st.none() | any_of(WindowsProcess, host_bytes=st.none() | SIZES),
)
sides = any_of(
    WindowsSide,
    counted_bytes=st.none() | SIZES,
    guest_bytes=st.none() | SIZES,
    guest_host_bytes=st.none() | SIZES,
    host_bytes=st.none() | SIZES,
)
instances = any_of(
    Instance,
    devices=few(any_of(MigDevice, name=TEXTS, uuid=TEXTS), 2),
    memory=st.none() | any_of(MemoryFacts),
    message=st.none() | TEXTS,
    notes=few(st.builds(Note, st.sampled_from(get_args(NoteCode)), TEXTS), 2),
)
gpus = any_of(
    GpuLedger,
    index=st.integers(0, 3),
    entries=few(entries, 6),
    open_only=few(any_of(OpenOnly, holder=holders, exported_bytes=st.none() | SIZES)),
    facts=st.none() | any_of(GpuFacts),
    memory=st.none() | any_of(MemoryFacts),
    message=st.none() | TEXTS,
    code=st.sampled_from([None, "nvml-16", "nvml-18"]),
    notes=few(st.builds(Note, st.sampled_from(get_args(NoteCode)), TEXTS), 2),
    windows=st.none() | sides,
    system=st.none() | any_of(SystemMemory, used_bytes=st.none() | SIZES, entries=few(entries, 2)),
    instances=few(instances, 2),
    limits=few(st.builds(DmemFacts, any_of(CgroupLimit), st.just(Workload())), 1),
    outside=few(entries, 1),
    mig=st.none() | st.just("0:1"),
)
ledgers = any_of(
    Ledger,
    host=any_of(HostFacts),
    gpus=st.lists(gpus, max_size=3, unique_by=lambda gpu: gpu.index).map(tuple),
    driver=st.none() | any_of(DriverFacts),
    probes=few(any_of(ProbeRun), 2),
    unreadable_users=few(TEXTS, 2),
    parked=few(
        any_of(
            ParkedProcess, lent_to=st.none() | PIDS, gpus=few(st.integers(0, 3), 2).map(sorted).map(tuple)
        ),
        2,
    ),
)


def balanced(ledger: Ledger) -> Ledger:
    """The same ledger with totals that its entries sum to, as every ledger promises."""
    return replace(ledger, gpus=tuple(_balanced(gpu) for gpu in ledger.gpus))


def _balanced(gpu: GpuLedger) -> GpuLedger:
    return replace(gpu, total_bytes=known_bytes(gpu.entries))


HELD = ("context", "live", "cached", "process", "orphaned", "exported")


@given(ledgers)
def test_judging_never_fails_and_always_fits(ledger):
    for finding in diagnose(ledger):
        assert finding.code in rules()
        assert len(finding.title) <= 70, finding.title
        assert set(finding.gpus) <= {gpu.index for gpu in ledger.gpus}
        texts = (finding.title, finding.cause, *finding.evidence, *(r.text for r in finding.remedies))
        assert all(text.isprintable() for text in texts)


@given(ledgers.map(balanced))
def test_findings_are_never_larger_than_the_gpus(ledger):
    """Not one alone, and not all of one code together: no rule counts a byte twice.

    Bytes at stake (VR102) are the exception: a fork and a handle can both endanger them. And what
    was spilled (VR601) lies in host memory. A GPU without memory of its own has an account of the
    machine's instead.
    """
    totals = {gpu.index: known_bytes(gpu.accounted) for gpu in ledger.gpus}
    by_code: dict[str, int] = {}
    for finding in (each for each in diagnose(ledger) if each.code != "VR601"):
        assert (finding.nbytes or 0) <= sum(totals[index] for index in finding.gpus)
        by_code[finding.code] = by_code.get(finding.code, 0) + (finding.nbytes or 0)
    by_code.pop("VR102", None)
    assert all(nbytes <= sum(totals.values()) for nbytes in by_code.values())


@given(ledgers.map(balanced))
def test_every_holder_is_named(ledger):
    """Nobody who holds a byte goes without a finding, whatever odd state it is in."""
    named = {(index, pid) for finding in diagnose(ledger) for index in finding.gpus for pid in finding.pids}
    for gpu in ledger.gpus:
        for entry in gpu.accounted:
            if entry.nbytes and entry.kind in HELD and entry.holder and entry.holder.alive:
                assert (gpu.index, entry.holder.pid) in named


# What a command may consist of: words of ours, pids, ids; nothing that a process wrote.
SAFE = re.compile(
    r"(sudo )?kill -CONT \d+"
    r'|(vram|sudo "\$\(command -v vram\)") kill( --job)?( \d+)+|vram (trim|park) \d+'
    r"|ps -o [a-z,]+ -p \d+(,\d+)*"
    r"|vram why --(deep|deadline 20s)|wsl\.exe --(list --running|shutdown)"
    r"|(vram (why|who --gpu \d+|snapshot -o vram-snapshot\.json --redact))"
    r'|sudo "\$\(command -v vram\)" why'
    r"|sudo cat /proc/\d+/stack|grep TracerPid /proc/\d+/status"
    r"|sudo dmesg --ctime \| grep -iE 'xid\|nvrm'"
    r'|echo "get_(server_list|client_list \d+)" \| nvidia-cuda-mps-control'
    r"|echo quit \| nvidia-cuda-mps-control"
    r'|sudo "\$\(command -v vram\)" reset \d+ --yes'
    r"|nvidia-smi mig -lgip -i \d+|sudo nvidia-smi -i \d+ -mig [01]"
    r"|nvidia-smi -q -d ROW_REMAPPER,PAGE_RETIREMENT -i \d+"
    r"|cat /proc/driver/nvidia/version; ldconfig -p \| grep libnvidia-ml"
    r"|scancel [0-9]+|(docker|podman) stop [0-9a-f]{12,64}"
)


@given(ledgers)
def test_every_command_is_one_of_ours_and_spares_the_system(ledger):
    commands = [r.command for finding in diagnose(ledger) for r in finding.remedies if r.command]
    for command in commands:
        assert SAFE.fullmatch(command), command
        assert "-TERM" not in command or not {"1", "2"} & set(re.findall(r"\d+", command))
