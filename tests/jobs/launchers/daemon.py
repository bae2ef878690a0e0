"""Programs that leave their parent by themselves.

    daemon.py itself SOCKET NAME       forks twice and works on in the second fork, as daemons do
    daemon.py service SOCKET NAME      has init start a program: what init is to a service
    daemon.py multiplexer SOCKET NAME  as tmux and screen: such a daemon, which starts a user's program
    daemon.py terminal SOCKET NAME     a shell with job control starts a program; then its terminal is closed

No launcher of theirs is dead, for there is none.
"""

from __future__ import annotations

import os
import pty
import select
import subprocess
import sys

import worker

PROGRAM = os.path.join(os.path.dirname(os.path.abspath(__file__)), "worker.py")


def leave() -> None:
    """Go on in a process whose parent is whoever adopts it."""
    if os.fork():
        os._exit(0)
    os.setsid()
    if os.fork():
        os._exit(0)


def terminal(command: list[str]) -> None:
    """Close the terminal as soon as the program runs: only then does its shell say so."""
    pid, shell = pty.fork()
    if pid == 0:
        os.execvp("bash", ["bash", "-c", 'set -m; "$@" & echo; read word', "bash", *command])
    select.select([shell], [], [])
    os.close(shell)
    os.waitpid(pid, 0)


def main() -> None:
    kind, address, name = sys.argv[1:]
    command = [sys.executable, PROGRAM, address, name]
    if kind == "terminal":
        terminal(command)
        return
    leave()
    if kind == "itself":
        worker.hold(address, name)
    elif kind == "service":
        os.execv(command[0], command)
    else:
        subprocess.Popen(command, start_new_session=True)
        worker.wait_for_end(worker.report(address, "multiplexer"))


if __name__ == "__main__":
    main()
