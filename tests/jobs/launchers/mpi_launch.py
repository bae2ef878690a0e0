"""Starts ranks as the two families of mpirun do. None of this needs MPI in the ranks.

    mpi_launch.py openmpi SOCKET RANKS PROGRAM [ARGUMENT ...]
    mpi_launch.py hydra SOCKET RANKS PROGRAM [ARGUMENT ...]

Measured with Debian's openmpi-bin 4.1.4 and hydra 9.4 (MPICH 4.0.2), a rank being any program:

openmpi   orterun starts the ranks itself; each leads a process group in orterun's session. A killed orterun
          leaves them all.
hydra     mpiexec starts hydra_pmi_proxy, and that the ranks; each leads a session and has the socket that
          PMI_FD names. A killed proxy leaves the ranks; a killed mpiexec does not, as its proxy ends them.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys

import worker


def openmpi(rank: int, ranks: int) -> dict[str, str]:
    """What Open MPI's mpirun sets for a rank, as far as it says who the rank is."""
    folder, namespace = f"/tmp/ompi.host.0/pid.{os.getpid()}", os.getpid() << 8 | 1
    return {
        **{name: str(rank) for name in ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "PMIX_RANK")},
        **{name: str(ranks) for name in ("OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE")},
        "OMPI_UNIVERSE_SIZE": str(ranks),
        "OMPI_COMM_WORLD_NODE_RANK": str(rank),
        "PMIX_NAMESPACE": str(namespace),
        "PMIX_ID": f"{namespace}.{rank}",
        "PMIX_SERVER_TMPDIR": folder,
        "OMPI_MCA_orte_jobfam_session_dir": folder,
    }


def hydra(rank: int, ranks: int, descriptor: int) -> dict[str, str]:
    """What Hydra's proxy sets for a rank."""
    return {
        "PMI_RANK": str(rank),
        "PMI_SIZE": str(ranks),
        "PMI_FD": str(descriptor),
        "MPI_LOCALRANKID": str(rank),
        "MPI_LOCALNRANKS": str(ranks),
    }


def main() -> None:
    family, address, ranks, *command = sys.argv[1:]
    kept = []
    for rank in range(int(ranks)):
        argv = [sys.executable, *command]
        if family == "openmpi":
            subprocess.Popen(argv, env={**os.environ, **openmpi(rank, int(ranks))}, preexec_fn=os.setpgrp)
            continue
        ours, theirs = socket.socketpair()
        kept.append(ours)
        subprocess.Popen(
            argv,
            env={**os.environ, **hydra(rank, int(ranks), theirs.fileno())},
            pass_fds=[theirs.fileno()],
            start_new_session=True,
        )
    worker.wait_for_end(worker.report_head(address))


if __name__ == "__main__":
    main()
