"""A conversation with lldb through its command line, for machines that have no gdb."""

from __future__ import annotations

import re
import subprocess
import time

from vram.reach.debugger_pipe import DebuggerPipe
from vram.reach.injection import Complaint

SETTINGS = (
    "settings set auto-confirm true",
    "settings set target.preload-symbols false",
    "settings set symbols.enable-external-lookup false",
    "settings set target.load-script-from-symbol-file false",
    "settings set stop-line-count-before 0",
    "settings set stop-line-count-after 0",
)

_THREAD = re.compile(r"thread #(\d+): tid = (\d+)")
_FRAME = re.compile(r"frame #\d+: 0x([0-9a-f]+) [^`\n]*`([^\s(]+)")
_VALUE = re.compile(r"\(long\) \$\d+ = (-?\d+)")


class Lldb:
    """One lldb process. Nothing of it touches the target before :meth:`attach`."""

    def __init__(self, program: str, until: float) -> None:
        self._until = until
        self._number = 0
        self._others_run = True
        words = [program, "--no-lldbinit", "--no-use-colors"]
        self._pipe = DebuggerPipe(words, stderr=subprocess.STDOUT)
        for setting in SETTINGS:
            self.ask(setting)

    def attach(self, pid: int) -> None:
        told = self.ask(f"process attach --pid {pid}")
        if "stopped" not in told:
            raise Complaint(_complaint(told) or "it could not be attached to")
        # The program's own signals go on to it, and never end a call of ours half-way.
        self.ask("process handle --pass true --stop false --notify false")
        self.ask("process handle --pass false --stop true SIGSEGV SIGBUS SIGILL SIGFPE SIGABRT SIGTRAP")

    def threads(self) -> dict[int, int]:
        """Thread numbers of the debugger's, by the kernel's."""
        return {int(tid): int(number) for number, tid in _THREAD.findall(self.ask("thread list"))}

    def frames(self, thread: int, most: int) -> list[tuple[int, str]]:
        """Address and function of a thread's innermost frames."""
        told = self.ask(f"thread backtrace -c {most} {thread}")
        return [(int(address, 16), name) for address, name in _FRAME.findall(told)]

    def select(self, thread: int) -> None:
        self.ask(f"thread select {thread}")

    def hold_others(self, held: bool) -> bool:
        """Let the target's other threads stand still while one of them makes our calls, or not."""
        self._others_run = not held
        return True

    def call(self, function: str, signature: str, *arguments: str) -> int:
        """Call a function of the target in its selected thread. Waits for it, however long."""
        return self._value(f"(({signature}){function})({', '.join(arguments)})", until=float("inf"))

    def address(self, function: str) -> int:
        # Without a type it is no value, and with one it can be no argument: so it is asked for first.
        return self._value(f"(void*)(int(*)(void*)){function}")

    def _value(self, expression: str, until: float | None = None) -> int:
        # A timeout would cut a call off half-way; 0 means none.
        options = f"--timeout 0 --all-threads {str(self._others_run).lower()} --unwind-on-error true"
        told = self.ask(f"expression {options} -- (long){expression}", until)
        value = _VALUE.search(told)
        if value is None:
            raise Complaint(_complaint(told) or f"{expression} gave no value")
        return int(value.group(1))

    def write(self, address: int, contents: bytes) -> None:
        told = self.ask(f"memory write {address:#x} {' '.join(f'{byte:#04x}' for byte in contents)}")
        complaint = _complaint(told)
        if complaint:
            raise Complaint(complaint)

    def detach(self) -> None:
        self.ask("process detach", until=time.monotonic() + 10.0)

    def end(self) -> None:
        self._pipe.end()

    def ask(self, command: str, until: float | None = None) -> str:
        """What was printed for one command. It ends where a command that does not exist is refused."""
        self._number += 1
        mark = f"vram-{self._number}"
        self._pipe.say(f"{command}\n{mark}\n")
        refusal = f"error: '{mark}' is not a valid command".encode()
        return self._pipe.hear(refusal, until or self._until).decode("utf-8", "replace")


def _complaint(told: str) -> str | None:
    """The first error in what was printed."""
    errors = (line.removeprefix("error:").strip() for line in told.splitlines() if line.startswith("error:"))
    return next(errors, None)
