"""Virtual memory management: addresses, memory, and the descriptor that carries it away."""

from __future__ import annotations

import os
import socket

import pytest

from tests.virtualgpu.conftest import ask
from tests.virtualgpu.programs import result, running
from vram.units import GIB, MIB
from vram.virtualgpu import VirtualGpu

pytestmark = pytest.mark.native

INVALID_VALUE, NOT_SUPPORTED, UNKNOWN = 1, 801, 999
CONTEXT = 518 * MIB
CONTEXT_USED = CONTEXT + 8 * MIB + 832 * 1024


def test_memory_lives_until_its_last_handle_and_mapping_are_gone(virtual_gpu: VirtualGpu) -> None:
    program = """
        cuda.start()
        base, seen = cuda.used(), []
        handle = cuda.create(GIB)
        address = cuda.map_whole(handle, GIB)
        cuda.write(address, b"mapped")
        cuda.call("cuMemRelease", handle)
        seen.append(cuda.used() - base)
        again = cuda.out(ctypes.c_uint64, "cuMemRetainAllocationHandle", address)
        cuda.call("cuMemUnmap", address, GIB)
        seen.append(cuda.used() - base)
        cuda.call("cuMemMap", address, GIB, 0, again, 0)
        cuda.allow(address, GIB)
        seen.append(cuda.read(address, 6).decode())
        cuda.call("cuMemUnmap", address, GIB)
        cuda.call("cuMemRelease", again)
        cuda.call("cuMemAddressFree", address, GIB)
        cuda.tell([seen, cuda.used() - base])
    """
    assert result(virtual_gpu, program) == [[GIB, GIB, "mapped"], 0]


def test_what_does_not_fit_is_refused(virtual_gpu: VirtualGpu) -> None:
    """Only the memory's own size can be mapped, so a size can be found by trying."""
    program = """
        cuda.start()
        handle, address = cuda.create(4 * MIB), cuda.reserve(16 * MIB)
        def mapped(at, nbytes, offset=0):
            return cuda.code("cuMemMap", at, nbytes, offset, handle, 0)
        where, prop = ctypes.byref(ctypes.c_uint64()), ctypes.byref(cuda.Prop(1, 1, 1, 0))
        cuda.tell([
            cuda.code("cuMemCreate", where, MIB, prop, 0),
            mapped(address, 6 * MIB), mapped(address, 2 * MIB), mapped(address, MIB),
            mapped(address + 14 * MIB, 4 * MIB),
            mapped(address, 4 * MIB, 2 * MIB), mapped(address, 4 * MIB), mapped(address + 2 * MIB, 4 * MIB),
            cuda.code("cuMemAddressFree", address, 16 * MIB),
            cuda.code("cuMemUnmap", address, 2 * MIB), cuda.code("cuMemUnmap", address, 4 * MIB),
            cuda.code("cuMemAddressFree", address, 16 * MIB),
        ])
    """
    bad, no = INVALID_VALUE, NOT_SUPPORTED
    assert result(virtual_gpu, program) == [bad, no, no, no, bad, bad, 0, bad, bad, bad, 0, 0]


def test_access_must_be_given_before_it_is_used(virtual_gpu: VirtualGpu) -> None:
    program = """
        cuda.start()
        handle, address = cuda.create(2 * MIB), cuda.reserve(2 * MIB)
        cuda.call("cuMemMap", address, 2 * MIB, 0, handle, 0)
        def access():
            flags = ctypes.c_uint64(9)
            cuda.call("cuMemGetAccess", ctypes.byref(flags), (ctypes.c_int * 2)(1, 0), address)
            return flags.value
        before = [access(), cuda.code("cuMemcpyHtoD_v2", address, b"x", 1)]
        cuda.allow(address, 2 * MIB)
        cuda.tell([before, [access(), cuda.code("cuMemcpyHtoD_v2", address, b"x", 1)]])
    """
    assert result(virtual_gpu, program) == [[0, INVALID_VALUE], [3, 0]]


def test_a_copy_may_cross_neighbouring_mappings(virtual_gpu: VirtualGpu) -> None:
    program = """
        cuda.start()
        address = cuda.reserve(4 * MIB)
        for part in range(2):
            cuda.call("cuMemMap", address + part * 2 * MIB, 2 * MIB, 0, cuda.create(2 * MIB), 0)
        cuda.allow(address, 4 * MIB)
        cuda.write(address + 2 * MIB - 3, b"across")
        cuda.tell([cuda.read(address + 2 * MIB - 3, 6).decode(), cuda.code("cuMemUnmap", address, 4 * MIB)])
    """
    assert result(virtual_gpu, program) == ["across", 0]


MAKER = """
    channel = socket.socket(fileno={fd})
    cuda.start()
    handle = cuda.create({nbytes})
    cuda.write(cuda.map_whole(handle, {nbytes}), b"from the maker")
    cuda.pass_descriptor(channel, cuda.export(handle))
    cuda.tell(cuda.used())
    cuda.heard()
"""


def test_a_passed_descriptor_keeps_bytes_that_a_newcomer_can_read(virtual_gpu: VirtualGpu) -> None:
    """The maker is killed; a process with cuInit alone imports, sizes and reads the memory."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        maker = MAKER.format(fd=theirs.fileno(), nbytes=6 * MIB)
        with running(virtual_gpu, maker, pass_fds=[theirs.fileno()]) as running_maker:
            running_maker.told()
            descriptor = socket.recv_fds(ours, 1, 1)[1][0]
            running_maker.kill()
        importer = """
            channel = socket.socket(fileno={fd})
            descriptor = cuda.received_descriptor(channel)
            cuda.call("cuInit", 0)
            handle, address = cuda.import_(descriptor), cuda.reserve(16 * MIB)
            os.close(descriptor)
            sizes = [n for n in range(2, 16, 2) if cuda.code("cuMemMap", address, n * MIB, 0, handle, 0) == 0
                     and cuda.code("cuMemUnmap", address, n * MIB) == 0]
            cuda.call("cuMemMap", address, 6 * MIB, 0, handle, 0)
            cuda.allow(address, 6 * MIB)
            text = ctypes.string_at(address, 14).decode()
            cuda.call("cuMemUnmap", address, 6 * MIB)
            cuda.call("cuMemRelease", handle)
            cuda.start()
            cuda.tell([sizes, text, cuda.used()])
        """.replace("{fd}", str(theirs.fileno()))
        with running(virtual_gpu, importer, pass_fds=[theirs.fileno()]) as running_importer:
            socket.send_fds(ours, [b"."], [descriptor])
            assert running_importer.told() == [[6], "from the maker", CONTEXT_USED + 6 * MIB]
        os.close(descriptor)
    assert result(virtual_gpu, "cuda.start(); cuda.tell(cuda.used())") == CONTEXT_USED


def test_an_import_outlives_the_passed_descriptor_and_the_maker(virtual_gpu: VirtualGpu) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        maker = MAKER.format(fd=theirs.fileno(), nbytes=4 * MIB)
        importer = """
            channel = socket.socket(fileno={fd})
            descriptor = cuda.received_descriptor(channel)
            cuda.start()
            handle = cuda.import_(descriptor)
            os.close(descriptor)
            cuda.tell("imported")
            cuda.heard()
            address = cuda.map_whole(handle, 4 * MIB)
            cuda.tell([cuda.read(address, 14).decode(), cuda.used()])
        """.replace("{fd}", str(ours.fileno()))
        with (
            running(virtual_gpu, maker, pass_fds=[theirs.fileno()]) as running_maker,
            running(virtual_gpu, importer, pass_fds=[ours.fileno()]) as running_importer,
        ):
            running_maker.told()
            assert running_importer.told() == "imported"
            running_maker.kill()
            running_importer.go()
            assert running_importer.told() == ["from the maker", CONTEXT_USED + 4 * MIB]


def test_an_importer_is_charged_when_maker_and_descriptors_are_gone(virtual_gpu: VirtualGpu) -> None:
    ours, theirs = socket.socketpair()
    importer = """
        channel = socket.socket(fileno={fd})
        cuda.start()
        descriptor = cuda.received_descriptor(channel)
        handle = cuda.import_(descriptor)
        os.close(descriptor)
        cuda.tell(cuda.map_whole(handle, GIB))
        cuda.heard()
        cuda.pass_descriptor(channel, cuda.export(handle))
        cuda.tell(0)
        cuda.heard()
    """.replace("{fd}", str(theirs.fileno()))
    maker = MAKER.format(fd=theirs.fileno(), nbytes=GIB)
    charged = "[dict(processes()), memory()['v2'][3]]"
    with ours, theirs:
        with running(virtual_gpu, maker, pass_fds=[theirs.fileno()]) as running_maker:
            running_maker.told()
            descriptor = socket.recv_fds(ours, 1, 1)[1][0]
        with running(virtual_gpu, importer, pass_fds=[theirs.fileno()]) as borrower:
            socket.send_fds(ours, [b"."], [descriptor])
            borrower.told()
            used, me = CONTEXT_USED + GIB, str(borrower.pid)
            assert ask(virtual_gpu, charged) == [{me: CONTEXT}, used]
            os.close(descriptor)
            assert ask(virtual_gpu, charged) == [{me: CONTEXT + GIB}, used]
            borrower.go()
            borrower.told()
            descriptor = socket.recv_fds(ours, 1, 1)[1][0]
            assert ask(virtual_gpu, charged) == [{me: CONTEXT}, used]
        assert ask(virtual_gpu, charged) == [{}, GIB]
        reader = f"""
            cuda.start()
            address = cuda.map_whole(cuda.import_({descriptor}), GIB)
            cuda.tell(cuda.read(address, 14).decode())
        """
        with running(virtual_gpu, reader, pass_fds=[descriptor]) as newcomer:
            assert newcomer.told() == "from the maker"
        os.close(descriptor)
    assert ask(virtual_gpu, charged) == [{}, 0]


def test_released_by_its_maker_and_kept_by_a_descriptor_it_is_charged_to_nobody(
    virtual_gpu: VirtualGpu,
) -> None:
    program = """
        cuda.start()
        handle = cuda.create(GIB)
        descriptor = cuda.export(handle)
        cuda.call("cuMemRelease", handle)
        cuda.tell(0)
        cuda.heard()
    """
    with running(virtual_gpu, program) as maker:
        maker.told()
        seen = ask(virtual_gpu, "[processes(), memory()['v2'][3]]")
        assert seen == [[[maker.pid, CONTEXT]], CONTEXT_USED + GIB]


def test_only_exports_can_be_imported(virtual_gpu: VirtualGpu) -> None:
    """A control file, a pipe, a closed number and a dma-buf are no allocations."""
    program = """
        cuda.start()
        control = os.open(os.environ["VRAM_VIRTUAL_GPU"] + "/dev/nvidiactl", os.O_RDWR)
        dmabuf = cuda.out(ctypes.c_int, "cuMemGetHandleForAddressRange", cuda.alloc(2 * MIB), 2 * MIB, 1, 0)
        where = ctypes.byref(ctypes.c_uint64())
        wrong = (control, os.pipe()[0], 9999, dmabuf)
        cuda.tell([cuda.code("cuMemImportFromShareableHandle", where, fd, 1) for fd in wrong])
    """
    assert result(virtual_gpu, program) == [UNKNOWN] * 4


def test_memory_not_made_for_it_cannot_be_exported(virtual_gpu: VirtualGpu) -> None:
    program = """
        cuda.start()
        handle = cuda.create(2 * MIB, handle_types=0)
        cuda.tell(cuda.code("cuMemExportToShareableHandle", ctypes.byref(ctypes.c_int()), handle, 1, 0))
    """
    assert result(virtual_gpu, program) == INVALID_VALUE


def test_released_while_exported_the_bytes_return_with_the_descriptor(virtual_gpu: VirtualGpu) -> None:
    program = """
        cuda.start()
        base = cuda.used()
        handle = cuda.create(GIB)
        descriptor = cuda.export(handle)
        cuda.call("cuMemRelease", handle)
        held = cuda.used() - base
        os.close(descriptor)
        cuda.tell([held, cuda.used() - base])
    """
    assert result(virtual_gpu, program) == [GIB, 0]
