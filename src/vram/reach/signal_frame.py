"""Have a thread that waits in a system call run some functions, by the frame that a signal would have had.

On its stack, below what it uses, is built what the kernel would build for a signal: all its registers, its
signal mask and its floating-point state. Below that lies a chain of return addresses: the functions, with
their arguments, and last the C library's own return from a signal. Setting the thread's registers is the one
step that decides. From there on it does everything by itself, and is then where it was.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence

from msgspec import Struct

from vram.payloads.procfs import read_status
from vram.reach.elf import ElfImage

RED_ZONE = 128
EINTR = -4
_POP_RDI_RET, _POP_RSI_RET = b"\x5f\xc3", b"\x5e\xc3"
_SIGNAL_RETURN = b"\x48\xc7\xc0\x0f\x00\x00\x00\x0f\x05"
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


class ChainCode(Struct, frozen=True):
    """Where the C library has the instructions that a chain needs."""

    pop_rdi: int
    pop_rsi: int
    signal_return: int

    @property
    def ret(self) -> int:
        return self.pop_rdi + 1


def find_chain_code(libc: Sequence[ElfImage]) -> ChainCode | None:
    found = [_first(libc, code) for code in (_POP_RDI_RET, _POP_RSI_RET, _SIGNAL_RETURN)]
    return None if None in found else ChainCode(*(each for each in found if each is not None))


class SignalFrame(Struct, frozen=True):
    """Bytes for the stack, the address where they begin, and that of the text among them."""

    begins: int
    data: bytes


def build(
    registers: dict[str, int],
    restored: dict[str, int],
    floating: bytes,
    mask: int,
    chain: Callable[[int], Sequence[int]],
    text: bytes = b"",
) -> SignalFrame:
    """The frame that runs *chain*, which is given the address of *text*, and then restores *restored*.

    The first word is 8 off a multiple of 16, as the stack is when a function begins.
    """
    at_text = (registers["rsp"] - RED_ZONE - len(text)) & ~15
    at_floating = (at_text - 512) & ~63
    words = chain(at_text)
    begins = ((at_floating - _CONTEXT.size - 8 * len(words)) & ~15) - 8
    context = _context(restored, at_floating, mask)
    data = struct.pack(f"<{len(words)}Q", *words) + context
    data = data.ljust(at_floating - begins, b"\0") + floating[:_FLOATING_NBYTES].ljust(512, b"\0")
    return SignalFrame(begins, data.ljust(at_text - begins, b"\0") + text)


def _context(restored: dict[str, int], at_floating: int, mask: int) -> bytes:
    stack = (0, _NO_SUCH_STACK, 0, 0)
    segments = (restored["cs"] & 0xFFFF, 0, 0, restored["ss"] & 0xFFFF)
    words = (restored[name] & (1 << 64) - 1 for name in _SAVED)
    return _CONTEXT.pack(
        _STRICT_STACK_SEGMENT, 0, *stack, *words, *segments, 0, 0, 0, 0, at_floating, *([0] * 8), mask
    )


def _first(libraries: Sequence[ElfImage], code: bytes) -> int | None:
    return next(filter(None, (each.find_code(code) for each in libraries)), None)


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


def has_shadow_stack(tid: int) -> bool:
    """Whether the thread's return addresses are checked against a second stack; assumed where unknown."""
    lines = read_status(tid)
    return not lines or b"shstk" in lines.get(b"x86_Thread_features", b"")
