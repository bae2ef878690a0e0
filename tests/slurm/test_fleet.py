"""`vram fleet --srun` inside a real allocation: one step a node, beside what the job runs."""

from __future__ import annotations

import json

from tests.slurm.conftest import Site


def fleet(site: Site, vram: str) -> dict[str, dict[str, object]]:
    """What a job of one node says of its fleet."""
    script = f"#!/bin/sh\nexec {site.python} -m vram fleet --srun --vram '{vram}' --json\n"
    job = site.sbatch(script, "--nodes=1", user=0)
    site.wait(job)
    printed = site.output(job)
    try:
        return {node["name"]: node for node in json.loads(printed)["nodes"]}
    except ValueError:
        raise AssertionError(printed) from None


def test_every_node_of_the_allocation_is_read(site: Site) -> None:
    nodes = fleet(site, f"{site.python} -m vram")
    assert set(nodes) == {site.node}
    node = nodes[site.node]
    assert (node["state"], node["code"]) == ("ok", None), node
    assert len(node["gpus"]) == 2  # type: ignore[arg-type]


def test_a_node_without_vram_is_a_line(site: Site) -> None:
    node = fleet(site, "/nowhere/vram")[site.node]
    assert (node["state"], node["code"]) == ("unread", "no-vram"), node
