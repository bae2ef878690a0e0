"""The ways in which programs are launched on GPUs: who is killed, and who is an orphan then.

Words of a command: $python; $here, the folder of launchers/; $worker, a program there that holds memory and
reports under the name that follows; $socket, where it reports; $tini and $container, before a command that
runs below such a process or in such a place. "~" stands for a space inside a word.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.needs import is_installed, needs

PYTHON_WITH_TORCH = os.environ.get("VRAM_PYTHON_WITH_TORCH") or sys.executable
HAS_TORCH = "VRAM_PYTHON_WITH_TORCH" in os.environ or is_installed("torch")
HAS_ACCELERATE = any(Path(PYTHON_WITH_TORCH).parents[1].glob("lib/*/site-packages/accelerate"))


class Style(NamedTuple):
    """How a command is launched, and what is expected once those of ``killed`` are dead.

    ``orphans`` are all of one job; ``healthy`` hold memory and are none; ``gone`` end by themselves;
    ``others`` hold nothing. In ``killed``, "parent of NAME" is one that does not report, and "parents of
    NAME" are that one and its parent, at once. ``leaves``: what was started ends by itself, and its children
    are adopted.
    """

    name: str
    command: str
    killed: tuple[str, ...] = ()
    orphans: tuple[str, ...] = ()
    healthy: tuple[str, ...] = ()
    stopped: tuple[str, ...] = ()
    gone: tuple[str, ...] = ()
    others: tuple[str, ...] = ("head",)
    leaves: bool = False
    marks: tuple[pytest.MarkDecorator, ...] = ()

    @property
    def names(self) -> set[str]:
        """All that report."""
        return {*self.orphans, *self.healthy, *self.stopped, *self.gone, *self.others}


AGENT = "$python $here/torch_agent.py $socket 2"
RANKS = f"{AGENT} $worker rank{{RANK}}"
DEEPSPEED = "$python $here/deepspeed_launch.py $socket 2 $worker rank{RANK}"
OPEN_MPI = "$python $here/mpi_launch.py openmpi $socket 2 $worker rank{OMPI_COMM_WORLD_RANK}"
HYDRA = "$python $here/mpi_launch.py hydra $socket 2 $worker rank{PMI_RANK}"
TORCHRUN = f"{PYTHON_WITH_TORCH} -m torch.distributed.run --nproc-per-node 2"
IN_A_SHELL = 'sh -c "$@"~&~cat sh'
BOTH = ("rank0", "rank1")
WORKERS = ("worker0", "worker1")
KERNEL = (needs("jupyter_client"), needs("ipykernel"))
EDITOR = "$python $here/editor.py"
DEBUGPY = (needs("debugpy"),)

LAUNCHED = (
    # ---- torchrun and accelerate: a session for each rank, environment and "python -u" ----
    Style("torchrun", RANKS, healthy=BOTH),
    Style("torchrun, agent killed", RANKS, killed=("head",), orphans=BOTH),
    Style("torchrun, a rank killed", RANKS, killed=("rank1",), healthy=("rank0",), others=("head", "rank1")),
    Style(
        "torchrun, agent and a rank killed",
        RANKS,
        killed=("rank0", "head"),
        orphans=("rank1",),
        others=("head", "rank0"),
    ),
    Style("torchrun below a subreaper, agent killed", f"$tini {RANKS}", killed=("head",), orphans=BOTH),
    Style(
        "the real torchrun, agent killed",
        f"{TORCHRUN} $worker rank{{RANK}}",
        killed=("parent of rank0",),
        orphans=BOTH,
        others=(),
        marks=(needs("torch", there=HAS_TORCH),),
    ),
    Style(
        "the real accelerate, agent killed",
        f"{PYTHON_WITH_TORCH} -m accelerate.commands.launch --multi_gpu --num_processes 2 --num_machines 1 "
        "--mixed_precision no --dynamo_backend no $worker rank{RANK}",
        killed=("parent of rank0",),
        orphans=BOTH,
        others=(),
        marks=(
            needs("torch", there=HAS_TORCH),
            needs("torch", there=HAS_ACCELERATE, detail="accelerate is not installed"),
        ),
    ),
    # ---- DeepSpeed: "python -u" and --local_rank; no session ----
    Style("deepspeed", DEEPSPEED, healthy=BOTH),
    Style("deepspeed, launch program killed", DEEPSPEED, killed=("head",), orphans=BOTH),
    Style(
        "deepspeed, runner killed: the launch program lives",
        DEEPSPEED.replace("launch.py", "launch.py --runner"),
        killed=("runner",),
        healthy=BOTH,
        others=("head", "runner"),
    ),
    # ---- mpirun: a process group or a session for each rank ----
    Style("Open MPI", OPEN_MPI, healthy=BOTH),
    Style("Open MPI, mpirun killed", OPEN_MPI, killed=("head",), orphans=BOTH),
    Style("Hydra", HYDRA, healthy=BOTH),
    Style("Hydra, proxy killed", HYDRA, killed=("head",), orphans=BOTH),
    Style(
        "the real mpirun, killed",
        "orterun --allow-run-as-root --oversubscribe -n 2 $python $worker rank{OMPI_COMM_WORLD_RANK}",
        killed=("parent of rank0",),
        orphans=BOTH,
        others=(),
        marks=(needs("orterun"),),
    ),
    # ---- multiprocessing ----
    Style("spawn", "$python $here/pool.py spawn $socket", healthy=WORKERS),
    Style("spawn, program killed", "$python $here/pool.py spawn $socket", killed=("head",), orphans=WORKERS),
    Style(
        "spawn, a worker killed",
        "$python $here/pool.py spawn $socket",
        killed=("worker1",),
        healthy=("worker0",),
        others=("head", "worker1"),
    ),
    Style("forkserver", "$python $here/pool.py forkserver $socket", healthy=WORKERS),
    Style(
        "forkserver, program killed",
        "$python $here/pool.py forkserver $socket",
        killed=("head",),
        orphans=WORKERS,
    ),
    Style(
        "forkserver, server killed: the program lives",
        "$python $here/pool.py forkserver $socket",
        killed=("parent of worker0",),
        healthy=WORKERS,
    ),
    Style("fork, program killed", "$python $here/pool.py fork $socket", killed=("head",), healthy=WORKERS),
    # ---- servers, by the titles of their workers ----
    Style("vLLM", "$python $here/server.py vllm fork $socket", healthy=WORKERS, others=("head", "engine")),
    *(
        Style(
            f"vLLM by {way}, front end killed",
            f"$python $here/server.py vllm {way} $socket",
            killed=("head",),
            orphans=WORKERS,
            others=("head", "engine"),
        )
        for way in ("fork", "spawn")
    ),
    Style(
        "vLLM, engine core killed: the front end lives",
        "$python $here/server.py vllm fork $socket",
        killed=("engine",),
        orphans=WORKERS,
        others=("head", "engine"),
    ),
    Style(
        "vLLM in one process, front end killed",
        "$python $here/server.py vllm-one fork $socket",
        killed=("head",),
        orphans=("engine",),
    ),
    Style("SGLang, front end killed", "$python $here/server.py sglang spawn $socket", ("head",), WORKERS),
    Style("Ray", "$python $here/server.py ray exec $socket", healthy=("worker0",)),
    Style("Ray, raylet killed", "$python $here/server.py ray exec $socket", ("head",), ("worker0",)),
    Style(
        "Ray, a worker killed whose own fork lives: the raylet lives",
        "$python $here/server.py ray fork $socket",
        killed=("worker0",),
        healthy=("fork",),
        others=("head", "worker0"),
    ),
    # ---- notebooks: a kernel that can ends itself within a second or two (ipykernel/parentpoller.py) ----
    Style(
        "Jupyter, server killed",
        "$python $here/notebook_server.py $socket",
        killed=("head",),
        orphans=("busy",),
        gone=("free",),
        marks=KERNEL,
    ),
    # ---- debugpy: the folder of its own program, its adapter's secret, and a process group ----
    Style("debugpy", f"{EDITOR} --stand-in $socket $worker it", healthy=("it",)),
    Style("debugpy, killed", f"{EDITOR} --stand-in $socket $worker it", killed=("head",), orphans=("it",)),
    Style("the real debugpy", f"{EDITOR} $socket $worker it", healthy=("it",), marks=DEBUGPY),
    Style(
        "the real debugpy, its adapter killed",
        f"{EDITOR} $socket $worker it",
        killed=("parent of parent of it",),
        gone=("it",),
        marks=DEBUGPY,
    ),
    Style(
        "the real debugpy, adapter and launcher killed",
        f"{EDITOR} $socket $worker it",
        killed=("parents of it",),
        orphans=("it",),
        marks=DEBUGPY,
    ),
)

DETACHED = (
    Style(
        "nohup",
        'sh -c nohup~"$@"~>/dev/null~2>&1~& sh $python $worker it',
        healthy=("it",),
        others=(),
        leaves=True,
    ),
    *(
        Style(
            f"nohup of a program that waits for a debugger, by {how}",
            f'sh -c nohup~"$@"~>/dev/null~2>&1~& sh $python {command} $worker it',
            healthy=("it",),
            others=(),
            leaves=True,
        )
        for how, command in {
            "debugpy's folder": "$here/debugpy --listen 127.0.0.1:0",
            "a connection without its secret": "$here/debugpy --connect 127.0.0.1:9",
        }.items()
    ),
    Style(
        "nohup of a program that waits for a debugger, by the real debugpy",
        'sh -c nohup~"$@"~>/dev/null~2>&1~& sh $python -m debugpy --listen 127.0.0.1:0 $worker it',
        healthy=("it",),
        others=(),
        leaves=True,
        marks=DEBUGPY,
    ),
    Style("setsid", "setsid -f $python $worker it", healthy=("it",), others=(), leaves=True),
    Style("disown", 'bash -c "$@"~&~disown bash $python $worker it', healthy=("it",), others=(), leaves=True),
    Style("in the background", 'sh -c "$@"~& sh $python $worker it', healthy=("it",), others=(), leaves=True),
    *(
        Style(title, f"$python $here/daemon.py {kind} $socket it", healthy=("it",), others=(), leaves=True)
        for title, kind in {
            "a terminal was closed": "terminal",
            "a daemon by its own two forks": "itself",
            "a service": "service",
        }.items()
    ),
    Style(
        "tmux",
        "$python $here/daemon.py multiplexer $socket it",
        healthy=("it",),
        others=("multiplexer",),
        leaves=True,
    ),
)

ENVIRONMENT = "env RANK=0 LOCAL_RANK=0 WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=29500"
CONTAINED = (
    Style("a container's first process", "$container $python $worker it", healthy=("it",), others=()),
    Style(
        "a container's first process, whose runtime was killed",
        "$container $python $worker it",
        killed=("parent of it",),
        healthy=("it",),
        others=(),
    ),
    Style(
        "a rank as a container's first process",
        f"$container {ENVIRONMENT} $python -u $worker it --local_rank=0",
        healthy=("it",),
        others=(),
    ),
    Style("torchrun as a container's first process", f"$container {RANKS}", healthy=BOTH),
    Style(
        "vLLM as a container's first process",
        "$container $python $here/server.py vllm fork $socket",
        healthy=WORKERS,
        others=("head", "engine"),
    ),
    Style(
        "a shell as a container's first process, torchrun killed",
        f"$container {IN_A_SHELL} {RANKS}",
        killed=("head",),
        orphans=BOTH,
    ),
    Style(
        "a container whose own shell starts ranks",
        f"$container {IN_A_SHELL} {ENVIRONMENT} $python -u $worker it --local_rank=0",
        healthy=("it",),
        others=(),
    ),
)

# A rank's helper was told all that the rank was. It is not of the job: it was to outlive the rank.
INHERITED = tuple(
    Style(
        f"torchrun killed, a helper by {way}",
        f"$python $here/torch_agent.py $socket 1 $here/with_helper.py $socket rank{{RANK}} {way}",
        killed=("head",),
        orphans=("rank0",),
        healthy=("helper-rank0",),
    )
    for way in ("nohup", "setsid", "shell", "session", "session-unbuffered")
)
