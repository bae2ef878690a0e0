"""Starts ranks as the agent of torchrun does, and accelerate, which runs that agent in its own process.

    torch_agent.py SOCKET RANKS PROGRAM [ARGUMENT ...]

With $RESTARTS it starts a rank again that has ended, as torchrun does with --max-restarts.

From PyTorch 2.15.0, torch/distributed/:
run.py, config_from_args(): the ranks' command is ``python -u PROGRAM ARGUMENT ...``;
elastic/agent/server/local_elastic_agent.py, _start_workers(): the variables;
elastic/multiprocessing/api.py, DefaultLogsSpecs.reify(): a folder for each rank, made right before it starts;
elastic/multiprocessing/subprocess_handler/subprocess_handler.py, _popen(): a session for each rank.
accelerate 1.15.0, commands/launch.py, multi_gpu_launcher(): calls torch.distributed.run.run().
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile

import worker


def variables(rank: int, ranks: int, folder: str) -> dict[str, str]:
    """What the agent sets for one of its ranks; *folder* is the one that it made for this attempt."""
    return {
        **{name: str(rank) for name in ("RANK", "ROLE_RANK", "LOCAL_RANK")},
        **{name: str(ranks) for name in ("WORLD_SIZE", "ROLE_WORLD_SIZE", "LOCAL_WORLD_SIZE")},
        "GROUP_RANK": "0",
        "GROUP_WORLD_SIZE": "1",
        "ROLE_NAME": "default",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": "29500",
        "TORCHELASTIC_RESTART_COUNT": "0",
        "TORCHELASTIC_MAX_RESTARTS": "0",
        "TORCHELASTIC_RUN_ID": "none",
        "TORCHELASTIC_USE_AGENT_STORE": "False",
        "TORCHELASTIC_ERROR_FILE": f"{folder}/{rank}/error.json",
        "TORCH_NCCL_ASYNC_ERROR_HANDLING": "1",
    }


def main() -> None:
    address, ranks, *command = sys.argv[1:]
    # The folder is the test's own, so that it goes with the test.
    folder = tempfile.mkdtemp(prefix="torchelastic_", dir=os.path.dirname(address)) + "/none_0/attempt_0"

    def start(rank: int) -> int:
        os.makedirs(f"{folder}/{rank}", exist_ok=True)
        return subprocess.Popen(
            [sys.executable, "-u", *command],
            env={**os.environ, **variables(rank, int(ranks), folder)},
            start_new_session=True,
        ).pid

    rank_of = {start(rank): rank for rank in range(int(ranks))}
    connection = worker.report_head(address)
    while os.environ.get("RESTARTS"):
        ended, _ = os.wait()
        rank = rank_of.pop(ended)
        rank_of[start(rank)] = rank
    worker.wait_for_end(connection)


if __name__ == "__main__":
    main()
