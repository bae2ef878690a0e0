"""Starts ranks as DeepSpeed does: ``deepspeed`` starts its own launch program, and that starts the ranks.

    deepspeed_launch.py SOCKET RANKS PROGRAM [ARGUMENT ...]
    deepspeed_launch.py --runner SOCKET RANKS PROGRAM [ARGUMENT ...]

From deepspeedai/DeepSpeed (commit 32c66452), deepspeed/launcher/launch.py: ``python -u PROGRAM
--local_rank=N ARGUMENT ...``, by subprocess.Popen without a session of their own. With --runner there is the
process before it, of deepspeed/launcher/runner.py, which starts ``python -u -m deepspeed.launcher.launch``.
DeepSpeed 0.19.8 itself was tried by hand: these variables and this command, and ranks that live on.
"""

from __future__ import annotations

import os
import subprocess
import sys

import worker


def main() -> None:
    if sys.argv[1] == "--runner":
        subprocess.Popen([sys.executable, "-u", __file__, *sys.argv[2:]])
        worker.wait_for_end(worker.report(sys.argv[2], "runner"))
        return
    address, ranks, program, *words = sys.argv[1:]
    common = {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": "29500",
        "WORLD_SIZE": ranks,
        "LOCAL_SIZE": ranks,
        "CROSS_RANK": "0",
        "CROSS_SIZE": "1",
    }
    for rank in range(int(ranks)):
        subprocess.Popen(
            [sys.executable, "-u", program, f"--local_rank={rank}", *words],
            env={**os.environ, **common, "RANK": str(rank), "LOCAL_RANK": str(rank)},
        )
    worker.wait_for_end(worker.report_head(address))


if __name__ == "__main__":
    main()
