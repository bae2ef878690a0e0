"""``vram why`` as WSL2: end to end, on a virtual GPU under Windows' driver and a stand-in for Windows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.wsl.conftest import Hold, Wsl
from tests.wsl.windows import SPEAKERS, answer, asked, card, encoded, row, speaking
from vram.errors import ExitCode
from vram.units import GIB, MIB


def page(report: dict[str, Any], gpu: int = 0) -> dict[str, Any]:
    """One GPU, which must balance to the byte."""
    found: dict[str, Any] = report["gpus"][gpu]
    assert sum(entry["nbytes"] or 0 for entry in found["entries"]) == found["total_bytes"]
    return found


def entries(report: dict[str, Any], kind: str, gpu: int = 0) -> list[dict[str, Any]]:
    return [entry for entry in page(report, gpu)["entries"] if entry["kind"] == kind]


def codes(report: dict[str, Any]) -> set[str]:
    return {finding["code"] for finding in report["findings"]}


@pytest.mark.parametrize("language", SPEAKERS)
def test_both_sides_are_joined_in_any_language(wsl: Wsl, hold: Hold, language: str) -> None:
    wsl.gpu.set(windows_bytes=GIB)
    process = hold(4 * GIB)
    used = page(wsl.why())["memory"]["used"]
    wsl.says(speaking(language, guest=used - GIB, other=GIB))
    report = wsl.why()
    (windows,) = entries(report, "windows")
    assert (windows["nbytes"], windows["windows"]["name"], windows["holder"]) == (
        GIB,
        SPEAKERS[language][0],
        None,
    )
    (mine,) = entries(report, "process")
    assert (mine["holder"]["pid"], mine["nbytes"], mine["confidence"]) == (process.pid, used - GIB, "likely")
    assert mine["holder"]["user"]
    assert page(report)["notes"] == []
    assert report["host"]["wsl_facts"]["version"] == 2
    assert page(report)["windows"]["certain"] is True


def test_several_linux_processes_share_what_windows_counts_for_all(wsl: Wsl, hold: Hold) -> None:
    """Nothing is estimated: each is named, and the sum is one line."""
    pids = {hold(GIB).pid, hold(2 * GIB).pid}
    used = page(wsl.why())["memory"]["used"]
    wsl.says(speaking("en", guest=used - 256 * MIB, other=256 * MIB))
    report = wsl.why()
    (together,) = entries(report, "guest")
    assert together["nbytes"] == used - 256 * MIB
    named = entries(report, "process")
    assert {each["holder"]["pid"] for each in named} == pids
    assert {(each["nbytes"], each["confidence"]) for each in named} == {(None, "unknown")}
    assert "VR603" in codes(report)


def test_a_pid_that_the_driver_lists_and_nobody_has_here_keeps_the_rest_apart(wsl: Wsl, hold: Hold) -> None:
    """It may be another distribution's: then the one process here is not the only one."""
    hold(GIB, 0, "fork")  # the list keeps the parent's pid, which is gone
    used = page(wsl.why())["memory"]["used"]
    wsl.says(speaking("en", guest=used, other=0))
    report = wsl.why()
    assert [each["nbytes"] for each in entries(report, "guest")] == [used]
    assert [each["nbytes"] for each in entries(report, "process")] == [None]


@pytest.mark.parametrize(
    ("act", "status", "code"),
    [
        ({}, "unsupported", ExitCode.OK),
        ({"said": b'{"vram": 1, "memo'}, "failed", ExitCode.PARTIAL),
        ({"said": encoded(answer())}, "unsupported", ExitCode.OK),
        ({"said": b"", "before": "import signal; signal.pause()"}, "timeout", ExitCode.PARTIAL),
    ],
    ids=["absent", "damaged", "empty", "hanging"],
)
def test_without_windows_the_page_balances_and_says_why(
    wsl: Wsl, hold: Hold, act: dict[str, Any], status: str, code: ExitCode
) -> None:
    process = hold(4 * GIB)
    if act:
        wsl.says(**act)
    report = wsl.why(code=code, deadline_s=4 if status == "timeout" else 60)
    (hidden,) = entries(report, "hidden")
    assert (hidden["hidden_by"], hidden["nbytes"]) == ("windows", page(report)["memory"]["used"])
    (mine,) = entries(report, "process")
    assert (mine["holder"]["pid"], mine["nbytes"], mine["confidence"]) == (process.pid, None, "unknown")
    (probe,) = [each for each in report["probes"] if each["name"] == "windows"]
    assert probe["status"] == status
    (finding,) = [each for each in report["findings"] if each["code"] == "VR603"]
    assert page(report)["windows"]["message"] in finding["cause"]


def test_a_hanging_windows_does_not_hold_up_the_rest(wsl: Wsl) -> None:
    """The answer is there, partial by its exit code, and nothing of the asking is left."""
    wsl.says(b"", before="import signal; signal.pause()")
    done = wsl.vram("why", "--deadline", "4s", code=None)
    assert done.returncode == ExitCode.PARTIAL, done.stderr
    assert "Windows did not answer in time" in done.stdout
    assert "VR405" not in done.stdout
    if (wsl.windows / "asked").exists():  # else it was ended before it could note its pid
        assert not Path(f"/proc/{asked(wsl.windows)['pid']}").exists()


def test_counters_that_say_more_than_the_driver_are_cut_and_told(wsl: Wsl, hold: Hold) -> None:
    hold(GIB)
    wsl.says(speaking("en", guest=9 * GIB, other=2 * GIB))
    report = wsl.why()
    (note,) = page(report)["notes"]
    assert note["code"] == "windows-apart"
    assert "11.0 GiB" in note["text"]
    assert sum(each["claimed"] or each["nbytes"] for each in entries(report, "process")) == 9 * GIB


def test_counters_that_say_less_leave_a_line_that_says_so(wsl: Wsl, hold: Hold) -> None:
    hold(4 * GIB)
    wsl.says(speaking("en", guest=GIB, other=GIB))
    report = wsl.why()
    (rest,) = entries(report, "unattributed")
    assert rest["nbytes"] == page(report)["memory"]["used"] - 2 * GIB
    assert "less than" in page(report)["notes"][0]["text"]
    assert "VR106" in codes(report)


def test_memory_of_the_guest_that_nobody_here_holds(wsl: Wsl) -> None:
    """Another distribution's: told, with the way out that ends everything last, and never taken."""
    wsl.gpu.set(windows_bytes=3 * GIB)
    wsl.says(speaking("en", guest=2 * GIB, other=GIB))
    report = wsl.why()
    (finding,) = [each for each in report["findings"] if each["code"] == "VR604"]
    commands = [(each["command"], each["harm"]) for each in finding["remedies"]]
    assert commands[-1] == ("wsl.exe --shutdown", "affects-others")
    assert "every distribution" in finding["remedies"][-1]["text"]


def test_two_virtual_machines_are_not_told_apart(wsl: Wsl) -> None:
    """Before Windows 11 every virtual machine is called vmmem."""
    wsl.gpu.set(windows_bytes=3 * GIB)
    wsl.says(answer(row(7, GIB), row(8, 2 * GIB), names={7: "vmmem", 8: "vmmem"}))
    report = wsl.why()
    assert entries(report, "guest") == []
    machines = entries(report, "windows")
    assert {each["windows"]["pid"] for each in machines} == {7, 8}
    assert all("one of several" in each["evidence"][-1] for each in machines)


def test_spilled_memory_is_a_warning_only_on_a_full_gpu(wsl: Wsl) -> None:
    wsl.gpu.set(windows_bytes=4 * GIB)
    wsl.says(speaking("en", guest=3 * GIB, other=GIB, spilled=6 * GIB))
    (roomy,) = [each for each in wsl.why()["findings"] if each["code"] == "VR601"]
    assert (roomy["severity"], roomy["nbytes"]) == ("info", 6 * GIB)
    wsl.gpu.set(windows_bytes=23 * GIB)
    wsl.says(speaking("en", guest=22 * GIB, other=GIB, spilled=6 * GIB))
    (full,) = [each for each in wsl.why()["findings"] if each["code"] == "VR601"]
    assert full["severity"] == "warning"
    assert "likely" in full["title"]  # pinned memory is counted there too
    assert "Sysmem Fallback" in full["remedies"][-1]["text"]


def test_names_of_windows_programs_cannot_steer_a_terminal(wsl: Wsl) -> None:
    hostile = "evil\x1b[2J\u202egnp.exe\n\u2028\ud800".encode("utf-8", "surrogatepass").decode(
        "utf-8", "replace"
    )
    wsl.gpu.set(windows_bytes=GIB)
    wsl.says(answer(row(7, GIB), names={7: hostile}))
    for words in (["why"], ["who"], ["check"], ["why", "--json"], ["who", "--json"]):
        shown = wsl.vram(*words, "--deadline", "60s", code=None).stdout
        assert "evil" in shown
        assert all(char.isprintable() or char == "\n" for char in shown), words


def test_what_people_read(wsl: Wsl, hold: Hold) -> None:
    process = hold(GIB)
    wsl.says(speaking("en", guest=2 * GIB, other=GIB))
    (windows,) = [
        each for each in wsl.vram("ps", "--deadline", "60s").stdout.splitlines() if "chrome" in each
    ]
    assert windows.split()[3:] == ["1844", "Windows", "-", "windows", "chrome.exe"]
    shown = wsl.vram("why", "-v", "--deadline", "60s").stdout
    assert "WSL2" in shown.splitlines()[0]
    assert "Windows pid 1844 · chrome.exe" in shown
    assert f"pid {process.pid}" in shown
    assert "sum to the total exactly" in shown
    who = wsl.vram("who", "--deadline", "60s").stdout
    assert "Windows programs" in who
    assert "chrome.exe" in who


def test_who_lists_linux_processes_without_figures(wsl: Wsl, hold: Hold) -> None:
    pids = [hold(GIB).pid, hold(GIB).pid]
    shown = wsl.vram("who", "--deadline", "60s").stdout
    assert all(f"pid {pid}" in shown for pid in pids)
    assert shown.count("GPU 0: unknown size") == 2


def test_a_snapshot_tells_the_same_elsewhere_and_hides_names(wsl: Wsl, hold: Hold, tmp_path: Any) -> None:
    hold(GIB)
    wsl.says(speaking("de", guest=2 * GIB, other=GIB))
    place = str(tmp_path / "shot.json")
    wsl.vram("snapshot", "-o", place, "--redact", "--deadline", "60s")
    text = (tmp_path / "shot.json").read_text()
    assert "Überwachung" not in text
    assert str(wsl.gpu.folder) not in text
    judged = wsl.why("--from", place)
    assert [each["windows"]["name"] for each in entries(judged, "windows")] == ["redacted"]
    assert [each["nbytes"] for each in entries(judged, "windows")] == [GIB]


def test_without_a_wsl_nobody_asks(virtual_gpu: Any, wsl: Wsl) -> None:
    wsl.says(speaking("en"))
    found = Wsl(virtual_gpu, wsl.windows).why()
    assert found["host"]["wsl_facts"] is None
    assert not (wsl.windows / "asked").exists()
    assert [each["name"] for each in found["probes"] if each["name"] == "windows"] == []


def test_twin_cards_are_told_by_their_place(native_libraries: Any, tmp_path: Any) -> None:
    from vram.virtualgpu import VirtualGpu

    luids = (0x1000, 0x2000)
    with VirtualGpu.create(gpus=2, memory_bytes=24 * GIB, wddm=True, name="NVIDIA GeForce RTX 4090") as gpu:
        twins = Wsl(gpu, tmp_path / "windows")
        gpu.set(0, windows_bytes=GIB)
        gpu.set(1, windows_bytes=2 * GIB)
        buses = [int(each["facts"]["bus_id"].split(":")[1], 16) for each in twins.why()["gpus"]]
        rows = (row(7, GIB, luid=luids[0]), row(7, 2 * GIB, luid=luids[1]))
        # Windows lists them the other way round.
        cards = (card(luids[1], bus=buses[1]), card(luids[0], bus=buses[0]))
        twins.says(answer(*rows, names={7: "both.exe"}, cards=cards))
        report = twins.why()
        assert [entries(report, "windows", at)[0]["nbytes"] for at in (0, 1)] == [GIB, 2 * GIB]
        # Without places nobody can tell them apart, and nobody does.
        twins.says(
            answer(*rows, names={7: "both.exe"}, cards=(card(luids[0], bus=None), card(luids[1], bus=None)))
        )
        report = twins.why()
        for at in (0, 1):
            assert entries(report, "windows", at) == []
            (hidden,) = entries(report, "hidden", at)
            assert "does not say which of them is this GPU" in hidden["evidence"][-1]
