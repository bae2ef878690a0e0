"""Which system call a stopped thread waits in, and whether it may be made once more, exactly as it was.

A wait that has no deadline, and that nothing but its own event can end, is repeated by going back to the
instruction that made it: the program cannot tell.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence

from vram.reach.elf import ElfImage, Unwinder
from vram.reach.ptrace import TargetMemory, UnsafeToAttach

# Numbers on x86-64. During these calls a thread holds nothing but what the call itself waits for.
# fmt: off
SAFE_SYSCALLS = {
    "read": 0, "poll": 7, "select": 23, "nanosleep": 35, "accept": 43, "recvfrom": 45, "recvmsg": 47,
    "wait4": 61, "clock_nanosleep": 230, "epoll_wait": 232, "waitid": 247, "pselect6": 270, "ppoll": 271,
    "epoll_pwait": 281, "accept4": 288, "epoll_pwait2": 441,
}
# fmt: on
FUTEX, RESTART = 202, 219
_RESTARTABLE = ("poll", "nanosleep", "clock_nanosleep")
_MOVE_NUMBER, SYSCALL = b"\xb8", b"\x0f\x05"
_EINTR, _RESTART_SYS, _RESTART_NO_HANDLER, _RESTART_BLOCK = -4, -512, -514, -516
# What the kernel has in the register for the result while a system call is interrupted.
INTERRUPTED = (_EINTR, _RESTART_SYS, -513, _RESTART_NO_HANDLER, _RESTART_BLOCK)

LIBC = re.compile(r"/(libc|libpthread)[.-][^/]*so[^/]*$")
_MUSL = re.compile(r"/ld-musl-|/libc\.musl-")
_MAX_LIBRARIES = 4  # that may be the C library; more of them are forged
_ARGUMENTS = ("rdi", "rsi", "rdx", "r10", "r8", "r9")


def find_libc(found: Sequence[ElfImage]) -> list[ElfImage]:
    return [each for each in found if LIBC.search(each.path)][:_MAX_LIBRARIES]


def uses_musl(found: Sequence[ElfImage]) -> bool:
    """By its name, or because it is a C library that is not glibc: Debian's lies at .../libc.so."""
    libc = find_libc(found)
    is_other = bool(libc) and not any(each.symbol("gnu_get_libc_version") for each in libc)
    return is_other or any(_MUSL.search(each.path) for each in found)


def signed(value: int, bits: int = 64) -> int:
    value &= (1 << bits) - 1
    return value - (1 << bits) if value >> (bits - 1) else value


class Restarts:
    """Finds which system call the kernel restarts: after an interruption it has another number."""

    def __init__(self, memory: TargetMemory, libc: Sequence[ElfImage]) -> None:
        self._memory = memory
        self.unwinder = Unwinder(memory, list(libc))
        self._by_function = {each.symbol(name): SAFE_SYSCALLS[name] for name in _RESTARTABLE for each in libc}

    def number(self, registers: dict[str, int]) -> int:
        """The number of the call that *registers* are in, -1 where that is unknown.

        Before glibc 2.41 the number is in the instruction before the call. Since then one function makes all
        cancellable calls, and its caller decides: the kernel restarts only these and a futex in this way.
        """
        number = signed(registers["orig_rax"])
        if number != RESTART:
            return number
        code = self._memory.read(registers["rip"] - 7, 7)
        if code[5:] != SYSCALL:
            return -1
        if code[:1] == _MOVE_NUMBER:
            return int.from_bytes(code[1:5], "little")
        try:
            function = self.unwinder.function(registers)
        except UnsafeToAttach:
            return -1
        return -1 if function is None else self._by_function.get(function, FUTEX)


# ---- waits without a deadline ----


def lasts(number: int, arguments: Sequence[int], memory: TargetMemory) -> bool:
    """Whether that call waits until its event comes, with the thread's own signal mask."""
    rdx, r10, r8, r9 = arguments[2:6]
    match number:
        case 0 | 43 | 45 | 47 | 288:  # read, accept, recvfrom, recvmsg, accept4
            return True
        case 7:  # poll
            return signed(rdx, 32) < 0
        case 271:  # ppoll: timeout, mask
            return rdx == 0 and r10 == 0
        case 23:  # select
            return r8 == 0
        case 270:  # pselect6: timeout, and the address of the mask's address
            return r8 == 0 and (r9 == 0 or memory.uint64(r9) == 0)
        case 232:  # epoll_wait
            return signed(r10, 32) < 0
        case 281:  # epoll_pwait
            return signed(r10, 32) < 0 and r8 == 0
        case 441:  # epoll_pwait2
            return r10 == 0 and r8 == 0
    return False


def may_repeat(number: int, result: int) -> bool:
    """Whether a wait that was interrupted with *result* has no deadline that its arguments do not show.

    Sockets with SO_RCVTIMEO and a few devices answer EINTR instead of being restarted.
    """
    if number in (232, 281, 441):
        return result == _EINTR
    return result in {
        7: (_RESTART_BLOCK,),
        23: (_RESTART_NO_HANDLER,),
        270: (_RESTART_NO_HANDLER,),
        271: (_RESTART_NO_HANDLER,),
    }.get(number, (_RESTART_SYS,))


def preference(number: int) -> int:
    """Smallest first: how a wait bears being interrupted by who dies before it can be repeated.

    The kernel itself repeats the first ones. epoll_wait would return EINTR, and so would a socket that has a
    deadline.
    """
    return {7: 0, 271: 0, 23: 1, 270: 1, 0: 2, 43: 3, 288: 3, 45: 3, 47: 3}.get(number, 4)


def read_syscall(pid: int, tid: int) -> tuple[int, tuple[int, ...], int, int] | None:
    """The call that a thread is in: its number, arguments, stack pointer and place; None while it runs."""
    try:
        with open(f"/proc/{pid}/task/{tid}/syscall", encoding="ascii") as file:
            words = file.read().split()
    except OSError:
        return None
    if len(words) != 9:
        return None
    number, *values = (int(word, 0) for word in words)
    return number, tuple(values[:6]), values[6], values[7]


def arguments_of(registers: dict[str, int]) -> tuple[int, ...]:
    return tuple(registers[name] for name in _ARGUMENTS)


def repeated(registers: dict[str, int], number: int) -> dict[str, int]:
    """*registers* so that the thread makes the call once more: right before the instruction that made it."""
    return {**registers, "rax": number, "rip": registers["rip"] - len(SYSCALL), "orig_rax": -1}


def is_pipe_or_terminal(pid: int, descriptor: int) -> bool:
    """Whether reads of that file are restarted by the kernel: not so with inotify and some devices."""
    try:
        name = os.readlink(f"/proc/{pid}/fd/{descriptor}")
    except OSError:
        return False
    return name.startswith(("pipe:", "socket:", "anon_inode:[eventfd]", "/dev/pts/", "/dev/tty"))
