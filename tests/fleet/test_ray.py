"""`vram fleet --ray`: one task a node, in a real Ray cluster of virtual nodes."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from tests.fleet.conftest import ROOT, RayFleet, in_time, vram_fleet
from tests.fleet.snapshots import haunted, write
from tests.needs import require
from tests.patience import PATIENCE_S
from vram.units import GIB

GUIDE = ROOT / "docs" / "guides" / "fleet.md"


def test_every_node_is_asked_and_what_is_wrong_with_one_is_a_line(ray_fleet: RayFleet) -> None:
    run = in_time("--ray", ray_fleet.address, of=["healthy", "ghostly", "newer"])
    assert run.status == 3, run.errors
    assert run.errors == ""
    states = {name: (node["state"], node["code"]) for name, node in run.nodes.items()}
    assert states == {
        "healthy": ("ok", None),
        "ghostly": ("leftovers", None),
        "newer": ("rejected", "other-version"),
        "stuck": ("unread", "no-answer"),
    }
    ghost = run.nodes["ghostly"]["ghosts"][0]
    assert ghost["pid"] == ray_fleet.ghost.pids["child"]
    assert ghost["nbytes"] > 4 * GIB
    assert next(iter(run.nodes)) == "ghostly", "trouble comes first"

    # The same cluster, a moment later: what is slow to start is started once.
    ray_fleet.cluster.remove_node(ray_fleet.nodes.pop("stuck"), allow_graceful=False)
    again = vram_fleet("--ray", ray_fleet.address, "--json", "--node", "stuck", "--deadline", "5s")
    assert again.status == 3, again.errors
    assert again.nodes["stuck"]["state"] == "unread"


def test_another_version_of_ray_is_a_sentence(ray_fleet: RayFleet, tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(
        "import sys\n"
        "if 'ray_driver' in ' '.join(sys.orig_argv):\n"
        "    import ray\n"
        "    ray.__version__ = '1.2.3'\n"
    )
    path = f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}"
    run = vram_fleet("--ray", ray_fleet.address, PYTHONPATH=path)
    assert run.status == 3
    assert run.errors.startswith(f"vram: Ray here and Ray at {ray_fleet.address} differ:"), run.errors
    assert "1.2.3" in run.errors


def test_a_cluster_that_is_not_there_is_a_sentence() -> None:
    require("ray")
    run = vram_fleet("--ray", "127.0.0.1:1", "--json", "--all-within", "8s")
    assert run.status == 3
    assert "no Ray cluster answers at 127.0.0.1:1" in run.errors
    assert "Traceback" not in run.errors


def test_the_history_is_read_with_ray_data_as_the_guide_says(ray_fleet: RayFleet, tmp_path: Path) -> None:
    require("pyarrow", "pandas", detail="Ray Data needs it: pip install 'ray[data]'")
    write(tmp_path, haunted("gpu-2"))
    assert vram_fleet("--snapshots", tmp_path, "--parquet", tmp_path / "history").status == 0
    (program,) = re.findall(r"```python\n(.*?)```", GUIDE.read_text(), re.DOTALL)
    environment = {**os.environ, "RAY_ADDRESS": ray_fleet.address, "RAY_DATA_DISABLE_PROGRESS_BARS": "1"}
    done = subprocess.run(
        [sys.executable, "-c", program.replace("history/", f"{tmp_path}/history/")],
        env=environment,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )
    assert "'node': 'gpu-2'" in done.stdout, done.stderr[-2000:]
