"""`vram fleet --snapshots`: words in, a screen or JSON out; exit codes say whether all nodes answered."""

from __future__ import annotations

import json
from pathlib import Path

import jsonschema
import pytest

from bench import fleet_nodes
from tests.fleet.conftest import vram_fleet
from tests.fleet.snapshots import haunted, healthy, unexplained, write
from vram.report.schema import shipped

NODES = 300


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write(tmp_path, healthy("gpu-1"), haunted("gpu-2"), unexplained("gpu-3"))


def test_json_is_as_its_schema_says(folder: Path) -> None:
    (folder / "broken.json").write_bytes(b"{")
    run = vram_fleet("--snapshots", folder, "--json", "--by", "user")
    assert run.status == 3
    jsonschema.validate(json.loads(run.output), json.loads(shipped("fleet").read_bytes()))
    assert list(run.nodes) == ["gpu-2", "gpu-3", "broken", "gpu-1"]


def test_a_fleet_that_answers_whole_is_exit_0(folder: Path) -> None:
    run = vram_fleet("--snapshots", folder)
    assert run.status == 0
    assert "gpu-2" in run.output
    assert "gpu-1" not in run.output, "the healthy ones are in a sum"
    assert "1 ok" in run.output


def test_named_nodes_are_shown_whole(folder: Path) -> None:
    run = vram_fleet("--snapshots", folder, "--node", "gpu-2")
    assert run.status == 0
    assert "held by pid 201" in run.output
    assert "gpu-3" not in run.output


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((), "one of --snapshots, --hosts, --ray and --srun"),
        (("--snapshots", "{folder}", "--srun"), "one of --snapshots, --hosts, --ray and --srun"),
        (("--snapshots", "{folder}/none"), "cannot read"),
        (("--snapshots", "{folder}/empty"), "has no snapshot"),
        (("--snapshots", "{folder}", "--node", "gpu-4"), "there is no node 'gpu-4'"),
        (("--snapshots", "{folder}", "free"), "recorded nodes cannot be acted on"),
        (("free", "--snapshots", "{folder}"), "recorded nodes cannot be acted on"),
        (("--snapshots", "{folder}", "--yes"), "--yes and --socket are for"),
        (("--snapshots", "{folder}", "--ssh-option", "Port=1"), "are for --hosts"),
        (("--snapshots", "{folder}", "--vram", "x"), "recorded ones run nothing"),
        (("--hosts=-oProxyCommand=x",), "is not a host name"),
        (("--hosts", ""), "names no host"),
        (("--hosts", "a", "--vram", "'"), "No closing quotation"),
        (("--hosts", "a", "--vram", " "), "--vram is empty"),
        (("--srun",), "works inside a Slurm allocation"),
        (("--snapshots", "{folder}", "--parallel", "0"), "is not a number"),
    ],
    ids=str,
)
def test_wrong_words_are_sentences(folder: Path, words: tuple[str, ...], said: str) -> None:
    (folder / "empty").mkdir()
    run = vram_fleet(*(word.format(folder=folder) for word in words), SLURM_JOB_ID="")
    assert run.status == 2, run.errors
    assert said in run.errors
    assert "Traceback" not in run.errors


def test_file_names_may_be_anything(folder: Path) -> None:
    (folder / ".hidden.json").write_bytes(b"")
    (folder / "notes.txt").write_bytes(b"")
    (folder / "\x1b[31mred.json").write_bytes(b"")
    Path(str(folder) + "/\udcff\udcfe.json").write_bytes(b"")
    run = vram_fleet("--snapshots", folder, "-v")
    assert run.status == 3
    assert "\x1b" not in run.output
    assert "not UTF-8" in run.output
    assert "hidden" not in run.output


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The first nodes of the benchmark's fleet; two of them lie."""
    folder = tmp_path_factory.mktemp("large")
    fleet_nodes.write(folder, NODES, gpus=2)
    return folder


@pytest.mark.parametrize("width", [80, 200])
def test_a_large_fleet_fits_one_screen(large: Path, width: int) -> None:
    for words in ((), ("--by", "user"), ("--by", "job"), ("--by", "pod"))[: 4 if width == 80 else 1]:
        run = vram_fleet("--snapshots", large, *words, width=width)
        lines = run.output.splitlines()
        assert run.status == 3, "some of its nodes lie"
        assert len(lines) <= 24
        assert max(map(len, lines)) <= width


def test_one_worker_and_two_find_the_same(large: Path) -> None:
    answers = []
    for workers in (1, 2):
        found = json.loads(vram_fleet("--snapshots", large, "--json", "--workers", workers).output)
        answers.append([{**node, "took_s": None} for node in found["nodes"]])
    assert answers[0] == answers[1]
    assert len(answers[0]) == NODES
