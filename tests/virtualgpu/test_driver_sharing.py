"""IPC handles, dma-bufs and shared pools: bytes that more than one process keeps."""

from __future__ import annotations

import os
import socket

import pytest

from tests.virtualgpu.conftest import ask
from tests.virtualgpu.programs import result, running
from vram.units import GIB, MIB
from vram.virtualgpu import VirtualGpu

pytestmark = pytest.mark.native

CONTEXT = 518 * MIB
INVALID_VALUE, INVALID_CONTEXT = 1, 201

MAKER = """
    cuda.start()
    address = cuda.alloc({nbytes})
    cuda.write(address, b"one for two")
    handle = cuda.Opaque64()
    cuda.call("cuIpcGetMemHandle", ctypes.byref(handle), address)
    cuda.tell(bytes(handle).hex())
    while True:
        line = cuda.heard()
        if line == "read":
            cuda.tell(cuda.read(address, 11).decode())
        if line == "free":
            cuda.call("cuMemFree_v2", address)
            cuda.tell(cuda.used())
"""

IMPORTER = """
    def open_handle(text):
        handle = cuda.Opaque64.from_buffer_copy(bytes.fromhex(text))
        address = ctypes.c_uint64()
        answer = cuda.lib.cuIpcOpenMemHandle_v2(ctypes.byref(address), handle, ctypes.c_uint(1))
        return answer, address.value
    cuda.start()
    answer, address = open_handle(cuda.heard())
    cuda.tell(answer)
    while True:
        word, *rest = cuda.heard().split()
        if word == "write":
            cuda.write(address, b"two for one")
        if word == "close":
            cuda.call("cuIpcCloseMemHandle", address)
        cuda.tell(cuda.read(address, 11).decode() if word != "close" else cuda.used())
"""


def charges(gpu: VirtualGpu) -> dict[int, int]:
    return dict(ask(gpu, "processes()"))


def test_importer_and_exporter_see_the_same_bytes(virtual_gpu: VirtualGpu) -> None:
    with (
        running(virtual_gpu, MAKER.format(nbytes=GIB)) as maker,
        running(virtual_gpu, IMPORTER) as importer,
    ):
        importer.go(maker.told())
        assert importer.told() == 0
        importer.go("look")
        assert importer.told() == "one for two"
        importer.go("write")
        importer.told()
        maker.go("read")
        assert maker.told() == "two for one"


def test_the_importer_takes_over_the_charge(virtual_gpu: VirtualGpu) -> None:
    with running(virtual_gpu, IMPORTER) as importer:
        with running(virtual_gpu, MAKER.format(nbytes=4 * GIB)) as maker:
            importer.go(maker.told())
            assert importer.told() == 0
            assert charges(virtual_gpu) == {maker.pid: CONTEXT + 4 * GIB, importer.pid: CONTEXT}
        assert charges(virtual_gpu) == {importer.pid: CONTEXT + 4 * GIB}
        importer.go("look")
        assert importer.told() == "one for two"
        importer.go("close")
        importer.told()
        assert charges(virtual_gpu) == {importer.pid: CONTEXT}


def test_freed_by_its_maker_it_lives_with_the_importer(virtual_gpu: VirtualGpu) -> None:
    with (
        running(virtual_gpu, MAKER.format(nbytes=GIB)) as maker,
        running(virtual_gpu, IMPORTER) as importer,
    ):
        importer.go(maker.told())
        importer.told()
        maker.go("free")
        maker.told()
        assert charges(virtual_gpu) == {maker.pid: CONTEXT, importer.pid: CONTEXT + GIB}
        importer.go("look")
        assert importer.told() == "one for two"


def test_a_small_allocation_is_opened_at_its_own_place(virtual_gpu: VirtualGpu) -> None:
    """Small ones share 2 MiB, and an importer maps all of it, but is pointed to the right bytes."""
    maker = """
        cuda.start()
        cuda.write(cuda.alloc(1000), b"a neighbour")
    """ + MAKER.format(nbytes=1000).replace("    cuda.start()\n", "").replace("\n", "\n    ")
    with running(virtual_gpu, maker) as running_maker, running(virtual_gpu, IMPORTER) as importer:
        importer.go(running_maker.told())
        importer.told()
        importer.go("look")
        assert importer.told() == "one for two"


def test_handles_of_the_dead_and_of_oneself_do_not_open(virtual_gpu: VirtualGpu) -> None:
    with running(virtual_gpu, MAKER.format(nbytes=GIB)) as maker:
        handle = maker.told()
    with running(virtual_gpu, IMPORTER) as importer:
        importer.go(handle)
        assert importer.told() == INVALID_VALUE
    own = """
        cuda.start()
        handle, where = cuda.Opaque64(), ctypes.byref(ctypes.c_uint64())
        cuda.call("cuIpcGetMemHandle", ctypes.byref(handle), cuda.alloc(GIB))
        cuda.tell(cuda.lib.cuIpcOpenMemHandle_v2(where, handle, ctypes.c_uint(1)))
    """
    assert result(virtual_gpu, own) == INVALID_CONTEXT


def test_a_dmabuf_keeps_the_memory_and_has_its_size(virtual_gpu: VirtualGpu) -> None:
    ours, theirs = socket.socketpair()
    program = """
        channel = socket.socket(fileno={fd})
        cuda.start()
        address = cuda.alloc(2 * GIB)
        where, export = ctypes.byref(ctypes.c_int()), "cuMemGetHandleForAddressRange"
        odd = cuda.code(export, where, address + 1, 4096, 1, 0)
        cuda.pass_descriptor(channel, cuda.out(ctypes.c_int, export, address, 2 * GIB, 1, 0))
        cuda.tell(odd)
        cuda.heard()
    """.replace("{fd}", str(theirs.fileno()))
    with ours, theirs:
        with running(virtual_gpu, program, pass_fds=[theirs.fileno()]) as maker:
            assert maker.told() == INVALID_VALUE
            descriptor = socket.recv_fds(ours, 1, 1)[1][0]
        assert os.path.basename(os.readlink(f"/proc/self/fd/{descriptor}")).startswith("dmabuf.")
        assert os.fstat(descriptor).st_size == 2 * GIB
        assert ask(virtual_gpu, "memory()['v2'][3]") == 2 * GIB
        assert charges(virtual_gpu) == {}
        os.close(descriptor)
        assert ask(virtual_gpu, "memory()['v2'][3]") == 0


def test_a_pool_is_shared_by_descriptor_and_pointer(virtual_gpu: VirtualGpu) -> None:
    ours, theirs = socket.socketpair()
    maker = """
        channel = socket.socket(fileno={fd})
        cuda.start()
        pool = cuda.out(ctypes.c_uint64, "cuMemPoolCreate", ctypes.byref(cuda.PoolProps(1, 1, 1, 0)))
        address = cuda.out(ctypes.c_uint64, "cuMemAllocFromPoolAsync", MIB, pool, 0)
        cuda.write(address, b"from the pool")
        cuda.pass_descriptor(channel, cuda.out(ctypes.c_int, "cuMemPoolExportToShareableHandle", pool, 1, 0))
        data = cuda.Opaque64()
        cuda.call("cuMemPoolExportPointer", ctypes.byref(data), address)
        cuda.tell(bytes(data).hex())
        cuda.heard()
    """.replace("{fd}", str(theirs.fileno()))
    importer = """
        channel = socket.socket(fileno={fd})
        cuda.start()
        descriptor = cuda.received_descriptor(channel)
        pool = cuda.out(ctypes.c_uint64, "cuMemPoolImportFromShareableHandle", descriptor, 1, 0)
        data = cuda.Opaque64.from_buffer_copy(bytes.fromhex(cuda.heard()))
        address = cuda.out(ctypes.c_uint64, "cuMemPoolImportPointer", pool, ctypes.byref(data))
        text = cuda.read(address, 13).decode()
        cuda.call("cuMemFreeAsync", address, 0)
        own = cuda.code("cuMemAllocFromPoolAsync", ctypes.byref(ctypes.c_uint64()), MIB, pool, 0)
        cuda.tell([text, own])
        cuda.heard()
    """.replace("{fd}", str(ours.fileno()))
    with (
        ours,
        theirs,
        running(virtual_gpu, maker, pass_fds=[theirs.fileno()]) as running_maker,
        running(virtual_gpu, importer, pass_fds=[ours.fileno()]) as running_importer,
    ):
        running_importer.go(running_maker.told())
        assert running_importer.told() == ["from the pool", INVALID_VALUE]
        assert charges(virtual_gpu) == {running_maker.pid: CONTEXT + 32 * MIB, running_importer.pid: CONTEXT}


def test_an_event_recorded_there_is_waited_for_here(virtual_gpu: VirtualGpu) -> None:
    """An interprocess event completes for the process that opened it, when its recorder is done."""
    maker = """
        cuda.start()
        event = cuda.out(ctypes.c_uint64, "cuEventCreate", 6)
        handle = cuda.Opaque64()
        cuda.call("cuIpcGetEventHandle", ctypes.byref(handle), event)
        stream = cuda.out(ctypes.c_uint64, "cuStreamCreate", 1)
        block = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(lambda unused: cuda.heard())
        cuda.call("cuLaunchHostFunc", stream, block, 0)
        cuda.call("cuEventRecord", event, stream)
        cuda.tell(bytes(handle).hex())
        cuda.call("cuStreamSynchronize", stream)
        cuda.heard()
    """
    importer = """
        cuda.start()
        handle = cuda.Opaque64.from_buffer_copy(bytes.fromhex(cuda.heard()))
        event = ctypes.c_uint64()
        assert cuda.lib.cuIpcOpenEventHandle(ctypes.byref(event), handle) == 0
        cuda.tell(cuda.code("cuEventQuery", event.value))
        cuda.tell(cuda.code("cuEventSynchronize", event.value))
    """
    with running(virtual_gpu, maker) as running_maker, running(virtual_gpu, importer) as running_importer:
        running_importer.go(running_maker.told())
        assert running_importer.told() == 600
        running_maker.go()
        assert running_importer.told() == 0
