"""What bears on parking: who uses CUDA, what memory a process has and may take, its NCCL peers."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator
from contextlib import suppress

from vram.host.local.identity import read_text
from vram.host.local.processes import TICKS_PER_S
from vram.host.local.seccomp import given_up_since_start
from vram.host.ports import CudaProcesses, ParkedMemory
from vram.model.parking import RECORDER, ProcessLimits
from vram.payloads import libcuda
from vram.payloads.procfs import ProcessFolder, text

# PyTorch maps libnccl into every process that imports it: that alone says nothing.
_NCCL = b"libnccl"
_NCCL_SEGMENT = b"/dev/shm/nccl-"
_RANKS = (b"WORLD_SIZE", b"OMPI_COMM_WORLD_SIZE", b"PMI_SIZE")
_MAX_DIGITS = 9
_VISIBLE = b"CUDA_VISIBLE_DEVICES="
_INJECTED = b"CUDA_INJECTION64_PATH="
_MAX_VALUE_LENGTH = 4096
_UNLIMITED = 1 << 60


class LocalProcessLimits:
    """Reads them from trees like /proc and /sys/fs/cgroup."""

    def __init__(self, proc_root: str = "/proc", cgroup_root: str = "/sys/fs/cgroup") -> None:
        self._proc = proc_root
        self._cgroups = cgroup_root

    def read(self, pid: int) -> ProcessLimits:
        total, available = self._host_memory()
        try:
            with ProcessFolder(self._proc, pid) as folder:
                group, left = self._group_memory(folder.read("cgroup") or b"")
                stat, (peers, ranks) = folder.stat(), _nccl_peers(folder)
                threads = [folder.stat(int(thread)) for thread in folder.names("task")]
        except OSError:
            return ProcessLimits(memory_left=available, memory_total=total)
        limited = left is not None and (available is None or left < available)
        return ProcessLimits(
            memory_left=left if limited else available,
            memory_limited_by=group if limited else None,
            memory_total=total,
            nccl_peers=peers,
            nccl_ranks=ranks,
            cpu_s=stat.cpu_ticks / TICKS_PER_S if stat else None,
            runnable=any(each is not None and each.state == "R" for each in threads),
            given_up=given_up_since_start(pid, self._proc),
        )

    def parked_memory(self, pid: int) -> ParkedMemory:
        try:
            with ProcessFolder(self._proc, pid) as folder:
                return ParkedMemory(_private_bytes(folder.status()), _read_variable(folder, _VISIBLE))
        except OSError:
            return ParkedMemory(None, None)

    def cuda_processes(self, deadline_s: float) -> CudaProcesses:
        from threading import Thread

        deadline = time.monotonic() + deadline_s
        found: list[int] = []
        missed: list[int] = []

        def search() -> None:
            for pid in self._own_processes():
                if time.monotonic() >= deadline:
                    missed.append(pid)
                elif self.uses_cuda(pid):
                    found.append(pid)

        # The kernel may keep us waiting for one process's maps, for as long as that holds its memory lock.
        searching = Thread(target=search, daemon=True)
        searching.start()
        searching.join(deadline_s)
        return CudaProcesses(tuple(found), complete=not (missed or searching.is_alive()))

    def uses_cuda(self, pid: int) -> bool:
        # A checkpointed process has closed every device file, but keeps the library (H200, driver 580.159).
        try:
            with ProcessFolder(self._proc, pid) as folder:
                stat = folder.stat()
                # The maps of a process that is stuck in the kernel may never be readable.
                if stat is None or stat.state in "DZX":
                    return False
                return libcuda.IN_MAPS in (folder.read("maps") or b"")
        except OSError:
            return False

    def profiler(self, pid: int) -> str | None:
        """The library that CUDA loads into *pid* for a profiler: vram's own recorder, or another's."""
        try:
            with ProcessFolder(self._proc, pid) as folder:
                if f"/{RECORDER}".encode() in (folder.read("maps") or b""):
                    return RECORDER
                return _read_variable(folder, _INJECTED)
        except OSError:
            return None

    def _own_processes(self) -> Iterator[int]:
        """Processes of this user; for root, all there are."""
        uid = os.geteuid()
        for name in os.listdir(self._proc):
            with suppress(OSError):
                if name.isdigit() and uid in (0, os.stat(f"{self._proc}/{name}").st_uid):
                    yield int(name)

    def boot_id(self) -> str:
        """This boot of this machine: pids and start times mean nothing in another one."""
        return read_text(f"{self._proc}/sys/kernel/random/boot_id").strip() or "unknown"

    def _host_memory(self) -> tuple[int | None, int | None]:
        fields = dict(re.findall(r"^(\w+):\s+(\d+) kB$", read_text(f"{self._proc}/meminfo"), re.MULTILINE))
        total, available = (fields.get(name) for name in ("MemTotal", "MemAvailable"))
        return (int(total) * 1024 if total else None, int(available) * 1024 if available else None)

    def _group_memory(self, membership: bytes) -> tuple[str | None, int | None]:
        """The group that leaves the least, over all levels: every one of them counts its children's."""
        levels = [level for line in membership.splitlines() for level in self._levels(os.fsdecode(line))]
        found = [(left, group) for group, folder in levels if (left := _left_in(folder)) is not None]
        left, group = min(found, default=(None, None))
        return group, left

    def _levels(self, line: str) -> list[tuple[str, str]]:
        _, controllers, path = [*line.split(":", 2), "", ""][:3]
        if ".." in path.split("/"):  # a group outside of what our own namespace shows
            return []
        if controllers and "memory" not in controllers.split(","):
            return []
        root = f"{self._cgroups}/memory" if controllers else self._cgroups
        parts = [part for part in path.split("/") if part]
        return [("/" + "/".join(parts[:n]), "/".join([root, *parts[:n]])) for n in range(len(parts), -1, -1)]


def _left_in(folder: str) -> int | None:
    """What a group may still take: its limit less its use, but for files that can be dropped."""
    limit = _number(f"{folder}/memory.max") or _number(f"{folder}/memory.limit_in_bytes")
    used = _number(f"{folder}/memory.current") or _number(f"{folder}/memory.usage_in_bytes")
    if limit is None or used is None or limit >= _UNLIMITED:
        return None
    droppable = re.search(
        r"^(?:total_)?inactive_file (\d+)$", read_text(f"{folder}/memory.stat"), re.MULTILINE
    )
    return max(0, limit - used + (int(droppable[1]) if droppable else 0))


def _nccl_peers(folder: ProcessFolder) -> tuple[str | None, int | None]:
    """How we know of other ranks, and how many ranks there are."""
    maps = folder.read("maps") or b""
    if _NCCL not in maps:
        return None, None
    name, ranks = _world(folder)
    if _NCCL_SEGMENT in maps:
        return "it shares memory with another rank (/dev/shm/nccl-…)", ranks
    return (f"{name} is {ranks}", ranks) if ranks is not None else (None, None)


def _world(folder: ProcessFolder) -> tuple[str, int | None]:
    """The variable that says how many ranks there are, where there are more than one."""
    for word in (folder.read("environ") or b"").split(b"\0"):
        name, _, value = word.partition(b"=")
        if name in _RANKS and value.isdigit() and len(value) <= _MAX_DIGITS and int(value) > 1:
            return name.decode(), int(value)
    return "", None


def _private_bytes(status: dict[bytes, bytes]) -> int | None:
    """Host memory of its own, swapped out or not: the driver parks GPU memory there."""
    figures = {
        name: re.fullmatch(rb"(\d{1,15}) kB", status.get(name, b"")) for name in (b"RssAnon", b"VmSwap")
    }
    known = [int(figure[1]) for figure in figures.values() if figure]
    return sum(known) * 1024 if figures[b"RssAnon"] else None


def _read_variable(folder: ProcessFolder, variable: bytes) -> str | None:
    """What *variable* was when the process was started; None where it was not set."""
    words = (folder.read("environ") or b"").split(b"\0")
    said = next((word for word in words if word.startswith(variable)), None)
    return None if said is None else text(said.removeprefix(variable)[:_MAX_VALUE_LENGTH])


def _number(path: str) -> int | None:
    text = read_text(path).strip()
    return int(text) if text.isdigit() else None
