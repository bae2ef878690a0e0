"""`make fleet-demo`: five virtual nodes, one with a ghost; the table, and `vram fleet free`.

Where Ray is installed they are a Ray cluster. Elsewhere each node is a folder of a virtual GPU on this
machine, and a small program stands for ssh: it runs the command in the node's environment.

    python tools/fleet_demo.py [--without-ray]
"""

from __future__ import annotations

import argparse
import os
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from vram.virtualgpu import VirtualGpu
from vram.virtualgpu.demos import FORK, DemoProgram

NODES = ("node-a", "node-b", "newer", "hangs", "dead")
GHOST = "node-b"
SOURCES = Path(__file__).resolve().parents[1] / "src"
PYTHON = f"{shlex.quote(sys.executable)} -m vram"
# A vram of another version, and one that never answers.
OTHERS = {
    "newer": 'print(\'{"schema": 99, "program": "vram 9.9.0"}\')',
    "hangs": "import signal; signal.pause()",
}
# What stands for ssh: the last words are the node and the command.
SSH = """#!/bin/sh
case "$*" in *"-G -- "*) echo "hostname 127.0.0.1"; exit 0;; esac
while [ "$1" != -- ]; do shift; done
[ "$2" != dead ] || { echo "ssh: connect to host dead port 22: No route to host" >&2; exit 255; }
. "FOLDER/$2.env"
exec sh -c "$3"
"""


def main() -> int:
    parser = argparse.ArgumentParser(description="A fleet of virtual nodes.")
    parser.add_argument("--without-ray", action="store_true", help="local processes, also where Ray is")
    by_ray = find_spec("ray") is not None and not parser.parse_args().without_ray
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="vram-fleet-")))
        gpus = {name: stack.enter_context(VirtualGpu.create(gpus=2)) for name in NODES}
        program = stack.enter_context(DemoProgram(gpus[GHOST], FORK.program, FORK.size))
        stack.enter_context(DemoProgram(gpus["node-a"], "contexts.small", "2MiB"))
        FORK.prepare(program)
        environments = {name: environment(gpus[name], folder, name) for name in NODES}
        stack.enter_context(service(environments[GHOST], folder))
        start = ray_cluster if by_ray else local_nodes
        words, ours = stack.enter_context(start(environments, folder))
        show(["fleet", *words, "--deadline", "10s"], ours)
        show(["fleet", *words, "--node", GHOST, "--deadline", "20s"], ours)
        return show(["fleet", "free", *words, "--node", GHOST, "--yes", "--deadline", "20s"], ours)


def show(words: list[str], environment: dict[str, str]) -> int:
    print(f"\n$ vram {shlex.join(words)}", flush=True)
    return subprocess.run([sys.executable, "-m", "vram", *words], env=environment, check=False).returncode


def environment(gpu: VirtualGpu, folder: Path, name: str) -> dict[str, str]:
    """What a program on this node finds: its GPU, its service's socket, its version of vram."""
    path = [str(SOURCES)]
    if name in OTHERS:
        package = folder / "others" / name / "vram"
        package.mkdir(parents=True)
        (package / "__init__.py").touch()
        (package / "__main__.py").write_text(OTHERS[name])
        path.insert(0, str(package.parent))
    runtime = folder / "run" / name
    runtime.mkdir(parents=True, mode=0o700)
    return gpu.environment({"PYTHONPATH": ":".join(path), "RUNTIME_DIRECTORY": str(runtime)})


@contextmanager
def service(there: dict[str, str], folder: Path) -> Iterator[None]:
    """`vram serve` on the node with the ghost; without prometheus-client there is none."""
    if find_spec("prometheus_client") is None:
        print("prometheus-client is not installed: the node has no service, and frees nothing")
        yield
        return
    argv = [sys.executable, "-m", "vram", "serve", "--listen", "", "--state", str(folder / "state")]
    process = subprocess.Popen(
        argv, env={**os.environ, **there}, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        socket = Path(there["RUNTIME_DIRECTORY"]) / "vram.sock"
        while not socket.exists() and process.poll() is None:
            time.sleep(0.05)
        yield
    finally:
        process.terminate()
        process.wait()


@contextmanager
def local_nodes(
    environments: dict[str, dict[str, str]], folder: Path
) -> Iterator[tuple[list[str], dict[str, str]]]:
    programs = folder / "bin"
    programs.mkdir()
    (programs / "ssh").write_text(SSH.replace("FOLDER", str(folder)))
    (programs / "ssh").chmod(0o700)
    for name, variables in environments.items():
        lines = (f"export {key}={shlex.quote(value)}\n" for key, value in variables.items())
        (folder / f"{name}.env").write_text("".join(lines))
    ours = {**os.environ, "PATH": f"{programs}:{os.environ.get('PATH', os.defpath)}"}
    yield ["--hosts", ",".join(environments), "--vram", PYTHON], ours


@contextmanager
def ray_cluster(
    environments: dict[str, dict[str, str]], folder: Path
) -> Iterator[tuple[list[str], dict[str, str]]]:
    print("starting a Ray cluster of five virtual nodes ...", flush=True)
    cluster: Any = import_module("ray.cluster_utils").Cluster(initialize_head=False)
    try:
        nodes = {
            name: cluster.add_node(
                num_cpus=1,
                num_gpus=0,
                node_name=name,
                env_vars=variables,
                include_dashboard=False,
                object_store_memory=80 << 20,
            )
            for name, variables in environments.items()
        }
        cluster.remove_node(nodes["dead"], allow_graceful=False)
        yield ["--ray", cluster.address], dict(os.environ)
    finally:
        cluster.shutdown()


if __name__ == "__main__":
    sys.exit(main())
