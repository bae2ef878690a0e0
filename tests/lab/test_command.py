"""``vram lab`` for people and for scripts."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import jsonschema
import msgspec
import pytest

from tests.lab.conftest import PROGRAM, Lab, only_result
from tests.needs import skip_without
from vram.cli.app import main
from vram.lab.topics import CLAIMS
from vram.model.lab import LabCatalogue, LabReport
from vram.virtualgpu import VirtualGpu


def test_the_list_names_every_experiment(lab: Lab) -> None:
    out = lab().stdout
    assert all(f"  {name} " in out for name in CLAIMS)
    assert all(len(line) <= 80 for line in out.splitlines())


def test_the_list_for_scripts(lab: Lab) -> None:
    told = msgspec.json.decode(lab("list", "--json").stdout, type=LabCatalogue)
    assert [each.name for each in told.experiments] == list(CLAIMS)


def test_a_page_says_how_and_how_much(lab: Lab) -> None:
    out = lab("show", "fork-harmless").stdout
    assert out.startswith("fork-harmless: A fork is harmless")
    assert "Method\n------" in out
    assert "takes up to 1.0 GiB" in out


def test_a_run_shows_claim_verdict_and_figures(lab: Lab) -> None:
    ended = lab("run", "context-free-of-charge", "stopped")
    assert ended.returncode == 0
    assert ended.stderr == ""
    assert "false here   A CUDA context costs no memory worth mentioning" in ended.stdout
    assert "a context took 526.8 MiB" in ended.stdout
    assert "2 claims: 1 true here, 1 false here, 0 cannot tell" in ended.stdout
    assert all(len(line) <= 80 for line in ended.stdout.splitlines())


def test_a_virtual_gpu_is_said_to_be_no_evidence(lab: Lab, tmp_path: Path) -> None:
    ended = lab("run", "used-includes-reserved")
    assert "It is no evidence about real" in ended.stdout
    refused = lab("run", "used-includes-reserved", "--evidence", str(tmp_path))
    assert refused.returncode == 2
    assert "results of a virtual GPU are no evidence" in refused.stderr
    assert list(tmp_path.iterdir()) == []


def test_the_object_for_scripts_matches_its_schema(lab: Lab) -> None:
    (root,), definitions = msgspec.json.schema_components([LabReport], ref_template="#/$defs/{name}")
    told = json.loads(lab("run", "--json", "kill-nine").stdout)
    jsonschema.validate(told, {**root, "$defs": definitions})
    assert told["virtual"] is True
    assert [figure["name"] for figure in told["results"][0]["figures"]] == ["still used", "until it was gone"]


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["run", "kill-nin"], "did you mean kill-nine?"),
        (["show", "qqqqqq"], "`vram lab list` lists them all"),
        (["show"], "no experiment given"),
        (["list", "--evidence", "x"], "--evidence saves the results"),
        (["list", "--faults"], "--faults is for `vram lab run`"),
        # An unset variable in a script would otherwise run everything and keep nothing.
        (["run", "--evidence", ""], "needs the name of a folder"),
        (["walk"], "invalid choice"),
    ],
)
def test_a_wrong_call_is_refused(
    capsys: pytest.CaptureFixture[str], words: list[str], complaint: str
) -> None:
    assert main(["lab", *words]) == 2
    assert complaint in capsys.readouterr().err


def test_a_gpu_that_does_not_exist_is_refused(lab: Lab) -> None:
    ended = lab("run", "--gpu", "7")
    assert ended.returncode == 2
    assert "there is no GPU 7" in ended.stderr


def test_the_chosen_gpu_is_the_one(two_virtual_gpus: VirtualGpu) -> None:
    """Processes see the GPU that was named as their only one, and its memory is what is read."""
    ended = two_virtual_gpus.run(
        [*PROGRAM, "run", "--gpu", "1", "--json", "stopped"], capture_output=True, text=True
    )
    assert only_result(ended).verdict == "true here"
    assert json.loads(ended.stdout)["index"] == 1


def test_without_a_driver_there_is_a_way_to_see_it(tmp_path: Path) -> None:
    import subprocess

    program = [sys.executable, "-m", "vram", "lab", "run", "stopped"]
    ended = subprocess.run(program, env={"PATH": "", "HOME": str(tmp_path)}, capture_output=True, text=True)
    if ended.returncode != 4:
        skip_without("no-driver", "there is a driver here")
    assert "vram virtual -- vram lab run" in ended.stderr


@pytest.mark.parametrize("columns", [40, 80, 200])
def test_pages_fit_the_terminal_and_lose_no_word(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, columns: int
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    for name, claim in CLAIMS.items():
        assert main(["lab", "show", name]) == 0
        shown_page = capsys.readouterr().out
        told, _, _ = shown_page.rpartition("(takes up to")
        assert told.split()[1:] == claim.describe().page.split()
        loose = [line for line in shown_page.splitlines() if len(line.split()) > 1 and line[:1] not in " -"]
        assert max(map(len, loose)) <= columns
