"""What every machine can tell and do; the words in which the rest of :mod:`vram.reach` speaks of it."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from msgspec import Struct

from vram.payloads import ptrace

Registers = dict[str, int]
Read = Callable[[int, int], bytes]
"""Of the process's memory: an address and a number of bytes."""

EINTR = -4
RESTART_SYS, RESTART_NO_INTR, RESTART_NO_HANDLER, RESTART_BLOCK = -512, -513, -514, -516
INTERRUPTED = (EINTR, RESTART_SYS, RESTART_NO_INTR, RESTART_NO_HANDLER, RESTART_BLOCK)
"""What the kernel has as the result of a system call while that is interrupted."""

NO_SUCH_STACK = 0xFF
"""In a signal frame, invalid on purpose: the thread's own alternate stack stays as it is."""

_GETREGSET, _SETREGSET = 0x4204, 0x4205


class Call(Struct, frozen=True):
    """A function that a thread shall call. TEXT among its arguments is the address of a text."""

    function: int
    arguments: tuple[int, ...] = ()


TEXT = -1


class ChainCode(Struct, frozen=True):
    """Where a process has the instructions that lead from one function to the next, and back."""

    signal_return: int
    pop: tuple[int, ...] = ()
    """Those that take the first arguments from the stack, where arguments lie there."""


class Detour(Struct, frozen=True):
    """Sends a thread through some functions and back: bytes for its stack, and registers to begin with."""

    begins: int
    data: bytes
    registers: Registers


class Interrupted(Struct, frozen=True):
    """The system call that a stopped thread is in. ``first_known``: arguments[0] is the one of the call."""

    number: int
    arguments: tuple[int, ...]
    result: int
    first_known: bool = True


class Frames(Struct, frozen=True):
    """How call frames are unwound: the names of registers here, and DWARF's numbers for them."""

    pc: str
    sp: str
    fp: str
    sp_number: int
    fp_number: int
    return_number: int
    return_register: str | None
    """Has the return address when a function begins; None: that lies right below the end of the frame."""
    significant: int
    """The bits of a return address that are one: the others may hold a signature."""


class Machine(Protocol):
    """One kind of processor, as Linux shows it."""

    name: str
    elf_machine: int
    syscalls: Mapping[str, int]
    """By name, those during which a thread holds nothing but what the call itself waits for."""
    futex: int
    restart: int
    frames: Frames
    loses_first_argument: bool
    """Of a call that returns EINTR."""

    def registers(self, tid: int) -> Registers: ...

    def set_registers(self, tid: int, values: Registers) -> None: ...

    def floating_point(self, tid: int) -> bytes: ...

    def thread_pointer(self, registers: Registers) -> int:
        """Where the C library's record of the thread is, or ends."""
        ...

    def belongs_to(self, registers: Registers, thread: int, record_nbytes: int | None) -> bool:
        """Whether they are those of the thread that pthread_self() calls *thread*."""
        ...

    def interrupted(self, registers: Registers, read: Read) -> Interrupted | None:
        """The system call that they are in; None where they are in none that was interrupted."""
        ...

    def made_as_usual(self, registers: Registers, read: Read) -> bool:
        """Whether the call in which they are was made by the one instruction for it."""
        ...

    def restarted_number(self, registers: Registers, read: Read) -> int | None:
        """The number in the instruction before the call; None where it is not there."""
        ...

    def may_repeat(self, name: str, result: int) -> bool:
        """Whether that call, interrupted with *result*, has no deadline that its arguments do not show.

        Sockets with SO_RCVTIMEO and a few devices answer EINTR instead of being restarted.
        """
        ...

    def waits_for_futex(self, call: Interrupted) -> bool:
        """Whether a futex call waits: one that is about to wake somebody up must be made."""
        ...

    def after_eintr(self, registers: Registers, call: Interrupted) -> Registers:
        """So that the call returns as after a signal."""
        ...

    def repeating(self, registers: Registers, call: Interrupted) -> Registers:
        """So that the thread makes the call once more, exactly as it was."""
        ...

    def find_chain_code(self, find: Callable[[bytes], int | None]) -> ChainCode | None:
        """*find*: the first place of some instructions in the C library and the kernel's own page."""
        ...

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
        """Through *calls*, and then on with *restored*."""
        ...

    def has_shadow_stack(self, tid: int) -> bool:
        """Whether return addresses are checked by a second stack; assumed where unknown. It is stopped."""
        ...


class _Area(ctypes.Structure):
    _fields_ = (("address", ctypes.c_void_p), ("nbytes", ctypes.c_size_t))


def read_register_set(tid: int, kind: int, nbytes: int) -> bytes:
    """A set of registers of a stopped thread. Raises OSError where the kernel has none of that kind."""
    buffer = ctypes.create_string_buffer(nbytes)
    area = _Area(ctypes.addressof(buffer), nbytes)
    ptrace.request(_GETREGSET, tid, kind, area)
    return buffer.raw[: area.nbytes]


def write_register_set(tid: int, kind: int, data: bytes) -> None:
    buffer = ctypes.create_string_buffer(data, len(data))
    ptrace.request(_SETREGSET, tid, kind, _Area(ctypes.addressof(buffer), len(data)))
