"""A server with two real kernels, started by jupyter_client as Jupyter's server starts them.

    notebook_server.py SOCKET

One holds memory while its interpreter is free to run, the other inside a C call that keeps the interpreter.
"""

from __future__ import annotations

import os
import sys

import worker
from jupyter_client.manager import KernelManager

CELL = "import sys; sys.path.insert(0, {folder!r}); import worker; worker.{function}({address!r}, {name!r})"


def main() -> None:
    address, folder = sys.argv[1], os.path.dirname(os.path.abspath(__file__))
    kept = []
    for name, function in (("free", "hold"), ("busy", "hold_with_the_gil")):
        manager = KernelManager(connection_file=f"{os.path.dirname(address)}/kernel-{name}.json")
        manager.start_kernel()
        client = manager.client()
        client.start_channels()
        client.wait_for_ready()
        client.execute(CELL.format(folder=folder, function=function, address=address, name=name))
        kept.append((manager, client))
    worker.wait_for_end(worker.report_head(address))
    os._exit(0)


if __name__ == "__main__":
    main()
