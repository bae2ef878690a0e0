"""x86-64: a function finds its return address on the stack, so a chain of those runs one after another."""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable, Mapping, Sequence

from vram.payloads import ptrace
from vram.payloads.procfs import read_status
from vram.reach.machines.machine import (
    EINTR,
    NO_SUCH_STACK,
    RESTART_BLOCK,
    RESTART_NO_HANDLER,
    RESTART_SYS,
    TEXT,
    Call,
    ChainCode,
    Detour,
    Frames,
    Interrupted,
    Read,
    Registers,
)

_GETREGS, _SETREGS, _GETFPREGS = 12, 13, 14

# In the order of struct user_regs_struct.
# fmt: off
_REGISTERS = [
    "r15", "r14", "r13", "r12", "rbp", "rbx", "r11", "r10", "r9", "r8", "rax", "rcx", "rdx", "rsi", "rdi",
    "orig_rax", "rip", "cs", "eflags", "rsp", "ss", "fs_base", "gs_base", "ds", "es", "fs", "gs",
]
# fmt: on
_FORMAT = struct.Struct(f"<{len(_REGISTERS)}Q")
_ARGUMENTS = ("rdi", "rsi", "rdx", "r10", "r8", "r9")

SYSCALL = b"\x0f\x05"
_MOVE_NUMBER = b"\xb8"
_RED_ZONE = 128
_POP = (b"\x5f\xc3", b"\x5e\xc3")  # pop rdi; ret and pop rsi; ret
_SIGNAL_RETURN = b"\x48\xc7\xc0\x0f\x00\x00\x00\x0f\x05"
# After that the kernel would look for a description of what else it saved: nothing.
_FLOATING_NBYTES = 464

# struct ucontext of the kernel: flags (the stack segment is taken as given here), link, stack, registers in
# the order of struct sigcontext, segments, and four words that do not matter.
_STRICT_STACK_SEGMENT = 6
_CONTEXT = struct.Struct("<QQQiiQ18Q4H4QQ8QQ")
# fmt: off
_SAVED = [
    "r8", "r9", "r10", "r11", "r12", "r13", "r14", "r15", "rdi", "rsi", "rbp", "rbx", "rdx", "rax", "rcx",
    "rsp", "rip", "eflags",
]
# fmt: on


class X86_64:
    name = "x86-64"
    elf_machine = 62
    # fmt: off
    syscalls: Mapping[str, int] = {
        "read": 0, "poll": 7, "select": 23, "nanosleep": 35, "accept": 43, "recvfrom": 45, "recvmsg": 47,
        "wait4": 61, "clock_nanosleep": 230, "epoll_wait": 232, "waitid": 247, "pselect6": 270, "ppoll": 271,
        "epoll_pwait": 281, "accept4": 288, "epoll_pwait2": 441,
    }
    # fmt: on
    futex, restart = 202, 219
    frames = Frames("rip", "rsp", "rbp", 7, 6, 16, None, (1 << 64) - 1)
    loses_first_argument = False

    def registers(self, tid: int) -> Registers:
        buffer = ctypes.create_string_buffer(512)
        ptrace.request(_GETREGS, tid, 0, buffer)
        return dict(zip(_REGISTERS, _FORMAT.unpack_from(buffer), strict=True))

    def set_registers(self, tid: int, values: Registers) -> None:
        data = _FORMAT.pack(*(values[name] & (1 << 64) - 1 for name in _REGISTERS))
        ptrace.request(_SETREGS, tid, 0, ctypes.create_string_buffer(data, len(data)))

    def floating_point(self, tid: int) -> bytes:
        buffer = ctypes.create_string_buffer(512)
        ptrace.request(_GETFPREGS, tid, 0, buffer)
        return buffer.raw

    def thread_pointer(self, registers: Registers) -> int:
        return registers["fs_base"]

    def belongs_to(self, registers: Registers, thread: int, record_nbytes: int | None) -> bool:
        return registers["fs_base"] == thread

    def interrupted(self, registers: Registers, read: Read) -> Interrupted | None:
        number = _signed(registers["orig_rax"])
        if number < 0:
            return None
        arguments = tuple(registers[name] for name in _ARGUMENTS)
        return Interrupted(number, arguments, _signed(registers["rax"]))

    def made_as_usual(self, registers: Registers, read: Read) -> bool:
        return read(registers["rip"] - len(SYSCALL), len(SYSCALL)) == SYSCALL

    def restarted_number(self, registers: Registers, read: Read) -> int | None:
        code = read(registers["rip"] - 7, 7)
        if code[5:] != SYSCALL:
            return -1
        return int.from_bytes(code[1:5], "little") if code[:1] == _MOVE_NUMBER else None

    def may_repeat(self, name: str, result: int) -> bool:
        if name in ("epoll_wait", "epoll_pwait", "epoll_pwait2"):
            return result == EINTR
        if name == "poll":
            return result == RESTART_BLOCK
        return result == (RESTART_NO_HANDLER if name in ("select", "pselect6", "ppoll") else RESTART_SYS)

    def waits_for_futex(self, call: Interrupted) -> bool:
        return True  # it has been interrupted, or it would not be seen

    def after_eintr(self, registers: Registers, call: Interrupted) -> Registers:
        return {**registers, "rax": EINTR, "orig_rax": -1}

    def repeating(self, registers: Registers, call: Interrupted) -> Registers:
        return {**registers, "rax": call.number, "rip": registers["rip"] - len(SYSCALL), "orig_rax": -1}

    def find_chain_code(self, find: Callable[[bytes], int | None]) -> ChainCode | None:
        signal_return, *pop = (find(code) for code in (_SIGNAL_RETURN, *_POP))
        known = tuple(each for each in pop if each is not None)
        if signal_return is None or len(known) < len(_POP):
            return None
        return ChainCode(signal_return, known)

    def detour(
        self,
        registers: Registers,
        restored: Registers,
        calls: Sequence[Call],
        code: ChainCode,
        floating: bytes,
        mask: int,
        text: bytes = b"",
    ) -> Detour:
        """The first word on the stack is 8 off a multiple of 16, as the stack is when a function begins."""
        at_text = (registers["rsp"] - _RED_ZONE - len(text)) & ~15
        at_floating = (at_text - 512) & ~63
        first, *words = self._chain(calls, code, at_text)
        begins = ((at_floating - _CONTEXT.size - 8 * len(words)) & ~15) - 8
        context = _context(restored, at_floating, mask)
        data = struct.pack(f"<{len(words)}Q", *words) + context
        data = data.ljust(at_floating - begins, b"\0") + floating[:_FLOATING_NBYTES].ljust(512, b"\0")
        changed = {"rip": first, "rsp": begins, "orig_rax": -1}
        return Detour(begins, data.ljust(at_text - begins, b"\0") + text, {**registers, **changed})

    def _chain(self, calls: Sequence[Call], code: ChainCode, at_text: int) -> list[int]:
        """Return addresses. Bare returns pad it: functions begin with the stack 8 off a multiple of 16."""
        chain: list[int] = []
        for call in calls:
            for pop, value in zip(code.pop, call.arguments, strict=False):
                chain += [pop, at_text if value == TEXT else value]
            if len(chain) % 2:
                chain.append(code.pop[0] + 1)
            chain.append(call.function)
        return [*chain, code.signal_return]

    def has_shadow_stack(self, tid: int) -> bool:
        lines = read_status(tid)
        return not lines or b"shstk" in lines.get(b"x86_Thread_features", b"")


def _context(restored: Registers, at_floating: int, mask: int) -> bytes:
    stack = (0, NO_SUCH_STACK, 0, 0)
    segments = (restored["cs"] & 0xFFFF, 0, 0, restored["ss"] & 0xFFFF)
    words = (restored[name] & (1 << 64) - 1 for name in _SAVED)
    return _CONTEXT.pack(
        _STRICT_STACK_SEGMENT, 0, *stack, *words, *segments, 0, 0, 0, 0, at_floating, *([0] * 8), mask
    )


def _signed(value: int) -> int:
    return value - (1 << 64) if value >> 63 else value
