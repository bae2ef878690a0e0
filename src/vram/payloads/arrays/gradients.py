"""PyTorch's gradients, read as memory: to ask a tensor for its ``.grad`` can end the program.

``weight.grad = None``, which every optimizer's ``zero_grad()`` does, frees the gradient and, in the middle of
that, lets other threads run, while the weight still points to what is being freed. A thread that asks for
``weight.grad`` at that moment gets a tensor whose memory is gone, and the program dies of SIGSEGV. (PyTorch
2.8 and 2.11: within 20 seconds where a thread does nothing else, and two of three trainings that were looked
into for as long. Threads of C++ replace gradients without the interpreter's lock, too.)

So nothing of PyTorch is called for it. Where its structures have the address of a gradient, and of a
gradient's memory, is learned from tensors that are made here. Then those words are read by a system call,
which fails where a pointer would end the program, and read again: what has changed meanwhile is left out. The
worst that can come of it is a wrong line in a table.
"""

from __future__ import annotations

import ctypes
import errno
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from ctypes import c_int, c_ssize_t, c_ulong, c_void_p
from typing import Any, Optional

from .record import Struct

WORD = 8
AT_ONCE = 1024  # ranges for one process_vm_readv(), by the kernel's own limit
SEARCHED = 40  # words of a structure: TensorImpl has about 25
# Two samples, of sizes that nothing else has: what is found in both is no chance.
SAMPLES = (1_237, 1_741)


class Gradient(Struct, frozen=True, gc=False):
    """A gradient as PyTorch holds it. ``key``: the ``id`` of its Python object, or its own address if it has
    none. ``pointer`` and ``nbytes`` are those of the memory that it keeps."""

    key: int
    pointer: int
    nbytes: int


class TensorLayout(Struct, frozen=True, gc=False):
    """Where PyTorch's structures have what is needed: offsets, and how "no gradient" is written."""

    meta: int
    gradient: int
    undefined: int
    storage: int
    object: int
    pointer: int
    nbytes: int

    def read(self, tensors: Iterable[int]) -> list[Optional[Gradient]]:
        """The gradient of each of *tensors*, which are addresses (``_cdata``) and must be alive."""
        metas = read_words([at + self.meta for at in tensors])
        places = [at and at + self.gradient for at in metas]
        gradients = [0 if at == self.undefined else at for at in read_words(places)]
        # Before 2.10 the lowest bit of an object's address says who owns it.
        objects = [at & ~1 for at in read_words([at and at + self.object for at in gradients])]
        storages = read_words([at and at + self.storage for at in gradients])
        pointers = read_words([at and at + self.pointer for at in storages])
        sizes = read_words([at and at + self.nbytes for at in storages])
        again = read_words(places)
        return [
            Gradient(known or at, pointer, nbytes) if at and pointer and at == now else None
            for at, known, pointer, nbytes, now in zip(gradients, objects, pointers, sizes, again)
        ]


# ---- learning the layout ----

_learned: dict[str, Optional[TensorLayout]] = {}


def tensor_layout(torch: Any) -> Optional[TensorLayout]:
    """The layout of this PyTorch; None where it could not be learned: then gradients are not known."""
    version = str(torch.__version__)
    if version not in _learned:
        try:
            with ExitStack() as stack:
                for guard in _guards(torch):
                    stack.enter_context(guard)
                _learned[version] = _learn(torch)
        except Exception:  # a version that is built differently, or a system call that is forbidden
            _learned[version] = None
    return _learned[version]


def _guards(torch: Any) -> Iterator[Any]:
    """So that it is plain tensors that are made, whatever the program has switched on."""
    yield torch._C.DisableTorchFunction()
    yield torch._C._DisableTorchDispatch()
    yield torch.inference_mode(False)


def _learn(torch: Any) -> TensorLayout:
    """Raises ValueError where something is not found, and what PyTorch raises."""
    kind = torch._C.TensorBase
    leaves, gradients = [], []
    for count in SAMPLES:
        leaf = torch.empty(count, dtype=torch.float32, device="cpu", requires_grad=True)
        gradient = torch.empty(count, dtype=torch.float32, device="cpu")
        kind.grad.__set__(leaf, gradient)
        leaves.append(leaf)
        gradients.append(gradient)
    without = torch.empty(1, dtype=torch.float32, device="cpu", requires_grad=True)

    storages = [each.untyped_storage() for each in gradients]
    tensors = [each._cdata for each in gradients]
    meta, gradient_at = _in_all(_paths(leaf._cdata, to) for leaf, to in zip(leaves, tensors))
    [own_meta] = read_words([without._cdata + meta])
    [undefined] = read_words([own_meta + gradient_at])
    memories = [each._cdata for each in storages]
    return TensorLayout(
        meta,
        gradient_at,
        undefined,
        _in_all(map(_offsets, tensors, memories)),
        _in_all(map(_offsets, tensors, map(id, gradients))),
        _in_all(map(_offsets, memories, (each.data_ptr() for each in storages))),
        _in_all(map(_offsets, memories, (each.nbytes() for each in storages))),
    )


def _in_all(found: Iterable[set[Any]]) -> Any:
    """The first place that is in each of *found*: what lies behind a structure comes after it."""
    return min(set.intersection(*found))


def _offsets(at: int, wanted: int) -> set[int]:
    """Where the structure at *at* has the word *wanted*."""
    words = read_words(range(at, at + SEARCHED * WORD, WORD))
    return {number * WORD for number, word in enumerate(words) if word == wanted}


def _paths(at: int, wanted: int) -> set[tuple[int, int]]:
    """(offset, offset): the structure at *at* points to one that has the word *wanted*."""
    words = read_words(range(at, at + SEARCHED * WORD, WORD))
    pointers = [(number * WORD, word) for number, word in enumerate(words) if word % WORD == 0 and word]
    return {(offset, inner) for offset, word in pointers for inner in _offsets(word, wanted)}


# ---- reading memory of this process ----

# By PyDLL: no other thread of Python runs during the call, nor has to be waited for after it.
_read = ctypes.PyDLL(None, use_errno=True).process_vm_readv
_read.argtypes = [c_int, c_void_p, c_ulong, c_void_p, c_ulong, c_ulong]
_read.restype = c_ssize_t


def read_words(addresses: Sequence[int]) -> list[int]:
    """The word at each address; 0 where there is none. Raises OSError where it is not permitted."""
    # What was read from memory that is being freed may be any number.
    addresses = [at if 0 < at < _LAST_ADDRESS else 0 for at in addresses]
    waiting = [at for at in addresses if at]
    words: list[int] = []
    while len(words) < len(waiting):
        some = waiting[len(words) : len(words) + AT_ONCE]
        # As bytes: what ctypes, struct or array would make of them leaves a class or a cache behind.
        buffer = ctypes.create_string_buffer(len(some) * WORD)
        here = _word(ctypes.addressof(buffer)) + _word(len(buffer))
        length = _word(WORD)
        ranges = b"".join([_word(at) + length for at in some])
        count = _read(os.getpid(), here, 1, ranges, len(some), 0)
        if count < 0 and ctypes.get_errno() != errno.EFAULT:
            raise OSError(ctypes.get_errno(), "process_vm_readv")
        words += memoryview(buffer.raw[: max(0, count)]).cast("Q")
        if count < len(buffer):
            words.append(0)  # it stops at the first address that is none
    found = iter(words)
    return [next(found) if at else 0 for at in addresses]


_LAST_ADDRESS = 1 << 63


def _word(number: int) -> bytes:
    return number.to_bytes(WORD, sys.byteorder)
