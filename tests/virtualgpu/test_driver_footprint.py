"""What a process shows and costs by using the driver at all, as an H200 showed it."""

from __future__ import annotations

import os

import pytest

from tests.virtualgpu.conftest import ask
from tests.virtualgpu.programs import result, running
from vram.units import GIB, KIB, MIB
from vram.virtualgpu import VirtualGpu

pytestmark = pytest.mark.native

INIT = 3 * MIB + 256 * KIB
CONTEXT, OVERHEAD = 518 * MIB, 5 * MIB + 576 * KIB
USED = "memory()['v2'][3]"

# Counts what /proc/self shows of device files, by the real driver's names.
SHOWN = """
    from collections import Counter
    def name(target):
        at = target.removesuffix(" (deleted)")
        return os.path.basename(at).split(".")[0] if "/dev/nvidia" in at else ""
    def descriptors():
        names = Counter()
        for fd in os.listdir("/proc/self/fd"):
            try:
                found = name(os.readlink(f"/proc/self/fd/{fd}"))
            except OSError:
                continue
            assert not found or not os.get_inheritable(int(fd))
            names[found] += 1
        del names[""]
        return dict(names)
    def mappings():
        fields = [line.split(None, 5) for line in open("/proc/self/maps")]
        names = Counter(name(field[5].strip()) for field in fields if len(field) == 6)
        del names[""]
        return dict(names)
    def shown():
        return [descriptors(), mappings()]
"""
CONTROL = {"nvidiactl": 1, "nvidia-uvm": 2}


def test_every_step_shows_the_files_it_shows_on_an_h200(virtual_gpu: VirtualGpu) -> None:
    """Allocations add no mappings of device files; managed memory is the exception."""
    program = f"""{SHOWN}
    cuda.call("cuInit", 0)
    seen = [shown()]
    context = cuda.start()
    cuda.alloc(4 * GIB)
    cuda.out(ctypes.c_uint64, "cuMemAllocManaged", GIB, 1)
    cuda.map_whole(cuda.create(GIB), GIB)
    seen.append(shown())
    made = cuda.out(ctypes.c_uint64, "cuCtxCreate_v2", 0, 0)
    seen.append(shown())
    cuda.call("cuCtxDestroy_v2", made)
    seen.append(shown())
    cuda.call("cuDevicePrimaryCtxReset_v2", 0)
    seen.append(shown())
    cuda.tell(seen)
    """
    init = [CONTROL | {"nvidia0": 4}, {"nvidiactl": 1, "nvidia0": 2}]
    one = [CONTROL | {"nvidia0": 20}, {"nvidiactl": 27, "nvidia0": 3, "nvidia-uvm": 1 + 1}]
    two = [CONTROL | {"nvidia0": 36}, {"nvidiactl": 53, "nvidia0": 4, "nvidia-uvm": 2 + 1}]
    assert result(virtual_gpu, program) == [init, one, two, one, init]


def test_a_forked_child_has_all_but_the_mapping_of_uvm(virtual_gpu: VirtualGpu) -> None:
    program = f"""{SHOWN}
    cuda.start()
    read, write = os.pipe()
    if os.fork() == 0:
        os.write(write, repr(shown()).encode())
        os._exit(0)
    cuda.tell([eval(os.read(read, 65536)), os.wait()[1]])
    """
    shown, status = result(virtual_gpu, program)
    assert shown == [CONTROL | {"nvidia0": 20}, {"nvidiactl": 27, "nvidia0": 3}]
    assert status == 0


def test_every_visible_gpu_is_opened_and_only_its_context_shows(two_virtual_gpus: VirtualGpu) -> None:
    program = f"{SHOWN}\n    cuda.start(1)\n    cuda.tell(descriptors())"
    assert result(two_virtual_gpus, program) == CONTROL | {"nvidia0": 4, "nvidia1": 20}


def test_nvml_opens_its_files_with_the_first_user_and_closes_them_with_the_last(
    two_virtual_gpus: VirtualGpu,
) -> None:
    setup = f"import os\nif True:\n{SHOWN}"
    twice = "n.nvmlInit(); n.nvmlShutdown(); seen = [shown()]; n.nvmlShutdown(); seen.append(shown())"
    monitor = [CONTROL | {"nvidia0": 3, "nvidia1": 3}, {}]
    assert ask(two_virtual_gpus, "seen", setup, twice) == [monitor, [{}, {}]]


def test_initialising_is_used_once_however_many_do_it_and_charged_to_nobody(
    virtual_gpu: VirtualGpu,
) -> None:
    wait = 'cuda.call("cuInit", 0); cuda.tell(0); cuda.heard()'
    with running(virtual_gpu, wait) as first, running(virtual_gpu, wait) as second:
        first.told(), second.told()
        assert ask(virtual_gpu, f"[{USED}, processes()]") == [INIT, []]
        first.kill()
        assert ask(virtual_gpu, USED) == INIT
    assert ask(virtual_gpu, USED) == 0


def test_every_context_costs_as_much_as_the_first(virtual_gpu: VirtualGpu) -> None:
    program = """
        cuda.start()
        made = cuda.out(ctypes.c_uint64, "cuCtxCreate_v2", 0, 0)
        cuda.tell(cuda.used())
        cuda.heard()
        cuda.call("cuCtxDestroy_v2", made)
        cuda.call("cuDevicePrimaryCtxReset_v2", 0)
        cuda.tell("reset")
        cuda.heard()
    """
    with running(virtual_gpu, program) as process:
        assert process.told() == INIT + 2 * (CONTEXT + OVERHEAD)
        assert ask(virtual_gpu, "processes()") == [[process.pid, 2 * CONTEXT]]
        process.go()
        process.told()
        assert ask(virtual_gpu, f"[{USED}, processes()]") == [INIT, []]


def test_a_context_that_does_not_fit_leaves_nothing_open(virtual_gpu: VirtualGpu) -> None:
    virtual_gpu.set(total_bytes=2 * GIB)
    program = f"""{SHOWN}
    cuda.start()
    cuda.alloc(512 * MIB)
    before = [shown(), cuda.used()]
    code = cuda.code("cuCtxCreate_v2", ctypes.byref(ctypes.c_uint64()), 0, 0)
    cuda.tell([code, before == [shown(), cuda.used()]])
    """
    assert result(virtual_gpu, program) == [2, True]


def test_the_bytes_of_the_dead_leave_no_file_behind(virtual_gpu: VirtualGpu) -> None:
    with running(virtual_gpu, "cuda.start(); cuda.alloc(GIB); cuda.tell(0); cuda.heard()") as process:
        process.told()
        assert len(os.listdir(virtual_gpu.folder / "memory")) == 1
    assert ask(virtual_gpu, USED) == 0
    assert os.listdir(virtual_gpu.folder / "memory") == []
    assert sorted(os.listdir(virtual_gpu.folder / "dev")) == ["nvidia-uvm", "nvidia0", "nvidiactl"]
