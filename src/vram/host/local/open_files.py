"""Open device files per process: who holds a GPU even when NVML lists nobody."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from itertools import groupby
from typing import Protocol

from vram.host.local.ahead import Ahead
from vram.host.local.device_files import DeviceNames, Naming, RawFile, Walked
from vram.host.local.identity import user_name
from vram.host.local.mappings import Mappings, mappings_in
from vram.host.local.native_scan import NativeScan
from vram.host.ports import Dmabuf, DrmClient, FileScan, Holding
from vram.model.files import DeviceFile
from vram.model.process import ProcessRef
from vram.payloads.procfs import ProcessFolder, Stat, inside_of, living_thread, text

_MOST_MAPS_NBYTES = 64 << 20


class Scan(Protocol):
    """A walk over /proc: native, or Python where that is missing. One contract for both."""

    def files(
        self,
        root: str,
        prefixes: Sequence[bytes],
        pids: Sequence[int] | None,
        deadline: float,
        informed: Sequence[bytes] = (),
    ) -> Walked: ...

    def describe(self, descriptors: Sequence[tuple[int, int, int]], deadline: float) -> list[int | None]: ...


def best_scan() -> Scan:
    try:
        return NativeScan()
    except OSError:
        from vram.host.local.python_scan import PythonScan

        return PythonScan()


class LocalOpenFiles:
    """Finds the holders of device files under a tree like /proc."""

    def __init__(
        self,
        names: DeviceNames,
        root: str = "/proc",
        *,
        ignore: Callable[[], Collection[int]] = tuple,
        scan: Scan | None = None,
    ) -> None:
        self._names = names
        self._root = root
        # The processes in which we read the driver have its files open, on our behalf.
        self._ignore = ignore
        self._scan = scan or best_scan()
        self._ahead: Ahead[Walked] | None = None

    def look_ahead(self, deadline_s: float) -> None:
        """Begin a walk beside whatever is done next; the next scan of everybody collects it."""
        deadline = time.monotonic() + deadline_s
        self._ahead = Ahead(lambda: self._walk(None, deadline))

    def _walk(self, pids: Sequence[int] | None, deadline: float) -> Walked:
        return self._scan.files(self._root, self._names.prefixes, pids, deadline, self._names.informed)

    def scan(self, deadline_s: float, pids: Sequence[int] | None = None) -> FileScan:
        deadline = time.monotonic() + deadline_s
        if pids is not None and not pids:
            return FileScan(())
        begun = None
        if pids is None:
            begun, self._ahead = self._ahead, None
        walked = begun.result() if begun else self._walk(pids, deadline)
        denied, ours = walked.denied, set(self._ignore())
        pairs = ((file, self._names.name(file)) for file in walked.files if file.pid not in ours)
        named = [(file, naming) for file, naming in pairs if naming]
        numbers = _descriptions(self._scan, named, deadline)
        return FileScan(
            tuple(self._holdings(named, numbers, deadline)),
            denied_users=tuple(sorted({user_name(uid) for uid in denied})),
            denied_processes=len(denied),
            complete=not walked.late,
            full=walked.full,
            cut=tuple(ProcessRef(pid) for pid in sorted(set(walked.cut) - ours)),
            denied_init=bool(denied) and _is_denied(f"{self._root}/1/fd"),
        )

    def _holdings(
        self, named: list[tuple[RawFile, Naming]], numbers: dict[tuple[int, int], int | None], deadline: float
    ) -> Iterable[Holding]:
        named.sort(key=lambda pair: (pair[0].pid, pair[0].fd))
        for pid, group in groupby(named, key=lambda pair: pair[0].pid):
            everything = list(group)
            process = ProcessRef(pid, everything[0][0].started_at)
            nodes = [pair for pair in everything if pair[1].kind == "drm"]
            held = [pair for pair in everything if pair[1].kind != "drm"]
            dmabufs, mappings = self._details(process, held, deadline) if held else ((), None)
            foreign = {buffer.fd for buffer in dmabufs if not self._names.may_be_gpu_memory(buffer.exporter)}
            files = tuple(
                DeviceFile(file.fd, naming.kind, text(naming.path), naming.minor, numbers.get((pid, file.fd)))
                for file, naming in held
                if file.fd not in foreign
            )
            clients = tuple(_clients(nodes, numbers)) if nodes else ()
            if files or clients:
                kept = tuple(buffer for buffer in dmabufs if buffer.fd not in foreign)
                number, managed = mappings or (None, None)
                yield Holding(process, files, kept, number, managed, clients)

    def _details(
        self, process: ProcessRef, held: list[tuple[RawFile, Naming]], deadline: float
    ) -> tuple[tuple[Dmabuf, ...], Mappings | None]:
        """What needs a second look at the process: its dma-bufs and mappings."""
        buffers = [file for file, naming in held if naming.kind == "dmabuf"]
        plain = tuple(Dmabuf(file.fd, file.inode, file.size or None, None) for file in buffers)
        if time.monotonic() >= deadline:
            return plain, None
        try:
            with ProcessFolder(self._root, process.pid) as folder:
                stat = folder.stat()
                if stat is None or stat.started_at != process.started_at:
                    return plain, None
                dmabufs = tuple(
                    _dmabuf(folder, file) if file.link.startswith(b"/dmabuf:") else own
                    for file, own in zip(buffers, plain, strict=True)
                )
                return dmabufs, self._mappings(folder, stat)
        except OSError:
            return plain, None

    def _mappings(self, folder: ProcessFolder, stat: Stat) -> Mappings | None:
        thread = living_thread(folder, stat)
        alive = (folder.stat(thread) if thread else None) or stat
        # As with command lines: a process stuck in the driver may hold its memory lock for good.
        maps = folder.read(f"{inside_of(thread)}maps", _MOST_MAPS_NBYTES) if alive.state != "D" else None
        return mappings_in(maps, self._names.mapped, self._names.uvm) if maps is not None else None


def _descriptions(
    scan: Scan, named: list[tuple[RawFile, Naming]], deadline: float
) -> dict[tuple[int, int], int | None]:
    """Number the open files behind descriptors on GPUs, on the control device and on Windows' one."""
    groups: dict[bytes, int] = {}
    wanted = [
        (file, groups.setdefault(naming.path, len(groups)))
        for file, naming in named
        if naming.kind in ("gpu", "control", "dxg") or (naming.kind == "drm" and _is_unnumbered(file.info))
    ]
    if not wanted:
        return {}
    numbers = scan.describe([(file.thread or file.pid, file.fd, group) for file, group in wanted], deadline)
    return {(file.pid, file.fd): number for (file, _), number in zip(wanted, numbers, strict=True)}


def _dmabuf(folder: ProcessFolder, file: RawFile) -> Dmabuf:
    raw = folder.read(f"{inside_of(file.thread)}fdinfo/{file.fd}") or b""
    fields = dict(line.split(b":", 1) for line in raw.splitlines() if b":" in line)
    size = fields.get(b"size", b"").strip()
    exporter = text(fields.get(b"exp_name", b"").strip())
    return Dmabuf(file.fd, file.inode, int(size) if size.isdigit() else file.size or None, exporter or None)


def _is_unnumbered(info: bytes | None) -> bool:
    """Whether a DRM driver leaves it to the kernel to tell its open files apart."""
    return info is not None and b"drm-client-id:" not in info and b"pasid:" not in info


def _clients(
    nodes: list[tuple[RawFile, Naming]], numbers: dict[tuple[int, int], int | None]
) -> Iterable[DrmClient]:
    from vram.host.local.fdinfo import read_client, unread_client

    for file, naming in nodes:
        if file.info is not None:
            yield read_client(file.fd, naming.minor, file.info, numbers.get((file.pid, file.fd)))
        elif not _is_closed(file.error):
            yield unread_client(file.fd, naming.minor, file.error)


def _is_closed(error: int) -> bool:
    return error in (errno.ENOENT, errno.ESRCH, errno.EBADF)


def _is_denied(folder: str) -> bool:
    """Whether the descriptors of a process may not be read; some kernels let them be listed all the same."""
    try:
        for name in os.listdir(folder):
            os.readlink(f"{folder}/{name}")
            return False
    except PermissionError:
        return True
    except OSError:
        return False
    return False
