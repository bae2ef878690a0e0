"""Which system call a stopped thread waits in, and whether it may be made once more, exactly as it was.

A wait that has no deadline, and that nothing but its own event can end, is repeated by going back to the
instruction that made it: the program cannot tell.
"""

from __future__ import annotations

import ctypes
import os
import re
import socket
from collections.abc import Sequence
from contextlib import suppress

from msgspec.structs import replace

from vram.payloads.procfs import MapLine, ProcessFolder, read_status
from vram.reach.elf import ElfImage, Unwinder
from vram.reach.machines import ChainCode, Interrupted, this_machine
from vram.reach.machines.machine import Registers
from vram.reach.ptrace import TargetMemory, UnsafeToAttach

_RESTARTABLE = ("poll", "nanosleep", "clock_nanosleep")
_EPOLL = ("epoll_wait", "epoll_pwait", "epoll_pwait2")
_SOCKETS = ("accept", "accept4", "recvfrom", "recvmsg")

LIBC = re.compile(r"/(libc|libpthread)[.-][^/]*so[^/]*$")
_MUSL = re.compile(r"/ld-musl-|/libc\.musl-")
_MAX_LIBRARIES = 4  # that may be the C library; more of them are forged
_PIDFD_GETFD = 438  # on every machine


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


def find_chain_code(
    libc: Sequence[ElfImage], memory: TargetMemory, lines: tuple[MapLine, ...]
) -> ChainCode | None:
    """What a detour needs, in the C library or else in the kernel's own page, the vDSO."""

    def find(code: bytes) -> int | None:
        in_libc = (each.find_code(code) for each in libc)
        return next((at for at in in_libc if at is not None), None) or in_vdso(code)

    def in_vdso(code: bytes) -> int | None:
        for line in lines:
            if line.path == b"[vdso]":
                at = memory.read(line.start, line.nbytes).find(code)
                return line.start + at if at >= 0 else None
        return None

    return this_machine().find_chain_code(find)


def thread_record_nbytes(memory: TargetMemory, found: Sequence[ElfImage]) -> int | None:
    """The size of struct pthread, which glibc publishes for debuggers; None where it does not."""
    at = next(filter(None, (each.symbol("_thread_db_sizeof_pthread") for each in find_libc(found))), None)
    return None if at is None else memory.int32(at)


def has_pending_signal(tid: int) -> bool:
    """Whether a signal is about to be delivered. Its handler may raise, and must not do so in our lines.

    Assumed to be so where that cannot be read.
    """
    lines = read_status(tid)
    try:
        own, shared, blocked = (int(lines[name], 16) for name in (b"SigPnd", b"ShdPnd", b"SigBlk"))
    except (KeyError, ValueError):
        return True
    return bool((own | shared) & ~blocked)


class Restarts:
    """Finds which system call the kernel restarts: after an interruption it has another number."""

    def __init__(self, memory: TargetMemory, libc: Sequence[ElfImage]) -> None:
        self._memory, self._machine = memory, this_machine()
        self.unwinder = Unwinder(memory, list(libc))
        numbers = {
            name: self._machine.syscalls[name] for name in _RESTARTABLE if name in self._machine.syscalls
        }
        self._by_function = {each.symbol(name): numbers[name] for name in numbers for each in libc}

    def find(self, registers: Registers) -> Interrupted | None:
        """The call that *registers* are in; its number is -1 where that is unknown. None: in none."""
        call = self._machine.interrupted(registers, self._memory.read)
        if call is None or call.number != self._machine.restart:
            return call
        return replace(call, number=self._restarted(registers, call))

    def _restarted(self, registers: Registers, call: Interrupted) -> int:
        """Before glibc 2.41 the number is in the instruction before the call. Since then one function makes
        all cancellable calls, and its caller decides: the kernel restarts only these and a futex in this way.
        """
        number = self._machine.restarted_number(registers, self._memory.read)
        if number is not None:
            return number
        try:
            function = self.unwinder.function(self._machine.after_eintr(registers, call))
        except UnsafeToAttach:
            return -1
        return -1 if function is None else self._by_function.get(function, self._machine.futex)


# ---- waits without a deadline ----


def name_of(number: int) -> str:
    """Of a call that a thread may wait in; "" for others."""
    return next((name for name, each in this_machine().syscalls.items() if each == number), "")


def lasts(number: int, arguments: Sequence[int], memory: TargetMemory) -> bool:
    """Whether that call waits until its event comes, with the thread's own signal mask."""
    third, fourth, fifth, sixth = arguments[2:6]
    match name_of(number):
        case "read" | "accept" | "recvfrom" | "recvmsg" | "accept4":
            return True
        case "poll":
            return signed(third, 32) < 0
        case "ppoll":  # timeout, mask
            return third == 0 and fourth == 0
        case "select":
            return fifth == 0
        case "pselect6":  # timeout, and the address of the mask's address
            return fifth == 0 and (sixth == 0 or memory.uint64(sixth) == 0)
        case "epoll_wait":
            return signed(fourth, 32) < 0
        case "epoll_pwait":
            return signed(fourth, 32) < 0 and fifth == 0
        case "epoll_pwait2":
            return fourth == 0 and fifth == 0
    return False


def may_repeat(number: int, result: int) -> bool:
    """Whether a wait that was interrupted with *result* has no deadline that its arguments do not show."""
    return this_machine().may_repeat(name_of(number), result)


def keeps_first_argument(pid: int, number: int, descriptor: int) -> bool:
    """Whether a call's first argument can be told once it was interrupted, on a machine that may lose it.

    That of an epoll wait can, where the process has only one epoll. Others are lost only with a deadline.
    """
    name = name_of(number)
    if name in _EPOLL:
        return _epolls(pid) == [descriptor]
    return name not in (*_SOCKETS, "read") or not _has_deadline(pid, descriptor)


def _epolls(pid: int) -> list[int]:
    with suppress(OSError), ProcessFolder("/proc", pid) as folder:
        names = folder.names("fd")
        return [int(name) for name in names if folder.link(f"fd/{name}") == b"anon_inode:[eventpoll]"]
    return []


def _has_deadline(pid: int, descriptor: int) -> bool:
    """Whether it is a socket with SO_RCVTIMEO; assumed where that cannot be found out."""
    try:
        if not os.readlink(f"/proc/{pid}/fd/{descriptor}").startswith("socket:"):
            return False
        call = ctypes.CDLL(None, use_errno=True).syscall
        process = os.pidfd_open(pid)
        try:
            copied = call(_PIDFD_GETFD, process, descriptor, 0)
        finally:
            os.close(process)
        if copied < 0:
            return True
        with socket.socket(fileno=copied) as theirs:
            return any(theirs.getsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, 16))
    except OSError:
        return True


def preference(number: int) -> int:
    """Smallest first: how a wait bears being interrupted by who dies before it can be repeated.

    The kernel itself repeats the first ones. epoll_wait would return EINTR, and so would a socket that has a
    deadline.
    """
    order = {"poll": 0, "ppoll": 0, "select": 1, "pselect6": 1, "read": 2, **dict.fromkeys(_SOCKETS, 3)}
    return order.get(name_of(number), 4)


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


def is_pipe_or_terminal(pid: int, descriptor: int) -> bool:
    """Whether reads of that file are restarted by the kernel: not so with inotify and some devices."""
    try:
        name = os.readlink(f"/proc/{pid}/fd/{descriptor}")
    except OSError:
        return False
    return name.startswith(("pipe:", "socket:", "anon_inode:[eventfd]", "/dev/pts/", "/dev/tty"))
