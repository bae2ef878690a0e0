"""``vram.remanence_test()``: what memory on this machine still shows of its last owner.

Random bytes are written, read back (the positive control: a test that cannot find them proves
nothing), given back, and looked for in what is handed out next: inside this process, and after a
process of its own that it kills. It covers one GPU, by the bytes it samples; not registers, shared
memory or libraries' workspaces.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from ctypes import byref, c_int, c_size_t, create_string_buffer

from vram.errors import UsageError, VramError
from vram.guard.driver import Driver, driver
from vram.guard.elsewhere import left_by_a_killed_process
from vram.guard.places import Place, Plain, Pool, TorchCache
from vram.guard.scrub import scrub
from vram.model.remanence import Remanence, Trial
from vram.units import MIB, parse_size

BLOCK = MIB
LINE = 64  # what is left of a block that moved is told by pieces of this size
LARGEST = 256 * MIB
TOO_LITTLE = "less than 4 MiB are free"
COMPUTE_MODE, ECC_ENABLED = 20, 32
MODES = {0: "default compute mode", 2: "prohibited compute mode", 3: "exclusive compute mode"}


def remanence_test(nbytes: int | str = LARGEST, *, device: int | None = None) -> Remanence:
    """Measure on *device* with at most *nbytes* for each kind of memory, and a quarter of what is free."""
    asked = parse_size(nbytes) if isinstance(nbytes, str) else nbytes
    if isinstance(asked, bool) or not isinstance(asked, int) or asked < BLOCK:
        raise UsageError(f"a remanence test of {nbytes!r}", hint="it samples whole MiB: 1MiB or more")
    cuda = driver()
    with cuda.on_device(None if device is None else cuda.check_device(device)) as number:
        free, _ = cuda.free_and_total()
        sampled = min(asked, free // 4) // BLOCK * BLOCK
        trials = tuple(_trials(cuda, number, sampled))
        return Remanence(
            gpu=_name(cuda, number),
            driver=_version(cuda),
            mode=_mode(cuda, number),
            total=_total(cuda, number),
            trials=trials,
        )


def _trials(cuda: Driver, device: int, nbytes: int) -> Iterator[Trial]:
    pattern = secrets.token_bytes(BLOCK)
    for kind in (Plain, Pool, TorchCache):
        for erased in (False, True):
            name = f"{kind.name}, erased before the free" if erased else kind.name
            # Plain memory is the driver's to erase: measured as it is, and no more.
            if not (erased and kind is Plain):
                yield _trial(cuda, kind(cuda, device), name, nbytes, pattern, erased=erased)
    yield _after_another_process(cuda, device, nbytes, pattern)


def _trial(cuda: Driver, place: Place, name: str, nbytes: int, pattern: bytes, *, erased: bool) -> Trial:
    reason = TOO_LITTLE if nbytes < BLOCK else place.refusal()
    if reason is not None:
        return Trial(place=name, skipped=reason)
    try:
        return _measured(cuda, place, name, nbytes, pattern, erased=erased)
    except (VramError, RuntimeError) as error:  # PyTorch's out of memory is a RuntimeError
        return Trial(place=name, skipped=str(error).partition("\n")[0])
    finally:
        place.close()


def _measured(cuda: Driver, place: Place, name: str, nbytes: int, pattern: bytes, *, erased: bool) -> Trial:
    first = place.take(nbytes)
    for at in range(0, nbytes, BLOCK):
        cuda.must("cuMemcpyHtoD_v2", first + at, pattern, BLOCK)
    control, _ = _look(cuda, first, nbytes, pattern)
    if erased:
        scrub(place.array(nbytes))
    place.give()
    second = place.take(nbytes)
    found, nonzero = _look(cuda, second, nbytes, pattern)
    place.give()
    return Trial(
        place=name,
        sampled=nbytes,
        control=control,
        found=found,
        nonzero=nonzero,
        same_address=first == second,
    )


def _after_another_process(cuda: Driver, device: int, nbytes: int, pattern: bytes) -> Trial:
    name, place = "plain allocations, after a killed process", Plain(cuda, device)
    if nbytes < BLOCK:
        return Trial(place=name, skipped=TOO_LITTLE)
    try:
        control = left_by_a_killed_process(device, nbytes, pattern)
        found, nonzero = _look(cuda, place.take(nbytes), nbytes, pattern)
        return Trial(place=name, sampled=nbytes, control=control, found=found, nonzero=nonzero)
    except (VramError, OSError) as error:
        return Trial(place=name, skipped=str(error))
    finally:
        place.close()


def _look(cuda: Driver, pointer: int, nbytes: int, pattern: bytes) -> tuple[int, int]:
    """How many bytes of *pattern* lie there, and how many that are not zero."""
    host, zeros = create_string_buffer(BLOCK), bytes(BLOCK)
    found = nonzero = 0
    for at in range(0, nbytes, BLOCK):
        cuda.must("cuMemcpyDtoH_v2", host, pointer + at, BLOCK)
        block = host.raw
        if block != zeros:
            found += BLOCK if block == pattern else _lines(block, pattern)
            nonzero += BLOCK if block == pattern else BLOCK - block.count(0)
    return found, nonzero


def _lines(block: bytes, pattern: bytes) -> int:
    known = {pattern[at : at + LINE] for at in range(0, BLOCK, LINE)}
    return sum(LINE for at in range(0, BLOCK, LINE) if block[at : at + LINE] in known)


# ---- the scope of what is said ----


def _name(cuda: Driver, device: int) -> str:
    text = create_string_buffer(256)
    cuda.must("cuDeviceGetName", text, len(text), device)
    return text.value.decode(errors="replace")


def _total(cuda: Driver, device: int) -> int:
    number = c_size_t()
    cuda.must("cuDeviceTotalMem_v2", byref(number), device)
    return number.value


def _mode(cuda: Driver, device: int) -> str:
    words = [MODES.get(_attribute(cuda, COMPUTE_MODE, device), "unknown compute mode")]
    words.append("ECC on" if _attribute(cuda, ECC_ENABLED, device) else "ECC off")
    return ", ".join(words)


def _attribute(cuda: Driver, attribute: int, device: int) -> int:
    number = c_int()
    cuda.must("cuDeviceGetAttribute", byref(number), attribute, device)
    return number.value


def _version(cuda: Driver) -> str:
    """The driver's own, where NVML tells it; else the CUDA version that it speaks."""
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
