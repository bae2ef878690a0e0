"""Make the main thread of a stopped CPython run a few lines of source, by the route that its state allows.

``pending-call``, for a thread at work or anywhere that is not known to be safe: a pending call, which the
main thread makes at its next safe point. No register is written.

``signal-frame``, for a thread at rest: it waits in a plain system call that Python itself made, without the
GIL. On its stack is built what the kernel would build for a signal: all its registers, its signal mask and
its floating-point state; and what leads it through PyGILState_Ensure, PyRun_SimpleString and
PyGILState_Release to the return from the signal (:mod:`vram.reach.machines`). Setting the thread's registers
is the one step that decides. From there on it does everything by itself. Its system call returns EINTR, and
Python makes it again (PEP 475).

``interrupted-wait``, for a thread that waits for a lock of Python's own: a pending call, and the wait is
interrupted in the same way; Python makes its pending calls before it waits again.

No function is ever called in a thread that was interrupted at work.
"""

from __future__ import annotations

import re
from typing import Literal

from vram.payloads.procfs import MapLine
from vram.reach.cpython import RemotePython
from vram.reach.elf import ElfImage
from vram.reach.machines import Call, Interrupted, this_machine
from vram.reach.machines.machine import INTERRUPTED, Registers
from vram.reach.ptrace import StoppedThreads, TargetMemory, UnsafeToAttach
from vram.reach.waits import Restarts, find_chain_code, find_libc, has_pending_signal, uses_musl

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
        self._machine = this_machine()
        self._code = find_chain_code(libc, memory, maps)

    def prepare(self, pid: int) -> None:
        """Read beforehand what would lengthen the stop; what fails here is read during the stop."""
        self._stack = _stack(pid, self._maps)
        frames = self._machine.frames
        try:
            with open(f"/proc/{pid}/syscall", encoding="ascii") as file:
                words = file.read().split()
            sp, pc = (int(word, 16) for word in words[-2:])
            known = {frames.pc: pc, frames.sp: sp, frames.fp: 0}
            self._unwinder.caller(
                {**known, **({frames.return_register: 0} if frames.return_register else {})}
            )
        except (OSError, ValueError, UnsafeToAttach):
            pass

    def choose(self, threads: StoppedThreads, tid: int, registers: Registers) -> Route:
        call = self._restarts.find(registers)
        if call is None or call.result not in INTERRUPTED or threads.signal(tid):
            return "pending-call"
        is_futex = call.number == self._machine.futex
        if call.number not in self._machine.syscalls.values() and not is_futex:
            return "pending-call"
        if not self._called_by_python(self._machine.after_eintr(registers, call)):
            return "pending-call"
        if is_futex:
            return "interrupted-wait" if self._machine.waits_for_futex(call) else "pending-call"
        return (
            "signal-frame"
            if self._may_build_signal_frame(registers)
            and not has_pending_signal(tid)
            and not self._machine.has_shadow_stack(tid)
            else "pending-call"
        )

    def _may_build_signal_frame(self, registers: Registers) -> bool:
        return (
            self._code is not None
            and self._stack is not None
            and self._stack[0] + _STACK_NEEDED < registers[self._machine.frames.sp] < self._stack[1]
            and not self._python.main_thread_holds_gil()
            and not self._python.has_signals()
        )

    def _called_by_python(self, registers: Registers) -> bool:
        """Whether the interpreter or one of its extensions called the C library directly."""
        try:
            caller = self._unwinder.caller(registers)
        except UnsafeToAttach:
            return False
        return caller is not None and any(caller in each for each in self._callers)

    def _after_eintr(self, registers: Registers) -> Registers:
        call: Interrupted | None = self._restarts.find(registers)
        assert call is not None  # or no route that interrupts it would have been chosen
        return self._machine.after_eintr(registers, call)

    def interrupt_wait(self, threads: StoppedThreads, tid: int, registers: Registers) -> None:
        """Let the wait return as after a signal."""
        threads.set_registers(tid, self._after_eintr(registers))

    def run_by_signal_frame(self, threads: StoppedThreads, tid: int, registers: Registers, text: int) -> None:
        """The main thread runs the text at *text* once it is resumed. Setting registers is the last step."""
        assert self._code is not None
        python = self._python
        calls = (
            Call(python.gil_ensure),
            Call(python.run_string, (text,)),
            Call(python.gil_release, (_LOCK_WAS_NOT_HELD,)),
        )
        floating, mask = threads.floating_point(tid), threads.signal_mask(tid)
        restored = self._after_eintr(registers)
        detour = self._machine.detour(registers, restored, calls, self._code, floating, mask)
        self._memory.write(detour.begins, detour.data)
        threads.set_registers(tid, detour.registers)


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
