"""PyTorch is looked into while it trains: what would end it is not done, and what is there is still found."""

from __future__ import annotations

import ctypes
import mmap
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from tests.faults.record import Tally
from tests.inside.conftest import PROGRAMS
from tests.needs import is_installed, needs
from tests.patience import PATIENCE_S
from tests.search_path import search_path
from vram.payloads.arrays import gradients
from vram.payloads.arrays.gradients import read_words, tensor_layout
from vram.payloads.tracked_objects import tracked_objects, types_owned_elsewhere
from vram.payloads.trim.threads import do_while_others_sleep
from vram.virtualgpu import VirtualGpu

LOOKS = int(os.environ.get("VRAM_LOOKS", "10"))
PYTHON_WITH_TORCH = os.environ.get("VRAM_PYTHON_WITH_TORCH") or (
    sys.executable if is_installed("torch") else None
)


@pytest.fixture
def stand_ins(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """What the programs here have for PyTorch."""
    monkeypatch.syspath_prepend(str(PROGRAMS))
    import stand_ins

    before = {name: sys.modules.get(name) for name in ("torch", "torch.cuda", "torch.optim.optimizer")}
    gradients._learned.clear()
    yield stand_ins
    gradients._learned.clear()
    for name, module in before.items():
        if module is None:
            sys.modules.pop(name, None)
        else:
            sys.modules[name] = module


# ---- gradients, read as memory ----


@pytest.mark.fault(38)
def test_the_layout_is_learned(stand_ins: Any) -> None:
    layout = tensor_layout(stand_ins.torch())
    assert layout is not None
    tensor, meta, storage = stand_ins.NativeTensor, stand_ins.NativeMeta, stand_ins.NativeStorage
    assert (layout.meta, layout.storage, layout.object) == (
        tensor.meta.offset,
        tensor.storage.offset,
        tensor.object.offset,
    )
    assert layout.gradient == meta.gradient.offset
    assert layout.undefined == ctypes.addressof(stand_ins.UNDEFINED)
    assert (layout.pointer, layout.nbytes) == (storage.pointer.offset, storage.nbytes.offset)


@pytest.mark.fault(38)
def test_gradients_are_read_without_asking_for_them(stand_ins: Any) -> None:
    layout = tensor_layout(stand_ins.torch())
    assert layout is not None
    weights = [stand_ins.Parameter(10, number + 1, requires_grad=True) for number in range(2000)]
    given = {}
    for weight in weights[::2]:
        given[id(weight)] = stand_ins.TensorBase(*weight.shape)
        weight.grad = given[id(weight)]
    weights.append(stand_ins.TensorBase(5))  # needs none
    read = layout.read([each._cdata for each in weights])
    for weight, found in zip(weights, read, strict=True):
        gradient = given.get(id(weight))
        assert (found is None) == (gradient is None)
        if found is not None and gradient is not None:
            memory = gradient.untyped_storage()
            assert (found.key, found.pointer, found.nbytes) == (
                id(gradient),
                memory.data_ptr(),
                memory.nbytes(),
            )


def test_a_pytorch_that_is_built_differently_has_no_known_gradients(stand_ins: Any) -> None:
    torch = stand_ins.torch()
    torch.empty = lambda *_, **__: stand_ins.TensorBase(3, device="cpu", requires_grad=True)
    stand_ins.UntypedStorage._cdata = property(lambda _: 8)  # points nowhere
    try:
        assert tensor_layout(torch) is None
    finally:
        del stand_ins.UntypedStorage._cdata


def test_addresses_that_are_gone_read_as_zero() -> None:
    page = mmap.mmap(-1, mmap.PAGESIZE)
    word = ctypes.c_uint64.from_buffer(page)
    word.value = 7
    there = ctypes.addressof(word)
    del word
    page.close()
    kept = ctypes.c_uint64(9)
    good = ctypes.addressof(kept)
    assert read_words([good, there, 0, good]) == [9, 0, 0, 9]
    assert read_words([(1 << 64) + 8, (1 << 64) - 8, (1 << 63) - 1, 1, good]) == [0, 0, 0, 0, 9]
    # Behind one that is none the kernel reads no further: the rest is asked for again.
    many = [good if number % 700 else there for number in range(3000)]
    assert read_words(many) == [9 if number % 700 else 0 for number in range(3000)]
    assert read_words([]) == []


# ---- tensors that belong to PyTorch, before 2.10 ----


@pytest.mark.parametrize(
    ("version", "is_left_out"), [("2.9.1+cu128", True), ("2.10.0", False), ("odd", False)]
)
def test_tensors_that_may_be_pytorchs_own_are_left_out(
    stand_ins: Any, version: str, is_left_out: bool
) -> None:
    stand_ins.torch().__version__ = version
    tensor, weight = stand_ins.TensorBase(3), stand_ins.Parameter(3)
    listed = set(map(id, tracked_objects(but=types_owned_elsewhere())))
    for each in (tensor, weight, tensor.untyped_storage()):
        assert (id(each) not in listed) == is_left_out
    assert {id(tensor), id(weight)} <= set(map(id, tracked_objects()))


def test_what_a_cycle_refers_to_is_found_all_the_same() -> None:
    """Only what no object of Python refers to is not known then."""
    program = """
        import gc, stand_ins, time
        gc.disable()
        stand_ins.torch().__version__ = "2.8.0"
        from vram.payloads import inside
        kept = [stand_ins.TensorBase(1024)]
        cycle = [stand_ins.TensorBase(2048)]
        cycle.append(cycle)
        del cycle
        stand_ins.HIDDEN.keep(1, stand_ins.TensorBase(4096))
        found = inside.answer({"until": time.monotonic() + 60})
        print(sorted(each["nbytes"] for each in found["groups"]), found["notes"])
    """
    lines = [line[8:] for line in program.splitlines()]
    done = run([sys.executable, "-c", "\n".join(lines)], {**os.environ})
    assert done.startswith("[4096, 8192] [")
    assert "PyTorch before 2.10: " in done


def run(command: list[str], environment: dict[str, str]) -> str:
    environment["PYTHONPATH"] = f"{search_path()}:{PROGRAMS}"
    timeout_s = PATIENCE_S + LOOKS
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=timeout_s)
    assert done.returncode == 0, f"ended with {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout


# ---- what is only safe while the other threads are asleep ----


@pytest.mark.fault(38)
def test_it_is_done_while_the_others_sleep() -> None:
    done = list[int]()
    release = threading.Event()
    threads = [threading.Thread(target=release.wait, name=f"a) S {number} (") for number in range(20)]
    for each in threads:
        each.start()
    assert do_while_others_sleep(lambda: done.append(1))
    assert done == [1]
    release.set()
    for each in threads:
        each.join()


@pytest.mark.fault(38)
def test_it_is_not_done_while_another_works() -> None:
    """One that is in code of C, without the interpreter's lock, as a thread of PyTorch's backward pass is."""
    program = """
        import hashlib, threading
        from vram.payloads.trim.threads import do_while_others_sleep
        work = lambda: hashlib.pbkdf2_hmac("sha256", b"", b"", 1 << 30)
        threading.Thread(target=work, daemon=True).start()
        done = []
        print(do_while_others_sleep(lambda: done.append(1)), done, flush=True)
        import os
        os._exit(0)
    """
    lines = [line[8:] for line in program.splitlines()]
    assert run([sys.executable, "-c", "\n".join(lines)], {**os.environ}) == "False []\n"


# ---- the real one, on the virtual GPU ----


@needs("torch", there=PYTHON_WITH_TORCH is not None, detail="$VRAM_PYTHON_WITH_TORCH names no PyTorch")
@pytest.mark.parametrize(("what", "often"), [("look", 1), ("history", 20), ("trim", 1)])
@pytest.mark.fault(38)
def test_a_training_goes_on(what: str, often: int, virtual_gpu: VirtualGpu, tally: Tally) -> None:
    """A thread of the program does without a pause what a visit does, while others train or allocate."""
    times = often * LOOKS
    told = run(
        [str(PYTHON_WITH_TORCH), "-W", "error", str(PROGRAMS / "training.py"), what, str(times)],
        {**os.environ, **virtual_gpu.environment()},
    )
    tally.count(times, wrong=0)
    assert int(told.split()[-1]) > 0
