"""Front ends whose workers give themselves titles, as vLLM, SGLang and Ray do.

    server.py vllm WAY SOCKET       an engine core without memory of its own, and two workers below it
    server.py vllm-one WAY SOCKET   an engine core that holds the memory itself
    server.py sglang spawn SOCKET   two schedulers
    server.py ray exec SOCKET       a raylet's worker
    server.py ray fork SOCKET       a raylet's worker, which forks a program of its own

WAY is that of multiprocessing, except for Ray.

vLLM (commit a014e35f): v1/engine/core.py run_engine_core() and v1/executor/multiproc_executor.py
setup_proc_title_and_log_prefix() call utils/system_utils.py set_process_title(), which writes
``VLLM::EngineCore`` and ``VLLM::Worker_TP0`` with setproctitle, where that is installed.
VLLM_WORKER_MULTIPROC_METHOD says how they are started, "fork" unless CUDA was used before.

SGLang (commit cce0a124): srt/entrypoints/engine.py starts schedulers by spawn, srt/managers/scheduler.py
calls them ``sglang::scheduler_TP0`` and has the kernel end them with their parent (PR_SET_PDEATHSIG). These
here are as those of versions that did not.

Ray 2.60.0: the raylet executes ``python .../ray/_private/workers/default_worker.py ...``, which calls itself
``ray::IDLE`` or ``ray::NAME``. Each leads a process group. A killed raylet leaves them, for as long as their
driver lives (measured: a minute); where the driver is killed, or both, they end by themselves.
"""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
from collections.abc import Sequence

import worker


def hold_as(title: str, address: str, name: str) -> None:
    worker.set_title(title)
    worker.hold(address, name)


def start(way: str, target: object, arguments: Sequence[object]) -> None:
    context = multiprocessing.get_context(way)
    context.Process(target=target, args=tuple(arguments)).start()  # type: ignore[attr-defined]


def engine_core(way: str, address: str) -> None:
    worker.set_title("VLLM::EngineCore")
    for at in range(2):
        start(way, hold_as, (f"VLLM::Worker_TP{at}", address, f"worker{at}"))
    worker.wait_for_end(worker.report(address, "engine"))
    os._exit(0)


def main() -> None:
    kind, way, address, *_ = sys.argv[1:]
    if kind == "vllm":
        start(way, engine_core, (way, address))
    elif kind == "vllm-one":
        start(way, hold_as, ("VLLM::EngineCore", address, "engine"))
    elif kind == "sglang":
        for at in range(2):
            start(way, hold_as, (f"sglang::scheduler_TP{at}", address, f"worker{at}"))
    elif kind == "ray":
        subprocess.Popen([sys.executable, __file__, "ray-worker", way, address], preexec_fn=os.setpgrp)
    else:
        worker.set_title("ray::train")
        if way == "fork" and os.fork() == 0:
            worker.hold(address, "fork")
            os._exit(0)
        worker.hold(address, "worker0")
    worker.wait_for_end(worker.report_head(address))
    os._exit(0)


if __name__ == "__main__":
    main()
