"""Make the main thread of a stopped CPython run a few lines of source, by the route that its state allows.

``pending-call``, for a thread at work or anywhere that is not known to be safe: a pending call, which the
main thread makes at its next safe point. No register is written.

``signal-frame``, for a thread at rest: it waits in a plain system call that Python itself made, without the
GIL. On its stack is built what the kernel would build for a signal, and above it a chain of return
addresses: PyGILState_Ensure, PyRun_SimpleString, PyGILState_Release, and the return from the signal. From
there on the thread does everything by itself. Its system call returns EINTR, and Python makes it again
(PEP 475).

``interrupted-wait``, for a thread that waits for a lock of Python's own: a pending call, and the wait is
interrupted in the same way; Python makes its pending calls before it waits again.

No function is ever called in a thread that was interrupted at work.
"""

from __future__ import annotations

import re
from typing import Literal

from vram.payloads.procfs import MapLine
from vram.reach import signal_frame
from vram.reach.cpython import RemotePython
from vram.reach.elf import ElfImage
from vram.reach.ptrace import StoppedThreads, TargetMemory, UnsafeToAttach
from vram.reach.signal_frame import EINTR, has_pending_signal, has_shadow_stack
from vram.reach.waits import (
    FUTEX,
    INTERRUPTED,
    SAFE_SYSCALLS,
    Restarts,
    find_libc,
    signed,
    uses_musl,
)

Route = Literal["pending-call", "signal-frame", "interrupted-wait"]

_STACK_NEEDED = 256 << 10
# Who may have made the call: Python's extensions, and event libraries that handle EINTR.
_EXTENSION = re.compile(r"/lib-dynload/|\.(cpython-3\d+[^/]*|abi3)\.so$|/lib(zmq|uv|ev|event)[-.][^/]*$")
_LOCK_WAS_NOT_HELD = 1


class ExecutionRoutes:
    """What can be read of a process before it is stopped, and what is done while it is."""

    def __init__(
        self,
        memory: TargetMemory,
        python: RemotePython,
        program: ElfImage,
        found: list[ElfImage],
        maps: tuple[MapLine, ...],
    ) -> None:
        self._memory, self._python, self._maps = memory, python, maps
        if uses_musl(found):
            raise UnsafeToAttach(
                "it uses musl, which is not supported",
                "run it with glibc, or have it call vram.agent()",
            )
        libc = find_libc(found)
        self._restarts = Restarts(memory, libc)
        self._unwinder = self._restarts.unwinder
        self._callers = [
            each for each in found if each in (program, python.image) or _EXTENSION.search(each.path)
        ]
        self._code = signal_frame.find_chain_code(libc)

    def prepare(self, pid: int) -> None:
        """Read beforehand what would lengthen the stop; what fails here is read during the stop."""
        self._has_shadow_stack = has_shadow_stack(pid)
        self._stack = _stack(pid, self._maps)
        try:
            with open(f"/proc/{pid}/syscall", encoding="ascii") as file:
                words = file.read().split()
            rsp, rip = (int(word, 16) for word in words[-2:])
            self._unwinder.caller({"rip": rip, "rsp": rsp, "rbp": 0})
        except (OSError, ValueError, UnsafeToAttach):
            pass

    def choose(self, threads: StoppedThreads, tid: int, registers: dict[str, int]) -> Route:
        result = signed(registers["rax"])
        if signed(registers["orig_rax"]) < 0 or result not in INTERRUPTED or threads.signal(tid):
            return "pending-call"
        number = self._restarts.number(registers)
        if number not in SAFE_SYSCALLS.values() and number != FUTEX:
            return "pending-call"
        if not self._called_by_python(registers):
            return "pending-call"
        if number == FUTEX:
            return "interrupted-wait"
        return (
            "signal-frame"
            if self._may_build_signal_frame(registers) and not has_pending_signal(tid)
            else "pending-call"
        )

    def _may_build_signal_frame(self, registers: dict[str, int]) -> bool:
        return (
            not self._has_shadow_stack
            and self._code is not None
            and self._stack is not None
            and self._stack[0] + _STACK_NEEDED < registers["rsp"] < self._stack[1]
            and not self._python.main_thread_holds_gil()
            and not self._python.has_signals()
        )

    def _called_by_python(self, registers: dict[str, int]) -> bool:
        """Whether the interpreter or one of its extensions called the C library directly."""
        try:
            caller = self._unwinder.caller(registers)
        except UnsafeToAttach:
            return False
        return caller is not None and any(caller in each for each in self._callers)

    def interrupt_wait(self, threads: StoppedThreads, tid: int, registers: dict[str, int]) -> None:
        """Let the wait return as after a signal."""
        threads.set_registers(tid, {**registers, "rax": EINTR, "orig_rax": -1})

    def run_by_signal_frame(
        self, threads: StoppedThreads, tid: int, registers: dict[str, int], text: int
    ) -> None:
        """The main thread runs the text at *text* once it is resumed. Setting registers is the last step."""
        assert self._code is not None
        code, python = self._code, self._python
        # Functions are entered with the stack eight off a multiple of sixteen: bare returns pad the chain.
        chain = [code.pop_rdi, text, code.ret, python.run_string, code.pop_rdi, _LOCK_WAS_NOT_HELD, code.ret]
        chain += [python.gil_release, code.signal_return]
        restored = {**registers, "rax": EINTR}
        floating, mask = threads.floating_point(tid), threads.signal_mask(tid)
        frame = signal_frame.build(registers, restored, floating, mask, lambda _: chain)
        self._memory.write(frame.begins, frame.data)
        changed = {"rip": python.gil_ensure, "rsp": frame.begins, "orig_rax": -1}
        threads.set_registers(tid, {**registers, **changed})


def _stack(pid: int, maps: tuple[MapLine, ...]) -> tuple[int, int] | None:
    """The main thread's stack: the lowest address that it may grow to, and its end."""
    found = next((mapping for mapping in maps if mapping.path == b"[stack]"), None)
    if found is None:
        return None
    try:
        with open(f"/proc/{pid}/limits", encoding="ascii") as file:
            limit = next(line.split()[3] for line in file if line.startswith("Max stack size"))
    except (OSError, StopIteration):
        limit = str(8 << 20)
    return (max(0, found.end - int(limit)) if limit.isdigit() else 0), found.end
