"""Snapshots: what is written is read back; what is broken, foreign or newer is refused."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from vram.diagnosis.engine import diagnose
from vram.errors import BadSnapshot, UsageError
from vram.ledger.build import build_ledger
from vram.model.files import DeviceFile, ExportFacts, FilesFacts, UnreadableFacts
from vram.model.gpu import ChargeFacts, DriverFacts, GpuFacts, MemoryFacts
from vram.model.ledger import known_bytes
from vram.model.observation import SURVEY_SCHEMA, HostFacts, Observation, ProbeRun, Survey
from vram.model.process import ProcessFacts, ProcessRef, Workload
from vram.probes import bundle

GIB = 1024**3
SECRETS = (
    "alice",
    "wonderland.example",
    "train.py",
    "--password",
    "/home/alice/bin/python",
    "secret-unit",
    "0b6f5a52",
    "4f1c9d0e7a3b",
    "jupyter-kernel",
    "4242",
)


def someone(pid: int, user: str, uid: int) -> Observation:
    facts = ProcessFacts(
        command="jupyter-kernel",
        argv=("python", "train.py", "--password", "x\x1b[2J"),
        uid=uid,
        user=user,
        executable="/home/alice/bin/python",
        state="S",
        parent=1,
        cgroup="/system.slice/secret-unit.service",
        workload=Workload("4f1c9d0e7a3b", "docker", "0b6f5a52", "4242", "0", "secret-unit.service"),
    )
    return Observation(probe="proc.processes", process=ProcessRef(pid, 99), facts=facts)


def example() -> Survey:
    """A survey with one of everything, and the exported case in it."""
    gpu_files = (
        DeviceFile(3, "gpu", "/dev/nvidia0", 0, 1),
        DeviceFile(4, "control", "/home/alice/gpu/dev/nvidiactl.3"),
    )
    return Survey(
        program="vram 0.1.0",
        taken_at="2026-01-01T00:00:00Z",
        host=HostFacts(name="wonderland.example", kernel="6.18", user="alice", uid=4242),
        observations=(
            Observation(probe="nvml.driver", facts=DriverFacts("580.159.04")),
            Observation(probe="nvml.gpu", gpu=0, facts=GpuFacts("GPU-0", "NVIDIA H200", 0)),
            Observation(probe="nvml.memory", gpu=0, facts=MemoryFacts(100 * GIB, 50 * GIB, 49 * GIB, GIB)),
            Observation(
                probe="nvml.processes",
                gpu=0,
                process=ProcessRef(10, 99),
                nbytes=40 * GIB,
                facts=ChargeFacts(("compute",)),
            ),
            Observation(probe="proc.files", process=ProcessRef(10, 99), facts=FilesFacts(gpu_files, 31)),
            Observation(
                probe="driver.exports",
                gpu=0,
                process=ProcessRef(11, 99),
                nbytes=4 * GIB,
                facts=ExportFacts(4),
            ),
            Observation(
                probe="proc.files", status="failed", code="error", message="OSError: /home/alice/x is gone"
            ),
            Observation(
                probe="proc.unreadable",
                status="denied",
                code="unreadable",
                facts=UnreadableFacts(3, ("alice", "root")),
            ),
            someone(10, "alice", 4242),
            someone(11, "bob", 4243),
        ),
        probes=(
            ProbeRun("nvml", "ok", 0.01),
            ProbeRun("files", "failed", 0.1, "OSError: /home/alice/x", "error"),
        ),
    )


def test_written_and_read_back(tmp_path: Path) -> None:
    path = str(tmp_path / "snapshot.json")
    bundle.write(example(), path)
    assert bundle.read(path) == example()


def test_only_its_owner_may_read_it(tmp_path: Path) -> None:
    path = tmp_path / "snapshot.json"
    bundle.write(example(), str(path))
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_link_stays_a_link(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "real")
    bundle.write(example(), str(tmp_path / "link"))
    assert (tmp_path / "link").is_symlink()
    assert bundle.read(str(tmp_path / "real")) == example()


def test_a_pipe_is_written_to_and_not_replaced(tmp_path: Path) -> None:
    path = tmp_path / "pipe"
    os.mkfifo(path)
    reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    bundle.write(example(), str(path))
    assert bundle.loads(os.read(reader, 1 << 16)) == example()
    assert stat.S_ISFIFO(path.stat().st_mode)
    os.close(reader)


def test_what_cannot_be_written_is_said_and_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(UsageError) as caught:
        bundle.write(example(), str(tmp_path / "no" / "folder.json"))
    assert caught.value.hint
    assert list(tmp_path.iterdir()) == []


def test_what_cannot_be_read_is_said(tmp_path: Path) -> None:
    for path in (tmp_path / "nothing.json", tmp_path):
        with pytest.raises(BadSnapshot, match="cannot read"):
            bundle.read(str(path))


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "damaged or truncated"),
        (b"\x1f\x8b\x08\x00", "damaged or truncated"),
        (b"\xff\xfe{\x00}", "damaged or truncated"),
        (b"[" * 100_000, "not a vram snapshot"),
        (b"[]", "not a vram snapshot"),
        (b"{}", "not a vram snapshot"),
        (b'{"schema": "1", "program": "x"}', "not a vram snapshot"),
        (b'{"name": "package", "version": "1.0.0"}', "not a vram snapshot"),
        (b'{"schema": 0, "program": "x"}', "schema 0, which does not exist"),
        (b'{"schema": 1, "program": "vram 0.1.0"}', "not a complete snapshot"),
    ],
)
def test_foreign_files_are_refused(content: bytes, words: str) -> None:
    with pytest.raises(BadSnapshot, match=words) as caught:
        bundle.loads(content, "FILE")
    assert caught.value.hint
    assert "FILE" in str(caught.value)


def test_a_newer_file_names_the_way_out() -> None:
    document = msgspec.json.decode(bundle.dumps(example()))
    document |= {"schema": SURVEY_SCHEMA + 1, "program": "vram 9.0", "observations": "in a new way"}
    with pytest.raises(BadSnapshot, match=r"newer version of vram \(schema") as caught:
        bundle.loads(msgspec.json.encode(document))
    assert "upgrade" in caught.value.hint


@pytest.mark.parametrize("nbytes", [-1, 2**62, 2**64 - 1])
@pytest.mark.parametrize("field", ["total", "free", "used", "reserved"])
def test_impossible_sizes_are_refused(field: str, nbytes: int) -> None:
    document = msgspec.json.decode(bundle.dumps(example()))
    document["observations"][2]["facts"][field] = nbytes
    with pytest.raises(BadSnapshot, match="an invalid size"):
        bundle.loads(msgspec.json.encode(document))


def test_a_file_cut_off_anywhere_is_refused() -> None:
    whole = bundle.dumps(example())
    for length in range(len(whole.rstrip())):
        with pytest.raises(BadSnapshot):
            bundle.loads(whole[:length])


@given(st.integers(0, len(bundle.dumps(example())) - 1), st.binary(min_size=1, max_size=3))
def test_a_garbled_file_is_refused_or_judged(at: int, garbage: bytes) -> None:
    """Never another exception; and what is accepted balances."""
    whole = bundle.dumps(example())
    try:
        survey = bundle.loads(whole[:at] + garbage + whole[at + len(garbage) :])
    except BadSnapshot:
        return
    for gpu in build_ledger(survey).gpus:
        if gpu.total_bytes is not None:
            assert known_bytes(gpu.entries) == gpu.total_bytes


def test_redacted_names_nobody() -> None:
    text = bundle.dumps(bundle.redact(example())).decode()
    assert [secret for secret in SECRETS if secret in text] == []


def test_redacted_gives_the_same_account() -> None:
    def account(survey: Survey) -> list[tuple[object, ...]]:
        return [
            (entry.kind, entry.nbytes, entry.holder and entry.holder.pid, entry.confidence)
            for gpu in build_ledger(survey).gpus
            for entry in gpu.entries
        ]

    assert account(bundle.redact(example())) == account(example())


def test_redacted_keeps_together_what_belongs_together() -> None:
    redacted = bundle.redact(example())
    alice, bob = (each.facts for each in redacted.observations if isinstance(each.facts, ProcessFacts))
    assert alice.user == redacted.host.user != bob.user
    assert alice.uid == redacted.host.uid != bob.uid
    assert alice.workload == bob.workload
    assert alice.workload.runtime == "docker"


def test_redacted_is_a_snapshot_and_stays_one() -> None:
    once = bundle.redact(example())
    assert bundle.loads(bundle.dumps(once)) == once
    assert bundle.redact(once) == once


def test_root_and_the_drivers_own_programs_keep_their_names() -> None:
    survey = example()
    server = ProcessFacts(command="nvidia-cuda-mps", argv=("nvidia-cuda-mps-server",), uid=0, user="root")
    seen = Observation(probe="proc.processes", process=ProcessRef(12, 1), facts=server)
    redacted = bundle.redact(msgspec.structs.replace(survey, observations=(seen,)))
    (process,) = (each.facts for each in redacted.observations)
    assert (process.command, process.user, process.uid, process.argv) == ("nvidia-cuda-mps", "root", 0, ())


def test_a_snapshot_of_an_earlier_version_is_read_as_ever():
    """Written before observations carried codes: a dead parent, an exported handle, and a worker."""
    survey = bundle.read(str(Path(__file__).with_name("snapshot-schema-1.json")))
    ledger = build_ledger(survey)
    (gpu,) = ledger.gpus
    assert known_bytes(gpu.entries) == gpu.total_bytes == 24 * GIB
    found = {entry.kind: entry.holder.pid for entry in gpu.entries if entry.holder}
    assert found == {"process": 26247, "orphaned": 26300, "exported": 26302}
    assert [finding.code for finding in diagnose(ledger)][:2] == ["VR101", "VR103"]
    # It has a field that no later version has, beside these.
    assert (ledger.unreadable_processes, ledger.unreadable_users) == (1, ("root",))


@pytest.mark.parametrize(
    ("message", "code"),
    [
        ("the driver's kernel module and its libraries have different versions (NVML error 18)", "nvml-18"),
        ("the GPU needs a reset (NVML error 16)", "nvml-16"),
        ("Windows was left out, as --no-windows wants it", "windows-left-out"),
        ("powershell.exe is nowhere to be found from here", "no-powershell"),
        ("Windows programs cannot be started from here: WSL's interop is off (asked 3 s ago)", "no-interop"),
        ("the Python package nvidia-ml-py is not installed", "no-nvml-binding"),
        ("nothing that has a code of its own (NVML error ?)", "failed"),
        (None, "failed"),
    ],
)
def test_statements_of_an_earlier_version_are_given_codes(message: str | None, code: str):
    said = Observation(probe="nvml.init", status="failed", message=message)
    run = ProbeRun("nvml", "failed", 0.1, message)
    old = msgspec.structs.replace(example(), observations=(said,), probes=(run,))
    read = bundle.loads(bundle.dumps(old))
    assert (read.observations[0].code, read.probes[0].code) == (code, code)


def test_an_old_snapshot_of_a_mismatched_driver_still_says_so():
    run = ProbeRun("nvml", "failed", 0.1, "the versions differ (NVML error 18)")
    read = bundle.loads(bundle.dumps(msgspec.structs.replace(example(), observations=(), probes=(run,))))
    assert "VR501" in [finding.code for finding in diagnose(build_ledger(read))]
