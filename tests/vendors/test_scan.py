"""One walk over /proc for all vendors. One contract for both walks, the native and the Python one."""

from __future__ import annotations

import errno
import os

import pytest

from tests.patience import must_end
from tests.vendors.fdinfo_styles import Use
from tests.vendors.machine import Machine
from vram.host.local.open_files import DRM_PREFIX, DeviceNames, LocalOpenFiles
from vram.host.local.proc_scan import NativeScan, PythonScan, RawFile, Scan
from vram.host.ports import FileScan
from vram.units import MIB

pytestmark = pytest.mark.native

CHARACTER_DEVICE, PLAIN_FILE = 0o020666, 0o100644


@pytest.fixture(params=[NativeScan, PythonScan])
def scan(request: pytest.FixtureRequest, machine: Machine) -> Scan:
    return request.param()


def look(machine: Machine, scan: Scan, deadline_s: float = 20.0) -> FileScan:
    return LocalOpenFiles(DeviceNames(drm=("amdgpu",)), str(machine.proc), scan=scan).scan(deadline_s)


def test_clients_come_with_their_figures(machine: Machine, scan: Scan) -> None:
    card = machine.card("amdgpu", "0000:03:00.0")
    machine.process(5)
    number = machine.client(5, card, Use(vram=3 * MIB))
    machine.client(5, card, Use(vram=3 * MIB), number=number, node="card")
    machine.process(6)
    (machine.proc / "6/fd/3").symlink_to("/dev/nvidia0")
    machine.process(7)
    (machine.proc / "7/fd/3").symlink_to("/dev/dri/by-path/pci-0000:03:00.0-render")
    holders = {each.process.pid: each for each in look(machine, scan).holders}
    assert set(holders) == {5, 6}
    assert [client.facts.client for client in holders[5].clients] == [number, number]
    assert {client.facts.node for client in holders[5].clients} == {128, 0}
    # NVIDIA's account is made from NVIDIA's files alone.
    assert holders[5].files == ()
    assert [file.kind for file in holders[6].files] == ["gpu"]


def test_without_such_cards_nobody_looks_there(machine: Machine, scan: Scan) -> None:
    machine.process(5)
    machine.client(5, machine.card("amdgpu", "0000:03:00.0"), Use(vram=MIB))
    assert LocalOpenFiles(DeviceNames(), str(machine.proc), scan=scan).scan(20.0).holders == ()


def test_a_client_that_vanishes_while_it_is_read(machine: Machine, scan: Scan) -> None:
    machine.process(5)
    machine.client(5, machine.card("amdgpu", "0000:03:00.0"), Use(vram=MIB))
    (machine.proc / "5/fdinfo/3").unlink()
    assert look(machine, scan).holders == ()


def test_a_figure_that_cannot_be_read_is_told(machine: Machine, scan: Scan) -> None:
    machine.process(5)
    machine.client(5, machine.card("amdgpu", "0000:03:00.0"), Use(vram=MIB))
    (machine.proc / "5/fdinfo/3").unlink()
    (machine.proc / "5/fdinfo/3").mkdir()
    (holder,) = look(machine, scan).holders
    (client,) = holder.clients
    assert (client.status, client.facts.regions) == ("failed", ())
    assert os.strerror(errno.EISDIR) in (client.message or "")


def test_a_text_of_megabytes_is_read_in_part(machine: Machine, scan: Scan) -> None:
    machine.process(5)
    card = machine.card("amdgpu", "0000:03:00.0")
    machine.fdinfo(5, card, b"drm-driver:\tamdgpu\n" + b"x" * (4 << 20))
    (holder,) = look(machine, scan).holders
    assert holder.clients[0].status == "failed"


def test_a_read_that_never_ends_does_not_keep_the_answer(machine: Machine) -> None:
    """A driver in trouble hangs: the others are told, and that the picture is not whole."""
    card = machine.card("amdgpu", "0000:03:00.0")
    for pid in range(5, 25):
        machine.process(pid)
        machine.client(pid, card, Use(vram=MIB))
    (machine.proc / "9/fdinfo/3").unlink()
    os.mkfifo(machine.proc / "9/fdinfo/3")  # opening it waits for a writer that never comes
    with must_end():
        found = look(machine, NativeScan(), deadline_s=3.0)
    assert not found.complete
    assert {each.process.pid for each in found.holders} == set(range(5, 25)) - {9}
    # Whoever hangs still is abandoned; nothing that it holds is in anybody's way.
    os.close(os.open(machine.proc / "9/fdinfo/3", os.O_WRONLY | os.O_NONBLOCK))


def raw(link: bytes, *, mode: int = 0, device: int = 0) -> RawFile:
    return RawFile(1, 1, 3, link, device, 0, 0, mode)


def test_only_the_kernels_number_makes_a_drm_file() -> None:
    """A container owns its /dev: it can call anything renderD128, and any card renderD200."""
    names = DeviceNames(drm=("xe",))
    node = b"/dev/dri/renderD128"
    assert names.name(raw(node, mode=PLAIN_FILE)) is None
    assert names.name(raw(node, mode=CHARACTER_DEVICE, device=os.makedev(195, 0))) is None
    found = names.name(raw(node, mode=CHARACTER_DEVICE, device=os.makedev(226, 131)))
    assert found is not None
    assert (found.kind, found.minor) == ("drm", 131)
    assert names.name(raw(DRM_PREFIX + b"card0\nx")) is None


def test_dmabufs_of_the_drivers_that_are_here(machine: Machine, scan: Scan) -> None:
    machine.process(5)
    machine.dmabuf(5, 7 * MIB, "amdgpu", fd=4)
    machine.dmabuf(5, 9 * MIB, "i915", fd=5)
    machine.dmabuf(5, 9 * MIB, "uvcvideo", fd=6)
    (holder,) = look(machine, scan).holders
    assert [(buffer.fd, buffer.exporter, buffer.nbytes) for buffer in holder.dmabufs] == [
        (4, "amdgpu", 7 * MIB)
    ]
