"""Cards as sysfs shows them: what they are called, how much memory they have, and what is not told."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.needs import needs
from tests.vendors.machine import Card, Machine
from vram.host.local.drm import LocalDrm
from vram.units import GIB, MIB

AMD = "0000:03:00.0"


def drm(machine: Machine) -> LocalDrm:
    return LocalDrm(str(machine.sys), ids=str(machine.names()))


def test_an_amd_card(machine: Machine) -> None:
    machine.card("amdgpu", AMD, total=24 * GIB, used=3 * GIB, gtt=(32 * GIB, GIB))
    (card,) = drm(machine).cards()
    assert (card.total, card.used, card.system_total, card.system_used) == (24 * GIB, 3 * GIB, 32 * GIB, GIB)
    assert (card.facts.name, card.facts.uuid) == ("AMD Radeon RX 7900 XTX", f"PCI-{AMD}")
    assert (card.facts.vendor, card.facts.driver, card.facts.nodes) == ("amd", "amdgpu", (0, 128))


def test_names_come_from_the_best_source(machine: Machine) -> None:
    amd = machine.card("amdgpu", AMD, total=GIB, used=0)
    machine.card("xe", "0000:0a:00.0", tiles=(12 * GIB,))
    strange = machine.card("i915", "0000:0b:00.0", device="0xffff")
    assert [card.facts.name for card in drm(machine).cards()] == [
        "AMD Radeon RX 7900 XTX",
        "Intel Arc B580",
        "Intel GPU 8086:ffff",
    ]
    machine.write(amd, product_name="Instinct MI300X")
    machine.write(strange, vendor="", device="0x\n")
    names = [card.facts.name for card in drm(machine).cards()]
    assert names == ["AMD Instinct MI300X", "Intel Arc B580", "unknown Intel GPU"]
    (machine.root / "usr/share/libdrm/amdgpu.ids").write_text("")
    machine.write(amd, product_name="")
    listed = LocalDrm(str(machine.sys), ids=str(machine.root)).cards()
    assert listed[0].facts.name == "AMD Radeon RX 7900 XT/7900 XTX"


def test_tiles_add_up(machine: Machine) -> None:
    machine.card("xe", "0000:0a:00.0", tiles=(16 * GIB, 16 * GIB))
    (card,) = drm(machine).cards()
    assert (card.total, card.used, card.status) == (32 * GIB, None, "ok")


def test_the_cgroups_tell_size_and_use(machine: Machine) -> None:
    """Of each region of this card; what others have, or is no memory of the card, is not counted."""
    machine.dmem(machine.card("amdgpu", AMD, total=GIB, used=0), vram=(GIB, 7))
    card = machine.card("xe", "0000:0a:00.0", tiles=(12 * GIB,))
    machine.dmem(card, vram0=(11 * GIB, 3 * GIB), vram1=(GIB, MIB), stolen=(64 * MIB, MIB), odd=(5, 5))
    xe = drm(machine).cards()[1]
    assert (xe.total, xe.used, xe.status) == (12 * GIB, 3 * GIB + MIB, "ok")


@pytest.mark.parametrize(
    "text", ["", "drm/0000:0a:00.0/vram0 max\n", "drm/0000:0a:00.0/vram0 -1\n", "\xff\n"]
)
def test_cgroups_that_tell_no_size(machine: Machine, text: str) -> None:
    machine.card("xe", "0000:0a:00.0", tiles=(12 * GIB,))
    (machine.sys / "fs/cgroup").mkdir(parents=True)
    (machine.sys / "fs/cgroup/dmem.capacity").write_bytes(text.encode("latin-1"))
    (card,) = drm(machine).cards()
    assert (card.total, card.used, card.status) == (12 * GIB, None, "ok")


def test_most_builds_of_xe_have_tiles_without_a_size(machine: Machine) -> None:
    card = machine.card("xe", "0000:0a:00.0", tiles=(GIB,))
    (card.folder / "tile0/physical_vram_size_bytes").unlink()
    (found,) = drm(machine).cards()
    assert (found.total, found.status) == (None, "unsupported")
    assert found.message == "xe does not report how much memory the card has"


def test_a_sleeping_card_is_not_woken(machine: Machine) -> None:
    """Its load and the size of its tiles are asked of the card itself; the rest is not."""
    amd = machine.card("amdgpu", AMD, total=GIB, used=MIB)
    machine.write(amd, gpu_busy_percent=40)
    machine.sleep(machine.card("xe", "0000:0a:00.0", tiles=(GIB,)))
    assert drm(machine).cards()[0].facts.utilization == 40
    machine.sleep(amd)
    first, second = drm(machine).cards()
    assert (first.total, first.used, first.facts.utilization) == (GIB, MIB, None)
    assert (second.total, second.status) == (None, "unsupported")
    assert "would wake it" in (second.message or "")


def test_an_integrated_gpu_has_no_memory_of_its_own(machine: Machine) -> None:
    machine.card("xe", "0000:00:02.0")
    (card,) = drm(machine).cards()
    assert (card.total, card.facts.integrated) == (0, True)


def test_i915_does_not_tell_the_size_of_a_card(machine: Machine) -> None:
    machine.card("i915", "0000:0b:00.0")
    (card,) = drm(machine).cards()
    assert (card.total, card.status) == (None, "unsupported")


def test_other_drivers_are_left_to_others(machine: Machine) -> None:
    """NVIDIA's own has NVML; nouveau and a server's screen adapter tell nothing that could be told."""
    for at, driver in enumerate(("nvidia", "nouveau", "ast", "virtio-pci", "simple-framebuffer")):
        machine.card(driver, f"0000:{at:02x}:00.0")
    (machine.sys / "class/drm/card0-DP-1").mkdir()
    (machine.sys / "class/drm/version").write_text("drm 1.1.0\n")
    assert drm(machine).drivers == frozenset()
    assert drm(machine).nvidia_gpus() == 1


def test_cards_come_in_the_order_of_their_buses(machine: Machine) -> None:
    for address in ("10000:01:00.0", "0000:c1:00.0", "0000:0a:00.0", "0000:03:00.0"):
        machine.card("amdgpu", address, total=GIB, used=0)
    assert [card.address for card in drm(machine).cards()] == [
        *("0000:03:00.0", "0000:0a:00.0", "0000:c1:00.0", "10000:01:00.0"),
    ]


@pytest.mark.parametrize(
    "value", ["", "-1", "lots", "12 GiB", "0777", "1e9", "9" * 400, str(1 << 63), "\x00"]
)
def test_a_size_that_is_none(machine: Machine, value: str) -> None:
    machine.card("amdgpu", AMD, total=GIB, used=0)
    machine.write(
        Card("amdgpu", AMD, 128, machine.sys / "devices/pci0000:00" / AMD), mem_info_vram_total=value
    )
    (card,) = drm(machine).cards()
    assert (card.total, card.status) == (None, "failed")
    assert "mem_info_vram_total" in (card.message or "")


def test_an_amd_gpu_without_memory_of_its_own(machine: Machine) -> None:
    """Its driver hides the files of what is not there (MI300A)."""
    machine.card("amdgpu", AMD, gtt=(96 * GIB, GIB))
    (card,) = drm(machine).cards()
    assert (card.total, card.used, card.status) == (0, 0, "ok")
    assert (card.system_total, card.system_used) == (96 * GIB, GIB)


def test_files_that_are_missing(machine: Machine) -> None:
    machine.card("amdgpu", AMD)
    (card,) = drm(machine).cards()
    assert (card.total, card.used, card.status) == (None, None, "unsupported")


@needs("root", detail="needs root to become somebody else")
def test_what_may_not_be_read_is_denied(machine: Machine) -> None:
    card = machine.card("amdgpu", AMD, total=GIB, used=MIB)
    for place in (machine.root, *machine.root.parents):
        if os.stat(place).st_uid == os.getuid() and str(place).startswith("/tmp/"):
            os.chmod(place, 0o755)
    os.chmod(card.folder / "mem_info_vram_used", 0)
    # Read once before, as root: somebody else may not be able to import from where this checkout lies.
    code = (
        "import os, sys; from vram.host.local.drm import LocalDrm; LocalDrm(sys.argv[1]).cards();"
        "os.setuid(65534); card, = LocalDrm(sys.argv[1]).cards(); print(card.total, card.used, card.status)"
    )
    told = subprocess.run(
        [sys.executable, "-c", code, str(machine.sys)], capture_output=True, text=True, check=True
    )
    assert told.stdout.split() == [str(GIB), "None", "denied"]


def test_the_drivers_own_version(machine: Machine) -> None:
    machine.card("amdgpu", AMD, total=GIB, used=0)
    (machine.sys / "module/amdgpu").mkdir(parents=True)
    (machine.sys / "module/amdgpu/version").write_text("6.12.12\n")
    assert drm(machine).cards()[0].facts.driver_version == "6.12.12"


def test_rocms_list(machine: Machine) -> None:
    card = machine.card("amdgpu", "0000:c1:00.0", total=GIB, used=0)
    machine.kfd(7, card, 5 * MIB)
    machine.kfd(8, card, 2 * MIB, context="context_0")
    machine.kfd(8, card, MIB, context="context_1")
    machine.kfd(9, card, "what")
    machine.kfd(10, card, MIB, gpu_id=999)  # of a GPU that the topology does not know
    found = {charge.pid: charge for charge in drm(machine).compute()}
    assert {pid: (each.address, each.nbytes) for pid, each in found.items()} == {
        7: ("0000:c1:00.0", 5 * MIB),
        8: ("0000:c1:00.0", 3 * MIB),
        9: ("0000:c1:00.0", None),
    }
    assert found[9].status == "failed"


def test_a_partition_belongs_to_its_whole_gpu(machine: Machine) -> None:
    """A GPU in several partitions shows as several, told apart where the function stands."""
    card = machine.card("amdgpu", "0000:c1:00.0", total=GIB, used=0)
    machine.kfd(7, card._replace(address="0000:c1:00.3"), MIB)
    (charge,) = drm(machine).compute()
    assert charge.address == card.address


def test_nothing_there_costs_nothing(machine: Machine) -> None:
    assert LocalDrm(str(machine.sys / "nowhere")).cards() == []
