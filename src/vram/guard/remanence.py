"""``vram.remanence_test()``: how much of its last owner's data memory on this machine still contains.

Random bytes are written, read back (a test that cannot find them proves nothing), freed, and searched for in
the next allocation: inside this process, and after a second process that is killed.
"""

from __future__ import annotations

import ctypes
import secrets
import subprocess
import sys
from collections.abc import Iterator
from ctypes import byref, c_int, c_size_t, c_ubyte, c_uint64, c_void_p, create_string_buffer
from threading import Timer
from typing import Any

from vram.errors import DeviceError, UsageError, VramError
from vram.guard.borrowed import erase
from vram.guard.dlpack import ArrayLayout
from vram.guard.driver import CudaDriver, driver
from vram.model.leak import Remanence, Trial
from vram.payloads import command
from vram.units import MIB, read_size

# ---- a process that is killed ----

DEADLINE_S = 60.0


def fill_in_killed_process(device: int, nbytes: int, pattern: bytes) -> int:
    """Let another process write *pattern* over *nbytes* and kill it; returns how many it read back."""
    figures = (device, nbytes // len(pattern), len(pattern))
    words = command("device_memory", "fill", *map(str, figures))
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(words, **pipes) as process:  # type: ignore[call-overload]
        too_late = Timer(DEADLINE_S, process.kill)
        too_late.start()
        try:
            process.stdin.write(pattern)
            process.stdin.flush()
            answer = process.stdout.readline()
        except BrokenPipeError:
            answer = b""
        finally:
            too_late.cancel()
            process.kill()
        complaint = process.stderr.read().decode(errors="replace").strip().rpartition("\n")[2]
    if not answer:
        raise DeviceError(f"the other process did not answer: {complaint or 'no reason given'}")
    return int(answer)


# ---- where memory comes from ----

RELEASE_THRESHOLD = 4
PINNED_TYPE, ON_DEVICE = 1, 1
KEEP_ALL = 2**64 - 1


class _PoolProperties(ctypes.Structure):
    _fields_ = (
        ("type", c_int),
        ("handle_types", c_int),
        ("location_type", c_int),
        ("location", c_int),
        ("security", c_void_p),
        ("max_nbytes", c_size_t),
        ("reserved", c_ubyte * 56),
    )


class MemorySource:
    """One way to allocate memory; at most one allocation at a time."""

    name = ""

    def __init__(self, cuda: CudaDriver, device: int) -> None:
        self._cuda, self.device = cuda, device
        self._pointer: int | None = None

    def refusal(self) -> str | None:
        """Why nothing can be measured; None if it can."""
        return None

    def allocate(self, nbytes: int) -> int:
        raise NotImplementedError

    def free(self) -> None:
        raise NotImplementedError

    def close(self) -> None:
        if self._pointer is not None:
            self.free()


class PlainSource(MemorySource):
    name = "plain allocations"

    def allocate(self, nbytes: int) -> int:
        pointer = c_uint64()
        self._cuda.must("cuMemAlloc_v2", byref(pointer), nbytes)
        self._pointer = pointer.value
        return pointer.value

    def free(self) -> None:
        pointer, self._pointer = self._pointer, None
        self._cuda.must("cuMemFree_v2", pointer)


class SmallSource(PlainSource):
    """Pieces that share a page of 2 MiB with one that lives. Allocated again, they are as they were."""

    name = "plain allocations of up to 1 MiB, beside a living one"

    def __init__(self, cuda: CudaDriver, device: int) -> None:
        super().__init__(cuda, device)
        self._neighbour: int | None = None

    def allocate(self, nbytes: int) -> int:
        if self._neighbour is None:
            pointer = c_uint64()
            self._cuda.must("cuMemAlloc_v2", byref(pointer), NEIGHBOUR)
            self._neighbour = pointer.value
        return super().allocate(nbytes)

    def close(self) -> None:
        super().close()
        if self._neighbour is not None:
            self._cuda.must("cuMemFree_v2", self._neighbour)


class PoolSource(MemorySource):
    """A pool of the test's own, so that the program's pool does not change."""

    name = "stream-ordered pool"

    def __init__(self, cuda: CudaDriver, device: int) -> None:
        super().__init__(cuda, device)
        self._pool = c_void_p()

    def allocate(self, nbytes: int) -> int:
        if not self._pool:
            asked = _PoolProperties(type=PINNED_TYPE, location_type=ON_DEVICE, location=self.device)
            self._cuda.must("cuMemPoolCreate", byref(self._pool), byref(asked))
            self._cuda.must("cuMemPoolSetAttribute", self._pool, RELEASE_THRESHOLD, byref(c_uint64(KEEP_ALL)))
        pointer = c_uint64()
        self._cuda.must("cuMemAllocFromPoolAsync", byref(pointer), nbytes, self._pool, None)
        self._cuda.must("cuStreamSynchronize", None)
        self._pointer = pointer.value
        return pointer.value

    def free(self) -> None:
        pointer, self._pointer = self._pointer, None
        self._cuda.must("cuMemFreeAsync", pointer, None)
        self._cuda.must("cuStreamSynchronize", None)

    def close(self) -> None:
        super().close()
        if self._pool:
            self._cuda.must("cuMemPoolDestroy", self._pool)


class TorchCacheSource(MemorySource):
    name = "PyTorch's cache"

    def __init__(self, cuda: CudaDriver, device: int) -> None:
        super().__init__(cuda, device)
        self._torch = sys.modules.get("torch")
        self._tensor: Any = None

    def refusal(self) -> str | None:
        cuda = getattr(self._torch, "cuda", None)
        if cuda is None:
            return "PyTorch is not loaded in this process"
        return None if cuda.is_initialized() else "PyTorch has not used a GPU in this process"

    def allocate(self, nbytes: int) -> int:
        torch: Any = self._torch
        self._tensor = torch.empty(nbytes, dtype=torch.uint8, device=f"cuda:{self.device}")
        torch.cuda.synchronize(self.device)
        self._pointer = int(self._tensor.data_ptr())
        return self._pointer

    def free(self) -> None:
        self._tensor = self._pointer = None


# ---- the test ----

BLOCK = MIB
NEIGHBOUR = 256
LINE = 64  # parts of a block that moved are found by lines of this size
MAX_NBYTES = 256 * MIB
TOO_LITTLE = f"less than {4 * LINE} bytes are free"
COMPUTE_MODE, ECC_ENABLED = 20, 32
MODES = {0: "default compute mode", 2: "prohibited compute mode", 3: "exclusive compute mode"}


def remanence_test(nbytes: int | str = MAX_NBYTES, *, device: int | None = None) -> Remanence:
    """Measure on *device* with at most *nbytes* for each kind of memory, and a quarter of what is free."""
    asked = read_size(nbytes, "nbytes")
    if asked < LINE:
        raise UsageError(f"a remanence test of {nbytes!r}", hint=f"give {LINE}B or more")
    cuda = driver()
    with cuda.on_device(None if device is None else cuda.check_device(device)) as number:
        free, _ = cuda.free_and_total()
        sampled = min(asked, free // 4)
        trials = tuple(_trials(cuda, number, sampled))
        return Remanence(
            gpu=_name(cuda, number),
            driver=_version(cuda),
            mode=_mode(cuda, number),
            total=_total(cuda, number),
            trials=trials,
        )


def _trials(cuda: CudaDriver, device: int, nbytes: int) -> Iterator[Trial]:
    pattern = secrets.token_bytes(BLOCK)
    small = min(nbytes, BLOCK) // LINE * LINE
    whole = nbytes // BLOCK * BLOCK or small
    for kind in (PlainSource, SmallSource, PoolSource, TorchCacheSource):
        for erased in (False, True):
            name = f"{kind.name}, erased before the free" if erased else kind.name
            # Large plain memory is erased by the driver: measured as it is, and no more.
            if not (erased and kind is PlainSource):
                sampled = small if kind is SmallSource else whole
                yield _trial(cuda, kind(cuda, device), name, sampled, pattern, erased=erased)
    yield _after_another_process(cuda, device, whole, pattern)


def _trial(
    cuda: CudaDriver, source: MemorySource, name: str, nbytes: int, pattern: bytes, *, erased: bool
) -> Trial:
    reason = TOO_LITTLE if nbytes < LINE else source.refusal()
    if reason is not None:
        return Trial(source=name, skipped=reason)
    try:
        first = source.allocate(nbytes)
        for at in range(0, nbytes, BLOCK):
            cuda.must("cuMemcpyHtoD_v2", first + at, pattern, min(BLOCK, nbytes - at))
        control, _ = _count(cuda, first, nbytes, pattern)
        if erased:
            erase(cuda, first, source.device, ArrayLayout((nbytes,)))  # as vram.scrub does
        source.free()
        second = source.allocate(nbytes)
        found, nonzero = _count(cuda, second, nbytes, pattern)
        source.free()
    except (VramError, RuntimeError) as error:  # PyTorch's out of memory is a RuntimeError
        return Trial(source=name, skipped=str(error).partition("\n")[0])
    finally:
        source.close()
    return Trial(
        source=name,
        sampled=nbytes,
        control=control,
        found=found,
        nonzero=nonzero,
        same_address=first == second,
    )


def _after_another_process(cuda: CudaDriver, device: int, nbytes: int, pattern: bytes) -> Trial:
    name, source = "plain allocations, after a killed process", PlainSource(cuda, device)
    if nbytes < LINE:
        return Trial(source=name, skipped=TOO_LITTLE)
    try:
        control = fill_in_killed_process(device, nbytes, pattern[:nbytes])
        found, nonzero = _count(cuda, source.allocate(nbytes), nbytes, pattern)
        return Trial(source=name, sampled=nbytes, control=control, found=found, nonzero=nonzero)
    except (VramError, OSError) as error:
        return Trial(source=name, skipped=str(error))
    finally:
        source.close()


def _count(cuda: CudaDriver, pointer: int, nbytes: int, pattern: bytes) -> tuple[int, int]:
    """How many bytes of *pattern* are there, and how many bytes that are not zero."""
    host, zeros = create_string_buffer(BLOCK), bytes(BLOCK)
    found = nonzero = 0
    for at in range(0, nbytes, BLOCK):
        length = min(BLOCK, nbytes - at)
        cuda.must("cuMemcpyDtoH_v2", host, pointer + at, length)
        block = host.raw[:length]
        if block != zeros[:length]:
            is_whole = block == pattern[:length]
            found += length if is_whole else _lines(block, pattern)
            nonzero += length if is_whole else length - block.count(0)
    return found, nonzero


def _lines(block: bytes, pattern: bytes) -> int:
    known = {pattern[at : at + LINE] for at in range(0, len(pattern), LINE)}
    return sum(LINE for at in range(0, len(block), LINE) if block[at : at + LINE] in known)


# ---- what the result applies to ----


def _name(cuda: CudaDriver, device: int) -> str:
    text = create_string_buffer(256)
    cuda.must("cuDeviceGetName", text, len(text), device)
    return text.value.decode(errors="replace")


def _total(cuda: CudaDriver, device: int) -> int:
    number = c_size_t()
    cuda.must("cuDeviceTotalMem_v2", byref(number), device)
    return number.value


def _mode(cuda: CudaDriver, device: int) -> str:
    words = [MODES.get(_attribute(cuda, COMPUTE_MODE, device), "unknown compute mode")]
    words.append("ECC on" if _attribute(cuda, ECC_ENABLED, device) else "ECC off")
    return ", ".join(words)


def _attribute(cuda: CudaDriver, attribute: int, device: int) -> int:
    number = c_int()
    cuda.must("cuDeviceGetAttribute", byref(number), attribute, device)
    return number.value


def _version(cuda: CudaDriver) -> str:
    """The driver's version by NVML; else the CUDA version that it supports."""
    import pynvml

    try:
        pynvml.nvmlInit()
        version = str(pynvml.nvmlSystemGetDriverVersion())
        pynvml.nvmlShutdown()
        return version
    except pynvml.NVMLError:
        number = c_int()
        cuda.must("cuDriverGetVersion", byref(number))
        return f"for CUDA {number.value // 1000}.{number.value % 1000 // 10}"
