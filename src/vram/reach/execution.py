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
import struct
from typing import Literal

from vram.payloads.procfs import MapLine, read_status
from vram.reach.cpython import RemotePython
from vram.reach.elf import ElfImage, Unwinder
from vram.reach.ptrace import StoppedThreads, TargetMemory, UnsafeToAttach

Route = Literal["pending-call", "signal-frame", "interrupted-wait"]

# System calls on x86-64 during which the thread holds nothing but what the call itself waits for.
# fmt: off
_SAFE_SYSCALLS = {
    "read": 0, "poll": 7, "select": 23, "nanosleep": 35, "accept": 43, "recvfrom": 45, "recvmsg": 47,
    "wait4": 61, "clock_nanosleep": 230, "epoll_wait": 232, "waitid": 247, "pselect6": 270, "ppoll": 271,
    "epoll_pwait": 281, "accept4": 288, "epoll_pwait2": 441,
}
# fmt: on
_FUTEX, _RESTART = 202, 219
_RESTARTABLE = ("poll", "nanosleep", "clock_nanosleep")
_EINTR = -4
# What the kernel has in the register for the result while a system call is interrupted.
_INTERRUPTED = (_EINTR, -512, -513, -514, -516)

_RED_ZONE = 128
_STACK_NEEDED = 256 << 10
# Who may have made the call: Python's extensions, and event libraries that handle EINTR.
_EXTENSION = re.compile(r"/lib-dynload/|\.(cpython-3\d+[^/]*|abi3)\.so$|/lib(zmq|uv|ev|event)[-.][^/]*$")
_MAX_LIBRARIES = 4  # that may be the C library; more of them are forged
_LIBC = re.compile(r"/(libc|libpthread)[.-][^/]*so[^/]*$")
_MUSL = re.compile(r"/ld-musl-|/libc\.musl-")
_POP_RDI_RET = b"\x5f\xc3"
_SIGNAL_RETURN = b"\x48\xc7\xc0\x0f\x00\x00\x00\x0f\x05"
_MOVE_NUMBER, _SYSCALL = b"\xb8", b"\x0f\x05"
_LOCK_WAS_NOT_HELD = 1
# After that the kernel would look for a description of what else it saved: nothing.
_FLOATING_NBYTES = 464

# struct ucontext of the kernel: flags (the stack segment is taken as given here), link, stack, registers in
# the order of struct sigcontext, segments, and four words that do not matter.
_STRICT_STACK_SEGMENT = 6
_NO_SUCH_STACK = 0xFF  # invalid on purpose: the thread's own alternate stack stays as it is
_CONTEXT = struct.Struct("<QQQiiQ18Q4H4QQ8QQ")
# fmt: off
_SAVED = [
    "r8", "r9", "r10", "r11", "r12", "r13", "r14", "r15", "rdi", "rsi", "rbp", "rbx", "rdx", "rax", "rcx",
    "rsp", "rip", "eflags",
]
# fmt: on


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
        if any(_MUSL.search(each.path) for each in found):
            raise UnsafeToAttach(
                "it uses musl, which is not supported",
                "run it with glibc, or have it call vram.agent()",
            )
        libc = [each for each in found if _LIBC.search(each.path)][:_MAX_LIBRARIES]
        self._unwinder = Unwinder(memory, libc)
        self._restartable = {
            each.symbol(name): _SAFE_SYSCALLS[name] for name in _RESTARTABLE for each in libc
        }
        self._callers = [
            each for each in found if each in (program, python.image) or _EXTENSION.search(each.path)
        ]
        self._pop_rdi = _first(libc, _POP_RDI_RET)
        self._signal_return = _first(libc, _SIGNAL_RETURN)

    def prepare(self, pid: int) -> None:
        """Read beforehand what would lengthen the stop; what fails here is read during the stop."""
        self._has_shadow_stack = _has_shadow_stack(pid)
        self._stack = _stack(pid, self._maps)
        try:
            with open(f"/proc/{pid}/syscall", encoding="ascii") as file:
                words = file.read().split()
            rsp, rip = (int(word, 16) for word in words[-2:])
            self._unwinder.caller({"rip": rip, "rsp": rsp, "rbp": 0})
        except (OSError, ValueError, UnsafeToAttach):
            pass

    def choose(self, threads: StoppedThreads, tid: int, registers: dict[str, int]) -> Route:
        number, result = _signed(registers["orig_rax"]), _signed(registers["rax"])
        if number < 0 or result not in _INTERRUPTED or threads.signal(tid):
            return "pending-call"
        if number == _RESTART:
            number = self._find_restarted_call(registers)
        if number not in _SAFE_SYSCALLS.values() and number != _FUTEX:
            return "pending-call"
        if not self._called_by_python(registers):
            return "pending-call"
        if number == _FUTEX:
            return "interrupted-wait"
        return (
            "signal-frame"
            if self._may_build_signal_frame(registers) and not _has_pending_signal(tid)
            else "pending-call"
        )

    def _may_build_signal_frame(self, registers: dict[str, int]) -> bool:
        return (
            not self._has_shadow_stack
            and self._pop_rdi is not None
            and self._signal_return is not None
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

    def _find_restarted_call(self, registers: dict[str, int]) -> int:
        """Which system call the kernel restarts: after an interruption it has the number of restart_syscall.

        Before glibc 2.41 the number is in the instruction before the call. Since then one function makes all
        cancellable calls, and its caller decides: the kernel restarts only these and a futex in this way.
        """
        code = self._memory.read(registers["rip"] - 7, 7)
        if code[5:] != _SYSCALL:
            return -1
        if code[:1] == _MOVE_NUMBER:
            return int.from_bytes(code[1:5], "little")
        try:
            function = self._unwinder.function(registers)
        except UnsafeToAttach:
            return -1
        return -1 if function is None else self._restartable.get(function, _FUTEX)

    def interrupt_wait(self, threads: StoppedThreads, tid: int, registers: dict[str, int]) -> None:
        """Let the wait return as after a signal."""
        threads.set_registers(tid, {**registers, "rax": _EINTR, "orig_rax": -1})

    def run_by_signal_frame(
        self, threads: StoppedThreads, tid: int, registers: dict[str, int], text: int
    ) -> None:
        """The main thread runs the text at *text* once it is resumed. Setting registers is the last step."""
        assert self._pop_rdi is not None
        assert self._signal_return is not None
        ret = self._pop_rdi + 1
        python = self._python
        # Functions are entered with the stack eight off a multiple of sixteen: bare returns pad the chain.
        chain = [self._pop_rdi, text, ret, python.run_string, self._pop_rdi, _LOCK_WAS_NOT_HELD, ret]
        chain += [python.gil_release, self._signal_return]
        floating = threads.floating_point(tid)[:_FLOATING_NBYTES].ljust(512, b"\0")
        at_floating = (registers["rsp"] - _RED_ZONE - len(floating)) & ~63
        begins = (at_floating - _CONTEXT.size - 8 * len(chain)) & ~15
        begins -= 8
        context = self._context(registers, at_floating, threads.signal_mask(tid))
        frame = struct.pack(f"<{len(chain)}Q", *chain) + context
        self._memory.write(begins, frame.ljust(at_floating - begins, b"\0") + floating)
        changed = {"rip": python.gil_ensure, "rsp": begins, "orig_rax": -1}
        threads.set_registers(tid, {**registers, **changed})

    def _context(self, registers: dict[str, int], at_floating: int, mask: int) -> bytes:
        saved = {**registers, "rax": _EINTR & (1 << 64) - 1}
        stack = (0, _NO_SUCH_STACK, 0, 0)
        segments = (registers["cs"] & 0xFFFF, 0, 0, registers["ss"] & 0xFFFF)
        words = (saved[name] for name in _SAVED)
        return _CONTEXT.pack(
            _STRICT_STACK_SEGMENT, 0, *stack, *words, *segments, 0, 0, 0, 0, at_floating, *([0] * 8), mask
        )


def _first(libraries: list[ElfImage], code: bytes) -> int | None:
    return next(filter(None, (each.find_code(code) for each in libraries)), None)


def _has_pending_signal(tid: int) -> bool:
    """Whether a signal is about to be delivered. Its handler may raise, and must not do so in our lines.

    Assumed to be so where that cannot be read.
    """
    lines = read_status(tid)
    try:
        own, shared, blocked = (int(lines[name], 16) for name in (b"SigPnd", b"ShdPnd", b"SigBlk"))
    except (KeyError, ValueError):
        return True
    return bool((own | shared) & ~blocked)


def _has_shadow_stack(pid: int) -> bool:
    lines = read_status(pid)
    return not lines or b"shstk" in lines.get(b"x86_Thread_features", b"")


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


def _signed(value: int) -> int:
    return value - (1 << 64) if value >> 63 else value
