"""aarch64: arguments and return addresses are in registers, so a chain of signal frames runs functions.

Each frame restores the registers with which the next function begins, its return address being the kernel's
own return from a signal; the last one restores what was there.

While a thread is stopped in a system call that would be restarted, the kernel shows it before that call, with
all arguments as they were: it cannot be told from a thread that is about to make it, and need not be. After
EINTR the first argument is lost.
"""

from __future__ import annotations

import errno
import struct
from collections.abc import Callable, Mapping, Sequence

from vram.reach.machines.machine import (
    EINTR,
    NO_SUCH_STACK,
    RESTART_SYS,
    TEXT,
    Call,
    ChainCode,
    Detour,
    Frames,
    Interrupted,
    Read,
    Registers,
    read_register_set,
    write_register_set,
)

# Kinds of register sets, from the kernel's elf.h.
_GENERAL, _FLOATING, _TLS, _SHADOW_STACK = 1, 2, 0x401, 0x410
_NAMES = [*(f"x{number}" for number in range(31)), "sp", "pc", "pstate"]
_FORMAT = struct.Struct(f"<{len(_NAMES)}Q")
_FLOATING_NBYTES = 528
_ARGUMENTS = ("x0", "x1", "x2", "x3", "x4", "x5")

SYSCALL = b"\x01\x00\x00\xd4"  # svc #0
_SIGNAL_RETURN = b"\x68\x11\x80\xd2" + SYSCALL  # mov x8, #139
_MOVE_NUMBER, _MOVE_MASK = 0xD2800008, 0xFFE0001F  # mov x8, #…
_BRANCH_TYPE = 3 << 10  # of pstate: how the last jump was made
_WAITS_FOR_FUTEX = (0, 9)  # FUTEX_WAIT, FUTEX_WAIT_BITSET
_PRIVATE_AND_CLOCK = 0x180
_TCB_NBYTES = range(0x400, 0x1001, 16)  # what struct pthread may take, where the C library does not say

# struct rt_sigframe of the kernel: siginfo; of struct ucontext flags, link, stack, mask, and room for a
# longer one; struct sigcontext begins at a multiple of 16: an address, the registers, and from the next such
# multiple on records.
_CONTEXT = struct.Struct(f"<128x QQ QiiQ Q 120x 8x Q{len(_NAMES)}Q 8x")
_FLOATING_RECORD = struct.Struct("<II II 512s II")  # and the end of the records
_FLOATING_MAGIC = 0x46508001
_FRAME_NBYTES = (_CONTEXT.size + _FLOATING_RECORD.size + 15) & ~15
_RED_ZONE = 128  # the ABI has none


class Aarch64:
    name = "aarch64"
    elf_machine = 183
    # fmt: off
    syscalls: Mapping[str, int] = {
        "epoll_pwait": 22, "read": 63, "pselect6": 72, "ppoll": 73, "waitid": 95, "nanosleep": 101,
        "clock_nanosleep": 115, "accept": 202, "recvfrom": 207, "recvmsg": 212, "accept4": 242, "wait4": 260,
        "epoll_pwait2": 441,
    }
    # fmt: on
    futex, restart = 98, 128
    # Addresses of programs have 48 bits, unless a program asks for more.
    frames = Frames("pc", "sp", "x29", 31, 29, 30, "x30", (1 << 48) - 1)
    loses_first_argument = True

    def registers(self, tid: int) -> Registers:
        data = read_register_set(tid, _GENERAL, _FORMAT.size)
        (tls,) = struct.unpack("<Q", read_register_set(tid, _TLS, 8))
        return {**dict(zip(_NAMES, _FORMAT.unpack(data), strict=True)), "tls": tls}

    def set_registers(self, tid: int, values: Registers) -> None:
        write_register_set(tid, _GENERAL, _FORMAT.pack(*_words(values)))

    def floating_point(self, tid: int) -> bytes:
        return read_register_set(tid, _FLOATING, _FLOATING_NBYTES)

    def thread_pointer(self, registers: Registers) -> int:
        return registers["tls"]

    def belongs_to(self, registers: Registers, thread: int, record_nbytes: int | None) -> bool:
        """Its record ends where the register points to."""
        nbytes = registers["tls"] - thread
        return nbytes == record_nbytes if record_nbytes else nbytes in _TCB_NBYTES

    def interrupted(self, registers: Registers, read: Read) -> Interrupted | None:
        pc, number = registers["pc"], registers["x8"]
        arguments = tuple(registers[name] for name in _ARGUMENTS)
        code = read(pc - len(SYSCALL), 2 * len(SYSCALL))
        if code[len(SYSCALL) :] == SYSCALL:
            return Interrupted(number, arguments, RESTART_SYS)
        if code[: len(SYSCALL)] == SYSCALL and registers["x0"] == EINTR & (1 << 64) - 1:
            return Interrupted(number, arguments, EINTR, first_known=False)
        return None

    def made_as_usual(self, registers: Registers, read: Read) -> bool:
        return True  # or it would not have been recognised as a call

    def restarted_number(self, registers: Registers, read: Read) -> int | None:
        """Only the wait itself is restarted so, never with EINTR: the thread is shown before the call."""
        (code,) = struct.unpack("<I", read(registers["pc"] - len(SYSCALL), 4))
        return code >> 5 & 0xFFFF if code & _MOVE_MASK == _MOVE_NUMBER else None

    def may_repeat(self, name: str, result: int) -> bool:
        return result == RESTART_SYS or (result == EINTR and name in ("epoll_pwait", "epoll_pwait2"))

    def waits_for_futex(self, call: Interrupted) -> bool:
        return call.arguments[1] & 0xFFFFFFFF & ~_PRIVATE_AND_CLOCK in _WAITS_FOR_FUTEX

    def after_eintr(self, registers: Registers, call: Interrupted) -> Registers:
        ahead = 0 if call.result == EINTR else len(SYSCALL)
        return {**registers, "x0": EINTR, "pc": registers["pc"] + ahead}

    def repeating(self, registers: Registers, call: Interrupted) -> Registers:
        if call.result != EINTR:
            return registers
        return {**registers, "x0": call.arguments[0], "pc": registers["pc"] - len(SYSCALL)}

    def find_chain_code(self, find: Callable[[bytes], int | None]) -> ChainCode | None:
        signal_return = find(_SIGNAL_RETURN)
        return None if signal_return is None else ChainCode(signal_return)

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
        at_text = (registers["sp"] - _RED_ZONE - len(text)) & ~15
        begins = at_text - len(calls) * _FRAME_NBYTES
        states = []
        for number, call in enumerate(calls):
            values = {f"x{at}": value for at, value in enumerate(call.arguments)}
            values = {name: at_text if value == TEXT else value for name, value in values.items()}
            values |= {"x30": code.signal_return, "pc": call.function, "sp": begins + number * _FRAME_NBYTES}
            states.append({**registers, **values, "pstate": registers["pstate"] & ~_BRANCH_TYPE})
        data = b"".join(_frame(state, floating, mask) for state in (*states[1:], restored))
        return Detour(begins, data + text, states[0])

    def has_shadow_stack(self, tid: int) -> bool:
        """Linux 6.13 and later can have one; a kernel that does not know the word has none."""
        try:
            features = read_register_set(tid, _SHADOW_STACK, 24)[:8]
        except OSError as error:
            return error.errno not in (errno.EINVAL, errno.ENODEV)
        return bool(int.from_bytes(features, "little") & 1)


def _frame(restored: Registers, floating: bytes, mask: int) -> bytes:
    context = _CONTEXT.pack(0, 0, 0, NO_SUCH_STACK, 0, 0, mask, 0, *_words(restored))
    status = struct.unpack_from("<II", floating, 512)
    record = _FLOATING_RECORD.pack(_FLOATING_MAGIC, _FLOATING_NBYTES, *status, floating[:512], 0, 0)
    return (context + record).ljust(_FRAME_NBYTES, b"\0")


def _words(values: Registers) -> list[int]:
    return [values[name] & (1 << 64) - 1 for name in _NAMES]
