"""`vram snapshot`: what was seen here can be judged anywhere."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

from tests.cli.conftest import PROGRAM, Run
from vram.virtualgpu import VirtualGpu


def taken(gpu: VirtualGpu, *argv: str) -> tuple[bytes, int]:
    process = gpu.popen([*PROGRAM, "snapshot", *argv], stdout=subprocess.PIPE)
    return process.communicate()[0], process.returncode


def test_a_snapshot_is_judged_like_its_host(virtual_gpu: VirtualGpu, vram: Run, tmp_path: Path) -> None:
    path = tmp_path / "here.json"
    out, code = taken(virtual_gpu, "-o", str(path))
    assert code == 0
    assert f"vram why --from {path}".encode() in out
    answer = vram("why", "--json", "--from", str(path))
    assert answer.code == 0
    report = json.loads(answer.out)
    assert report["host"]["virtual"] is True
    assert (
        sum(entry["nbytes"] or 0 for entry in report["gpus"][0]["entries"])
        == report["gpus"][0]["total_bytes"]
    )


def test_a_dash_is_standard_output(virtual_gpu: VirtualGpu) -> None:
    out, code = taken(virtual_gpu, "-o", "-")
    assert code == 0
    assert json.loads(out)["schema"] == 1


def test_what_was_there_before_is_replaced_and_nothing_else_is_left(
    virtual_gpu: VirtualGpu, tmp_path: Path
) -> None:
    path = tmp_path / "here.json"
    path.write_text("old")
    assert taken(virtual_gpu, "-o", str(path))[1] == 0
    assert json.loads(path.read_bytes())["schema"] == 1
    assert os.listdir(tmp_path) == ["here.json"]


def test_redacted_it_names_neither_host_nor_user(virtual_gpu: VirtualGpu) -> None:
    plain = json.loads(taken(virtual_gpu, "-o", "-")[0])
    redacted = taken(virtual_gpu, "-o", "-", "--redact")[0]
    assert json.loads(redacted)["host"]["name"] != plain["host"]["name"]
    assert f'"{plain["host"]["name"]}"'.encode() not in redacted


def test_a_folder_that_is_not_there_is_a_usage_error(vram: Run, tmp_path: Path) -> None:
    answer = vram("snapshot", "-o", str(tmp_path / "none" / "x.json"))
    assert answer.code == 2
    assert "cannot write" in answer.err
