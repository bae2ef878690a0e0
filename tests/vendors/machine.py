"""A machine in a folder: trees like /proc and /sys with cards of AMD and Intel, made for tests."""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

from tests.vendors.fdinfo_styles import STYLES, Use

PCI_IDS = """\
# a few lines in the manner of pci.ids
1002  Advanced Micro Devices, Inc. [AMD/ATI]
\t744c  Navi 31 [Radeon RX 7900 XT/7900 XTX]
\t\t1002 0e3b  Sapphire
8086  Intel Corporation
\t56a0  DG2 [Arc A770]
\te20b  Battlemage G21 [Arc B580]
\t9a49  TigerLake-LP GT2 [Iris Xe Graphics]
"""
AMDGPU_IDS = "1.0.0\n744C,\tC8,\tAMD Radeon RX 7900 XTX\n744C,\tCC,\tAMD Radeon RX 7900 XT\n"
DEVICES = {"amdgpu": "0x744c", "i915": "0x56a0", "xe": "0xe20b"}
FIRST_PID = 5_000_000  # beyond what a kernel gives out, so that none is a real process


class Card(NamedTuple):
    """A card that was put into the machine."""

    driver: str
    address: str
    node: int
    folder: Path


class Machine:
    """Builds the trees; every method writes what a kernel would show."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.proc, self.sys = root / "proc", root / "sys"
        self.proc.mkdir(parents=True)
        (self.sys / "class/drm").mkdir(parents=True)
        self._clients = 100

    def card(
        self,
        driver: str,
        address: str,
        *,
        total: int | None = None,
        used: int | None = None,
        gtt: tuple[int, int] | None = None,
        tiles: tuple[int, ...] = (),
        device: str | None = None,
    ) -> Card:
        number = len(list((self.sys / "class/drm").iterdir()))
        folder = self.sys / "devices/pci0000:00" / address
        for name in (f"card{number}", f"renderD{128 + number}"):
            (folder / "drm" / name).mkdir(parents=True)
        (folder / "drm" / f"card{number}" / "device").symlink_to(folder)
        driver_folder = self.sys / "bus/pci/drivers" / driver
        driver_folder.mkdir(parents=True, exist_ok=True)
        (folder / "driver").symlink_to(driver_folder)
        (driver_folder / address).symlink_to(folder)
        (self.sys / "class/drm" / f"card{number}").symlink_to(folder / "drm" / f"card{number}")
        card = Card(driver, address, 128 + number, folder)
        vendor = {"amdgpu": "0x1002", "nvidia": "0x10de"}.get(driver, "0x8086")
        self.write(card, vendor=vendor, device=device or DEVICES.get(driver, "0x0000"), revision="0xc8")
        if total is not None and not tiles:
            self.write(card, mem_info_vram_total=total, mem_info_vram_used=used)
        if gtt is not None:
            self.write(card, mem_info_gtt_total=gtt[0], mem_info_gtt_used=gtt[1])
        for at, nbytes in enumerate(tiles):
            (folder / f"tile{at}").mkdir()
            (folder / f"tile{at}" / "physical_vram_size_bytes").write_text(f"{nbytes}\n")
        return card

    def write(self, card: Card, **values: object) -> None:
        for name, value in values.items():
            if value is not None:
                (card.folder / name).write_text(f"{value}\n")

    def process(
        self,
        pid: int,
        command: str = "python train.py",
        *,
        parent: int = 1,
        group: int | None = None,
        session: int | None = None,
        state: str = "S",
        uid: int | None = None,
        executable: str = "/usr/bin/python3",
    ) -> int:
        """A process of the user *uid*: of the one who looks, unless said otherwise."""
        uid = os.getuid() if uid is None else uid
        folder = self.proc / str(pid)
        (folder / "fd").mkdir(parents=True)
        (folder / "fdinfo").mkdir()
        name = command.split()[0]
        leaders = f"{group or pid} {session or pid}"
        (folder / "stat").write_text(
            f"{pid} ({name}) {state} {parent} {leaders} 0 -1 0 {'0 ' * 12}{pid} 0 0\n"
        )
        (folder / "status").write_text(f"Name:\t{name}\nUid:\t{uid}\t{uid}\t{uid}\t{uid}\nNSpid:\t{pid}\n")
        (folder / "cmdline").write_bytes(command.replace(" ", "\0").encode() + b"\0")
        (folder / "cgroup").write_text("0::/user.slice/session.scope\n")
        (folder / "maps").write_text("")
        (folder / "exe").symlink_to(executable)
        return pid

    def client(
        self,
        pid: int,
        card: Card,
        use: Use = Use(),  # noqa: B008 - a value without state
        *,
        kernel: str = "6.12",
        fd: int | None = None,
        number: int | None = None,
        node: str = "renderD",
    ) -> int:
        """Open *card* in *pid*; returns the client's number, to be opened again by others."""
        if number is None:
            self._clients += 1
            number = self._clients
        self.fdinfo(pid, card, STYLES[card.driver](kernel, card.address, number, use), fd=fd, node=node)
        return number

    def fdinfo(
        self, pid: int, card: Card, text: str | bytes, *, fd: int | None = None, node: str = "renderD"
    ) -> int:
        folder = self.proc / str(pid)
        fd = 3 + len(list((folder / "fd").iterdir())) if fd is None else fd
        number = card.node if node == "renderD" else card.node - 128
        (folder / "fd" / str(fd)).symlink_to(f"/dev/dri/{node}{number}")
        (folder / "fdinfo" / str(fd)).write_bytes(text if isinstance(text, bytes) else text.encode())
        return fd

    def dmabuf(self, pid: int, nbytes: int, exporter: str, *, fd: int = 90) -> None:
        folder = self.proc / str(pid)
        (folder / "fd" / str(fd)).symlink_to("/dmabuf:")
        text = f"pos:\t0\nino:\t77\nsize:\t{nbytes}\ncount:\t2\nexp_name:\t{exporter}\n"
        (folder / "fdinfo" / str(fd)).write_text(text)

    def dmem(self, card: Card, **regions: tuple[int, int]) -> None:
        """The root of the cgroups tells size and use of *regions*, after those of other cards."""
        folder = self.sys / "fs/cgroup"
        folder.mkdir(parents=True, exist_ok=True)
        for at, name in enumerate(("dmem.capacity", "dmem.current")):
            with (folder / name).open("a") as file:
                file.writelines(
                    f"drm/{card.address}/{region} {sizes[at]}\n" for region, sizes in regions.items()
                )

    def sleep(self, card: Card) -> None:
        (card.folder / "power").mkdir()
        (card.folder / "power/runtime_status").write_text("suspended\n")

    def kfd(
        self,
        pid: int,
        card: Card,
        nbytes: object,
        *,
        gpu_id: int = 51234,
        context: str = "",
        bank: int | None = None,
    ) -> None:
        """ROCm's list names *pid*; the topology tells which card its number means, and its memory."""
        node = self.sys / "class/kfd/kfd/topology/nodes" / "1"
        if not node.exists():
            (self.sys / "class/kfd/kfd/topology/nodes/0").mkdir(parents=True)
            (self.sys / "class/kfd/kfd/topology/nodes/0/gpu_id").write_text("0\n")
            node.mkdir()
            (node / "gpu_id").write_text(f"{gpu_id}\n")
            domain, bus, rest = card.address.split(":")
            device, function = rest.split(".")
            location = int(bus, 16) << 8 | int(device, 16) << 3 | int(function)
            (node / "properties").write_text(
                f"cpu_cores_count 0\nsimd_count 384\nlocation_id {location}\ndomain {int(domain, 16)}\n"
            )
        if bank is not None:
            (node / "mem_banks/0").mkdir(parents=True, exist_ok=True)
            (node / "mem_banks/0/properties").write_text(f"heap_type 1\nsize_in_bytes {bank}\nflags 0\n")
        folder = self.sys / "class/kfd/kfd/proc" / str(pid) / context
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"vram_{gpu_id}").write_text(f"{nbytes}\n")

    def names(self) -> Path:
        """A root with the lists that name PCI devices."""
        for place, text in (
            ("usr/share/hwdata/pci.ids", PCI_IDS),
            ("usr/share/libdrm/amdgpu.ids", AMDGPU_IDS),
        ):
            (self.root / place).parent.mkdir(parents=True, exist_ok=True)
            (self.root / place).write_text(text)
        return self.root

    def admit(self, *pids: int) -> None:
        """Let real processes be seen in this machine's /proc, and their ancestors with them."""
        for pid in pids:
            while pid > 1 and not (self.proc / str(pid)).exists():
                (self.proc / str(pid)).symlink_to(f"/proc/{pid}")
                pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])

    def adopt(self, pid: int) -> None:
        """Show a real process as it is, except for the device files that it has open."""
        folder = self.proc / str(pid)
        (folder / "fd").mkdir(parents=True)
        (folder / "fdinfo").mkdir()
        for name in ("stat", "status", "cmdline", "cgroup", "exe", "maps", "ns", "root"):
            (folder / name).symlink_to(f"/proc/{pid}/{name}")
        if not (self.proc / "self").exists():
            (self.proc / "self").symlink_to("/proc/self")

    @property
    def environment(self) -> dict[str, str]:
        return {**os.environ, "VRAM_PROC_ROOT": str(self.proc), "VRAM_SYS_ROOT": str(self.sys)}
