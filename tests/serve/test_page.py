"""What the service answers at / and /page/: files with their types, and a reading that a page can show."""

from __future__ import annotations

import re

import pytest

from tests.browser.large_service import large_ledger
from tests.serve.conftest import StartDemo, StartService
from tests.serve.running import RunningService
from vram.diagnosis.engine import diagnose
from vram.model.hold import STATES
from vram.model.ledger import KINDS
from vram.report.process_rows import rows
from vram.serve.page.answers import FOLDER, KIT, MAX_FINDINGS, TYPES, page_reading, without_times, words
from vram.units import GIB

FILES = [*FOLDER.iterdir(), *KIT.iterdir()]


def test_every_file_of_the_page_is_answered_with_its_type(service: RunningService) -> None:
    status, body, headers = service.request("/")
    assert status == 200
    assert headers["Content-Type"] == "text/html; charset=utf-8"
    assert headers["Content-Security-Policy"].startswith("default-src 'self';")
    assert "unsafe" not in headers["Content-Security-Policy"]
    needed = set(re.findall(r'(?:src|href)="(/page/[^"]+)"', body.decode()))
    modules = [path for path in FILES if path.suffix == ".js"]
    for module in modules:
        needed |= {f"/page/{name}" for name in re.findall(r'from "\./([^"]+)"', module.read_text())}
    assert {f"/page/{module.name}" for module in modules} <= needed, "a module that nobody imports"
    for path in needed:
        status, body, headers = service.request(path)
        assert status == 200, path
        assert headers["Content-Type"] == TYPES["." + path.rpartition(".")[2]]
        assert headers["X-Content-Type-Options"] == "nosniff"


def test_a_file_that_the_browser_has_is_not_sent_again(service: RunningService) -> None:
    _, body, headers = service.request("/page/page.css")
    status, again, _ = service.request("/page/page.css", headers={"If-None-Match": headers["ETag"]})
    assert (status, again) == (304, b"")
    assert body


def test_nothing_else_is_answered(service: RunningService) -> None:
    below = ("", "index.html", "answers.py", "../routes.py", "%2e%2e/routes.py", "..%2froutes.py", "x/y")
    for name in below:
        assert "error" in service.get(f"/page/{name}", 404), name


def test_the_page_names_nothing_outside_itself() -> None:
    """No other host, no inline script or style, no way from text to HTML."""
    for path in FILES:
        if path.suffix in TYPES:
            source = path.read_text()
            hosts = set(re.findall(r"https?://[^\s\"'`)]+", source)) - {"http://www.w3.org/2000/svg"}
            assert not hosts, path
            made = re.findall(
                r"innerHTML|outerHTML|insertAdjacent|document\.write|eval\(|new Function", source
            )
            assert not made, path
    page = (FOLDER / "index.html").read_text()
    assert not re.search(r"<style|<script(?![^>]* src=)|\son\w+=|style=", page)


def test_a_reading_has_the_rows_of_vram_ps_and_keeps_its_name(
    service: RunningService, demo: StartDemo
) -> None:
    program = demo("contexts.reset", 1 * GIB)
    service.until(lambda: program.pids["self"] in _pids(service))
    now = service.get("/page/now.json")
    _, _, headers = service.request("/page/reading.json")
    assert headers["Vram-Reading"] == now["reading"]
    assert _ageless(service, "/page/reading.json") == _ageless(service, "/api/v1/ps")
    service.readings(3)
    assert service.get("/page/now.json")["reading"] == now["reading"]
    assert service.get("/page/now.json")["ages_behind_s"] > now["ages_behind_s"]
    program.close()
    service.until(lambda: service.get("/page/now.json")["reading"] != now["reading"])


def test_a_page_shows_no_command_where_the_configuration_says_never(
    start_service: StartService, demo: StartDemo, tmp_path_factory: pytest.TempPathFactory
) -> None:
    config = tmp_path_factory.mktemp("config") / "serve.toml"
    config.write_text('[show]\ncommands = "never"\n')
    program = demo("forks.orphan", 1 * GIB)
    program.kill("parent")
    service = start_service("--config", str(config))
    service.until(lambda: program.pids["child"] in _pids(service))
    _, body, _ = service.request("/page/reading.json")
    assert b"forks.py" not in body
    assert b"VR101" in body


def _ageless(service: RunningService, path: str) -> list[dict[str, object]]:
    return [{**row, "age_s": None} for row in service.get(path)["processes"]]


def _pids(service: RunningService) -> set[int]:
    return {row["pid"] for row in service.get("/page/reading.json")["processes"]}


# ---- pure ----


def test_words_name_every_kind_and_state() -> None:
    said = words("1.0")
    assert {each["kind"] for each in said.kinds} == set(KINDS)
    assert {each["state"] for each in said.states} == set(STATES)
    assert all(each["meaning"] for each in (*said.kinds, *said.states))


def test_bars_sum_to_the_whole_gpu() -> None:
    ledger = large_ledger(1)
    reading = page_reading(ledger, diagnose(ledger))
    for bar, gpu in zip(reading.gpus, ledger.gpus, strict=True):
        assert sum(bar.kinds.values()) == bar.total_bytes == gpu.total_bytes
    assert reading.processes == rows(ledger)


def test_ghosts_come_first_and_findings_are_limited() -> None:
    ledger = large_ledger(1)
    findings = diagnose(ledger) * 10
    reading = page_reading(ledger, findings)
    ghosts = [each.ghost for each in reading.findings]
    assert ghosts == sorted(ghosts, reverse=True)
    assert len(reading.findings) == MAX_FINDINGS
    assert reading.left_out == sum(each.severity != "info" for each in findings) - MAX_FINDINGS


def test_readings_that_differ_in_ages_alone_are_the_same_without_times() -> None:
    from msgspec.structs import replace

    reading = page_reading(large_ledger(1), ())
    older = replace(
        reading,
        taken_at="2026-01-02T12:00:00Z",
        processes=tuple(replace(row, age_s=(row.age_s or 0.0) + 9.0) for row in reading.processes),
    )
    assert older != reading
    assert without_times(older) == without_times(reading)
    assert without_times(page_reading(large_ledger(2), ())) != without_times(reading)
