"""Alert rules, recording rules and the dashboard, on a real Prometheus that scrapes sixteen services."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.deploy.running_prometheus import Prometheus, node_exporter
from tests.deploy.tools import DEPLOY, ROOT
from tests.needs import find_program, needs
from tests.serve.running import RunningService
from vram.units import GIB
from vram.virtualgpu import VirtualGpu
from vram.virtualgpu.demos import DemoProgram

RULES = DEPLOY / "prometheus"
ALERTS, RECORDS, CASES = (RULES / f"vram-{name}.yaml" for name in ("alerts", "records", "alerts.test"))
NODES = 16
GHOST, PLAIN = 3, 7
"""The nodes on which something happens."""
DRY_RUN = '[[policy]]\nname = "ends"\ndo = "end-leftovers"\nmode = "dry-run"\nafter = "1s"\nreadings = 2\n'

needs_yaml = needs("yaml")


def promtool(*words: str | Path) -> subprocess.CompletedProcess[str]:
    program = find_program("promtool")
    assert program is not None
    return subprocess.run([program, *words], capture_output=True, text=True, check=False)


def rules(path: Path) -> dict[str, dict[str, Any]]:
    import yaml

    groups = yaml.safe_load(path.read_text())["groups"]
    return {rule.get("alert") or rule["record"]: rule for group in groups for rule in group["rules"]}


# ---- the rules by themselves ----


@needs("promtool")
def test_the_rules_are_right() -> None:
    answer = promtool("check", "rules", ALERTS, RECORDS)
    assert answer.returncode == 0, answer.stderr
    assert answer.stdout.count("SUCCESS") == 2


@needs("promtool")
@needs_yaml
def test_every_alert_fires_when_it_should_and_not_before() -> None:
    answer = promtool("test", "rules", CASES)
    assert answer.returncode == 0, answer.stdout + answer.stderr
    cases = CASES.read_text()
    for name in rules(ALERTS):
        tried = re.findall(rf"alertname: {name}\b.*\n.*eval_time.*\n(\s+exp_alerts)?", cases)
        assert {bool(each) for each in tried} == {True, False}, (
            f"{name}: a case that fires, and one that does not"
        )


@needs("promtool")
@needs_yaml
@pytest.mark.parametrize("change", [("> 3600", "> 36000"), ("== 0", "== 1"), ("for: 2m", "for: 1h")])
def test_the_cases_notice_a_change(tmp_path: Path, change: tuple[str, str]) -> None:
    for path in (ALERTS, RECORDS, CASES):
        (tmp_path / path.name).write_text(path.read_text())
    (tmp_path / ALERTS.name).write_text(ALERTS.read_text().replace(*change))
    assert promtool("test", "rules", tmp_path / CASES.name).returncode != 0


@needs_yaml
def test_the_guide_has_every_alert() -> None:
    guide = (ROOT / "docs" / "guides" / "prometheus.md").read_text()
    for name in rules(ALERTS):
        assert f"`{name}`" in guide


# ---- sixteen services ----


class Node(NamedTuple):
    gpu: VirtualGpu
    service: RunningService

    @property
    def instance(self) -> str:
        return f"127.0.0.1:{self.service.port}"

    def by_kind(self) -> dict[str, int]:
        """What `vram why --json` says, by GPU and kind."""
        answer = self.gpu.run(
            [sys.executable, "-m", "vram", "why", "--json"], check=True, capture_output=True, text=True
        )
        sums: Counter[str] = Counter()
        for gpu in json.loads(answer.stdout)["gpus"]:
            for entry in gpu["entries"]:
                sums[entry["kind"]] += entry["nbytes"] or 0
        return {kind: nbytes for kind, nbytes in sums.items() if nbytes}


@contextmanager
def fleet(folder: Path) -> Iterator[list[Node]]:
    """Sixteen services, each a process of its own on a virtual GPU of its own."""
    with ExitStack() as stack:
        gpus = [stack.enter_context(VirtualGpu.create()) for _ in range(NODES)]

        def start(number: int) -> Node:
            mine = folder / f"node{number}"
            mine.mkdir()
            (mine / "serve.toml").write_text(DRY_RUN if number == GHOST else "")
            config = ("--config", str(mine / "serve.toml"))
            service = RunningService(mine, gpus[number], *config, interval="2s")
            stack.enter_context(service)
            return Node(gpus[number], service)

        with ThreadPoolExecutor(4) as starters:
            yield list(starters.map(start, range(NODES)))


def shortened(folder: Path) -> list[Path]:
    """The rules as they are, but for how long something must last: an hour is a second here."""
    changed = {
        ALERTS: re.sub(r"\bfor: \w+", "for: 1s", ALERTS.read_text()).replace("> 3600)", "> 1)"),
        RECORDS: RECORDS.read_text().replace("interval: 30s", "interval: 1s"),
    }
    for path, text in changed.items():
        assert text != path.read_text()
        (folder / path.name).write_text(text)
    return [folder / path.name for path in changed]


@needs("prometheus")
@needs_yaml
def test_sixteen_services_are_scraped_agree_with_vram_why_and_a_ghost_becomes_an_alert(
    native_libraries: Path, tmp_path: Path
) -> None:
    with fleet(tmp_path) as nodes, ExitStack() as stack:
        targets = [node.instance for node in nodes]
        prometheus = stack.enter_context(Prometheus(tmp_path, targets, shortened(tmp_path)))

        prometheus.until(lambda: prometheus.query('count(up{job="vram"} == 1)') == [({}, NODES)])
        assert not [rule for rule in prometheus.query("ALERTS") if rule[0]["alertname"] != "VramDown"]

        ghost, plain = nodes[GHOST], nodes[PLAIN]
        stack.enter_context(DemoProgram(plain.gpu, "memory.plain", 3 * GIB))
        family = stack.enter_context(DemoProgram(ghost.gpu, "forks.orphan", 2 * GIB))
        family.kill("parent")
        agrees_with_why(prometheus, (ghost, plain, nodes[0]))
        goes_from_pending_to_firing(prometheus, ghost)
        sums_are_those_of_the_nodes(prometheus, nodes)
        every_rule_was_evaluated(prometheus)
        no_panel_is_dead(prometheus)


def agrees_with_why(prometheus: Prometheus, nodes: tuple[Node, ...]) -> None:
    for node in nodes:
        series = f'vram_gpu_memory_bytes{{instance="{node.instance}"}} > 0'
        wanted = node.by_kind()
        prometheus.until(
            lambda series=series, wanted=wanted: (
                {labels["kind"]: int(value) for labels, value in prometheus.query(series)} == wanted
            )
        )


def goes_from_pending_to_firing(prometheus: Prometheus, node: Node) -> None:
    firing = 'ALERTS{alertname="VramLeftoverOld", alertstate="firing"}'
    (((labels, _),)) = prometheus.until(lambda: prometheus.query(firing))
    assert (labels["instance"], labels["gpu"], labels["severity"]) == (node.instance, "0", "warning")
    # Prometheus remembers that it waited first.
    pending = prometheus.query('ALERTS{alertname="VramLeftoverOld", alertstate="pending"}[10m]')
    assert [labels["instance"] for labels, _ in pending] == [node.instance]
    (alert,) = (
        each
        for each in prometheus.api("alerts")["alerts"]
        if each["labels"]["alertname"] == "VramLeftoverOld"
    )
    assert alert["annotations"]["summary"].startswith(
        f"GPU 0 of {node.instance} has memory of a dead process"
    )


def sums_are_those_of_the_nodes(prometheus: Prometheus, nodes: list[Node]) -> None:
    total = sum(gpu["total_bytes"] for node in nodes for gpu in node.service.get("/api/v1/why")["gpus"])
    left = sum(each["nbytes"] for node in nodes for each in node.service.get("/api/v1/ghosts")["ghosts"])
    assert left > 2 * GIB
    for record, value in (
        ("job:vram_gpu_memory_total_bytes:sum", total),
        ("job:vram_gpu_leftover_bytes:sum", left),
        ("job:vram_gpu_up:count", NODES),
    ):
        prometheus.until(
            lambda record=record, value=value: (
                prometheus.query(record) == [({"__name__": record, "job": "vram"}, value)]
            )
        )


def every_rule_was_evaluated(prometheus: Prometheus) -> None:
    def states() -> dict[str, str]:
        groups = prometheus.api("rules")["groups"]
        return {rule["name"]: rule["health"] for group in groups for rule in group["rules"]}

    prometheus.until(lambda: "unknown" not in states().values())
    assert set(states().values()) == {"ok"}
    assert len(states()) == len(rules(ALERTS)) + len(rules(RECORDS))


def no_panel_is_dead(prometheus: Prometheus) -> None:
    """Every query of the dashboard finds series, once the filters for what is wrong are left out."""
    dashboard = json.loads((DEPLOY / "grafana" / "vram.json").read_text())
    queries = [target["expr"] for panel in dashboard["panels"] for target in panel.get("targets", ())]
    assert len(queries) > 15
    for query in queries:
        # The variables when "All" is chosen.
        expression = re.sub(r"\$(job|instance|gpu)\b", ".*", query)
        assert "$" not in expression
        prometheus.query(expression)
        if "vram_gpu_full_" in expression:
            continue  # a forecast needs a leak, and minutes: tests/serve/test_forecasts.py has both
        unfiltered = re.sub(r" (>|==) 0\b| or vector\(0\)", "", expression)
        prometheus.until(lambda unfiltered=unfiltered: prometheus.query(unfiltered))
    for variable in dashboard["templating"]["list"]:
        if variable["type"] == "query":
            query = re.sub(r"\$(job|instance|gpu)\b", ".*", variable["query"]["query"])
            selector, label = re.fullmatch(r"label_values\((.*), (\w+)\)", query).groups()  # type: ignore[union-attr]
            values = prometheus.api(f"label/{label}/values", **{"match[]": selector})
            assert len(values) == (NODES if variable["name"] == "instance" else 1)


def test_panels_of_the_dashboard_are_told_apart() -> None:
    dashboard = json.loads((DEPLOY / "grafana" / "vram.json").read_text())
    panels = dashboard["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    assert len({panel["title"] for panel in panels}) == len(panels)
    taken = set()
    for panel in panels:
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not taken & cells, panel["title"]
        assert max(x for x, _ in cells) < 24
        taken |= cells
        if panel["type"] != "row":
            assert panel["description"]
            assert panel["datasource"]["uid"] == "${datasource}"


# ---- node_exporter ----


@needs(
    "prometheus",
    there=bool(find_program("prometheus-node-exporter") or find_program("node_exporter")),
    detail="node_exporter is not installed",
)
def test_node_exporter_takes_the_textfile(virtual_gpu: VirtualGpu, tmp_path: Path) -> None:
    """Every sample of the file, with its value, and without an error."""
    folder = tmp_path / "textfile"
    folder.mkdir()
    config = tmp_path / "serve.toml"
    config.write_text(f'[textfile]\npath = "{folder}/vram.prom"\n')
    # Read once and ended: the file stays as it is.
    with RunningService(tmp_path, virtual_gpu, "--config", str(config)) as service:
        service.until((folder / "vram.prom").exists)
        service.stop()
    samples = [line for line in (folder / "vram.prom").read_text().splitlines() if not line.startswith("#")]
    with node_exporter(folder) as exporter:
        answer = exporter.get("/metrics").splitlines()
    assert "node_textfile_scrape_error 0" in answer
    assert [each for each in answer if each.startswith('node_textfile_mtime_seconds{file="')]
    given = dict(line.rsplit(" ", 1) for line in answer if line.startswith("vram_"))
    wanted = dict(line.rsplit(" ", 1) for line in samples)
    assert len(wanted) > 20
    assert {name: float(value) for name, value in given.items()} == {
        name: float(value) for name, value in wanted.items()
    }
