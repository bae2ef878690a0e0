"""A conversation with gdb or cuda-gdb through its machine interface (GDB/MI)."""

from __future__ import annotations

import re
import subprocess
import time

from vram.reach.debugger_pipe import DebuggerPipe
from vram.reach.injection import Complaint

# Everything that can be settled before the target is stopped, so that it is stopped briefly.
SETTINGS = (
    "-gdb-set confirm off",
    "-gdb-set pagination off",
    "-gdb-set auto-load off",  # nobody's scripts run in here
    "-gdb-set debuginfod enabled off",
    "-gdb-set auto-solib-add off",  # a PyTorch process maps hundreds of libraries: two are needed
    "-gdb-set print thread-events off",
    "-gdb-set mi-async off",
    # The program's own signals go on to it, and never end a call of ours half-way.
    '-interpreter-exec console "handle all nostop noprint pass"',
    '-interpreter-exec console "handle SIGSEGV SIGBUS SIGILL SIGFPE SIGABRT stop print nopass"',
    "-gdb-set unwindonsignal on",
)
OPTIONAL = ("debuginfod", "mi-async")

_THREAD = re.compile(r'\{id="(\d+)",target-id="[^"]*?(?:LWP |process )(\d+)')
_FRAME = re.compile(r'frame=\{level="\d+",addr="(0x[0-9a-f]+)"(?:,func="((?:[^"\\]|\\.)*)")?')
_VALUE = re.compile(r'value="(0x[0-9a-f]+|-?\d+)')
_MESSAGE = re.compile(r'msg="((?:[^"\\]|\\.)*)"')


class Gdb:
    """One gdb process. Nothing of it touches the target before :meth:`attach`."""

    def __init__(self, program: str, until: float) -> None:
        self._until = until
        self._number = 0
        words = [program, "--nx", "--quiet", "--interpreter=mi2"]
        self._pipe = DebuggerPipe(words, stderr=subprocess.DEVNULL)
        for setting in SETTINGS:
            try:
                self.ask(setting)
            except Complaint:
                if not any(word in setting for word in OPTIONAL):
                    raise

    def attach(self, pid: int) -> None:
        self.ask(f"-target-attach {pid}")
        for library in (r"libc\\.so", r"libc-2", "libpthread", "libpython"):
            self._try(f'-interpreter-exec console "sharedlibrary {library}"')

    def threads(self) -> dict[int, int]:
        """Thread numbers of the debugger's, by the kernel's."""
        return {int(lwp): int(number) for number, lwp in _THREAD.findall(self.ask("-thread-info"))}

    def frames(self, thread: int, most: int) -> list[tuple[int, str]]:
        """Address and function of a thread's innermost frames; "" where no symbol tells."""
        told = self.ask(f"-stack-list-frames --thread {thread} 0 {most - 1}")
        return [(int(address, 16), name) for address, name in _FRAME.findall(told)]

    def select(self, thread: int) -> None:
        self.ask(f"-thread-select {thread}")

    def hold_others(self, held: bool) -> bool:
        """Let the target's other threads stand still while one of them makes our calls, or not.

        False where that cannot be had: cuda-gdb always lets all of them run (seen with 13.0).
        """
        try:
            self.ask(f"-gdb-set scheduler-locking {'on' if held else 'off'}")
        except Complaint:
            return False
        return True

    def call(self, function: str, signature: str, *arguments: str) -> int:
        """Call a function of the target in its selected thread. Waits for it, however long.

        A debugger that is killed during a call leaves the thread to return into nowhere.
        """
        cast = f"(({signature}){function})({', '.join(arguments)})"
        return self._value(cast, until=float("inf"))

    def address(self, function: str) -> int:
        return self._value(f"(long)&{function}")

    def _value(self, expression: str, until: float | None = None) -> int:
        told = self.ask(f'-data-evaluate-expression "{expression}"', until)
        value = _VALUE.search(told)
        if value is None:
            raise Complaint(f"{expression} gave no value: {told}")
        return int(value.group(1), 0)

    def write(self, address: int, contents: bytes) -> None:
        self.ask(f"-data-write-memory-bytes {address:#x} {contents.hex()}")

    def detach(self) -> None:
        self.ask("-target-detach", until=time.monotonic() + 10.0)

    def end(self) -> None:
        self._pipe.end()

    def ask(self, command: str, until: float | None = None) -> str:
        """The result of one command. Raises Complaint or Silence."""
        self._number += 1
        self._pipe.say(f"{self._number}{command}\n")
        answer = f"{self._number}^".encode()
        while True:
            line = self._pipe.hear(b"\n", self._until if until is None else until)
            if line.startswith(answer):
                return self._judged(line[len(answer) :].decode("utf-8", "replace"))

    def _judged(self, result: str) -> str:
        if result.startswith("error"):
            message = _MESSAGE.search(result)
            raise Complaint(message.group(1) if message else result)
        return result

    def _try(self, command: str) -> None:
        try:
            self.ask(command)
        except Complaint:
            return
