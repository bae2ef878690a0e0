"""Open device files per process: who holds a GPU even when NVML lists no process."""

from __future__ import annotations

import errno
import os
import re
import stat
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import suppress
from itertools import groupby
from typing import Generic, NamedTuple, TypeVar

from msgspec import Struct

from vram.host.local.identity import user_name
from vram.host.local.proc_scan import RawFile, Scan, ScanResult, best_scan
from vram.host.ports import Dmabuf, DrmClient, FileHolder, FileScan
from vram.model.files import DeviceFile, ElsewhereCode, FileKind
from vram.model.process import ProcessRef
from vram.payloads.procfs import ProcessFolder, Stat, inside_of, living_thread, map_lines, text

_MAX_MAPS_NBYTES = 64 << 20
VIRTUAL_GPU = "VRAM_VIRTUAL_GPU"
_NVIDIA_MAJOR = 195  # of /dev/nvidia<minor> and /dev/nvidiactl; the others get a free number at boot
_DELETED = b" (deleted)"

# Compiled when they are used: no machine needs all of them.
_REAL = (
    rb"/dev/nvidia(?:(?P<gpu>\d{1,4})|(?P<control>ctl)|(?P<uvm>-uvm(?:-tools)?)|(?P<other>-[\w/-]+))"
    rb"|(?P<dmabuf>/dmabuf:(?s:.*))|(?P<dxg>/dev/dxg)"
)
_DRM = rb"/dev/dri/(?:card|renderD)(\d{1,4})"
_DRM_MAJOR = 226
DRM_PREFIX = b"/dev/dri/"
_VIRTUAL = (
    rb"nvidia(?:(?P<gpu>\d{1,4})(?:\.\d+)?|(?P<control>ctl(?:\.\d+)?)|(?P<uvm>-uvm))|(?P<dmabuf>dmabuf\.\d+)"
)
# Under Windows' driver all is reached through one device; a client's own file stands for it too.
_VIRTUAL_WINDOWS = rb"(?P<dxg>dxg|nvidia\d{1,4}\.\d+)"
# Every context maps 2 MiB of nvidia-uvm for itself (driver 580.159); larger ones are managed memory.
_OF_A_CONTEXT = 2 << 20


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
        self._begun: Background[ScanResult] | None = None

    def begin_scan(self, deadline_s: float) -> None:
        """Begin a walk beside whatever is done next; the next scan of all processes collects it."""
        deadline = time.monotonic() + deadline_s
        self._begun = Background(lambda: self._walk(None, deadline))

    def _walk(self, pids: Sequence[int] | None, deadline: float) -> ScanResult:
        return self._scan.files(self._root, self._names.prefixes, pids, deadline, self._names.informed)

    def scan(self, deadline_s: float, pids: Sequence[int] | None = None) -> FileScan:
        deadline = time.monotonic() + deadline_s
        if pids is not None and not pids:
            return FileScan(())
        if pids is None and self._begun is not None:
            begun, self._begun = self._begun, None
            walked = begun.result()
        else:
            walked = self._walk(pids, deadline)
        denied, ours = walked.denied, set(self._ignore())
        pairs = ((file, self._names.name(file)) for file in walked.files if file.pid not in ours)
        named = [(file, named_as) for file, named_as in pairs if named_as]
        numbers = _descriptions(self._scan, self._root, named, deadline)
        return FileScan(
            tuple(self._holders(named, numbers, deadline)),
            denied_users=tuple(sorted({user_name(uid) for uid in denied})),
            denied_processes=len(denied),
            complete=not walked.late,
            full=walked.full,
            cut=tuple(ProcessRef(pid) for pid in sorted(set(walked.cut) - ours)),
            cut_users=tuple(sorted({user_name(uid) for uid in _owners(self._root, walked.cut)})),
        )

    def elsewhere(self, deadline_s: float) -> tuple[ElsewhereCode, ...]:
        from vram.host.local.elsewhere import (
            look_elsewhere,
        )  # for one entry of the ledger, where it is possible

        deadline, names = time.monotonic() + deadline_s, self._names
        return look_elsewhere(self._root, names.mapped, set(self._ignore()), deadline, virtual=names.virtual)

    def _holders(
        self,
        named: list[tuple[RawFile, NamedFile]],
        numbers: dict[tuple[int, int], int | None],
        deadline: float,
    ) -> Iterable[FileHolder]:
        named.sort(key=lambda pair: (pair[0].pid, pair[0].fd))
        for pid, group in groupby(named, key=lambda pair: pair[0].pid):
            everything = list(group)
            process = ProcessRef(pid, everything[0][0].started_at)
            nodes = [pair for pair in everything if pair[1].kind == "drm"]
            held = [pair for pair in everything if pair[1].kind != "drm"]
            dmabufs, mappings = self._details(process, held, deadline) if held else ((), None)
            foreign = {buffer.fd for buffer in dmabufs if not self._names.may_be_gpu_memory(buffer.exporter)}
            files = tuple(
                DeviceFile(
                    file.fd, named_as.kind, text(named_as.path), named_as.minor, numbers.get((pid, file.fd))
                )
                for file, named_as in held
                if file.fd not in foreign
            )
            clients = tuple(_clients(nodes, numbers)) if nodes else ()
            if files or clients:
                kept = tuple(buffer for buffer in dmabufs if buffer.fd not in foreign)
                number, managed = mappings or (None, None)
                yield FileHolder(process, files, kept, number, managed, clients)

    def _details(
        self, process: ProcessRef, held: list[tuple[RawFile, NamedFile]], deadline: float
    ) -> tuple[tuple[Dmabuf, ...], Mappings | None]:
        """What needs a second look at the process: its dma-bufs and mappings."""
        buffers = [file for file, named_as in held if named_as.kind == "dmabuf"]
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
        maps = folder.read(f"{inside_of(thread)}maps", _MAX_MAPS_NBYTES) if alive.state != "D" else None
        return mappings_in(maps, self._names.mapped, self._names.uvm) if maps is not None else None


# To number n descriptions takes n log n calls of two microseconds: so many of one user's, and of all but
# root's, are numbered. The rest may be shared with any process.
_MAX_OF_USER, _MAX_OF_USERS = 1 << 14, 1 << 15


def _descriptions(
    scan: Scan, root: str, named: list[tuple[RawFile, NamedFile]], deadline: float
) -> dict[tuple[int, int], int | None]:
    """Number the open files behind descriptors on GPUs, on the control device and on Windows' one."""

    def is_unnumbered(info: bytes | None) -> bool:
        # A DRM driver may leave it to the kernel to tell its open files apart.
        return info is not None and b"drm-client-id:" not in info and b"pasid:" not in info

    groups: dict[bytes, int] = {}
    wanted = [
        (file, groups.setdefault(named_as.path, len(groups)))
        for file, named_as in named
        if named_as.kind in ("gpu", "control", "dxg") or (named_as.kind == "drm" and is_unnumbered(file.info))
    ]
    if len(wanted) > _MAX_OF_USER:
        kept = _within_shares(root, Counter(file.pid for file, _ in wanted))
        wanted = [(file, group) for file, group in wanted if file.pid in kept]
    if not wanted:
        return {}
    numbers = scan.describe([(file.thread or file.pid, file.fd, group) for file, group in wanted], deadline)
    return {(file.pid, file.fd): number for (file, _), number in zip(wanted, numbers, strict=True)}


def _within_shares(root: str, counts: Counter[int]) -> set[int]:
    """Those pids whose users have few enough descriptors; who has the fewest comes first."""
    owners = _owners(root, counts)
    kept = set(owners.pop(0, ()))
    left = _MAX_OF_USERS
    by_size = sorted((sum(counts[pid] for pid in pids), uid) for uid, pids in owners.items())
    for total, uid in by_size:
        if total > min(_MAX_OF_USER, left):
            break
        left -= total
        kept.update(owners[uid])
    return kept


def _owners(root: str, pids: Iterable[int]) -> dict[int, list[int]]:
    """The pids of each user; without those that have ended."""
    owners: dict[int, list[int]] = {}
    for pid in pids:
        with suppress(OSError):
            owners.setdefault(os.stat(f"{root}/{pid}").st_uid, []).append(pid)
    return owners


def _dmabuf(folder: ProcessFolder, file: RawFile) -> Dmabuf:
    raw = folder.read(f"{inside_of(file.thread)}fdinfo/{file.fd}") or b""
    fields = dict(line.split(b":", 1) for line in raw.splitlines() if b":" in line)
    size = fields.get(b"size", b"").strip()
    exporter = text(fields.get(b"exp_name", b"").strip())
    return Dmabuf(file.fd, file.inode, int(size) if size.isdigit() else file.size or None, exporter or None)


def _clients(
    nodes: list[tuple[RawFile, NamedFile]], numbers: dict[tuple[int, int], int | None]
) -> Iterable[DrmClient]:
    from vram.host.local.drm_usage import read_client, unread_client

    for file, named_as in nodes:
        if file.info is not None:
            yield read_client(file.fd, named_as.minor, file.info, numbers.get((file.pid, file.fd)))
        elif file.error not in (errno.ENOENT, errno.ESRCH, errno.EBADF):  # else it was closed meanwhile
            yield unread_client(file.fd, named_as.minor, file.error)


# ---- which open files are device files, by the text of their links and what is behind them ----


class NamedFile(Struct, frozen=True):
    """What a link names."""

    kind: FileKind
    path: bytes
    minor: int | None = None


class DeviceNames:
    """The names of device files: the real driver's, or those in a virtual GPU's folder.

    Never both: what holds a real GPU has no part in the virtual one's account. *drm* are the
    drivers of AMD's and Intel's GPUs that are looked at too, if any.
    """

    def __init__(self, virtual_folder: str | None = None, drm: Collection[str] = ()) -> None:
        self.virtual = virtual_folder is not None
        self._dev = os.fsencode(os.path.realpath(virtual_folder)) + b"/dev/" if virtual_folder else b""
        self._windows = self.virtual and os.path.exists(self._dev + b"dxg")
        self.mapped = (self._dev,) if self.virtual else (b"/dev/nvidia", b"/dmabuf:", b"/dev/dxg")
        self.prefixes = self.mapped
        self.informed = (DRM_PREFIX,) if drm else ()
        if drm:
            self.prefixes = tuple(dict.fromkeys((*self.mapped, b"/dmabuf:", DRM_PREFIX)))
        # A virtual GPU has dma-bufs of its own kind; the kernel's then belong to the others only.
        self._exporters = tuple(drm)
        self.uvm = (self._dev or b"/dev/") + b"nvidia-uvm"

    def name(self, file: RawFile) -> NamedFile | None:
        """What *file* is to us, or None where its name merely looks alike."""
        path = file.link.removesuffix(_DELETED)
        if path.startswith(DRM_PREFIX):
            return _drm_node(path, file) if self.informed else None
        if self.virtual and not (self.informed and path.startswith(b"/dmabuf:")):
            return self._virtual(path, file)
        return self._real(path, file)

    def may_be_gpu_memory(self, exporter: str | None) -> bool:
        """Cameras and compositors export dma-bufs too: theirs are no GPU's memory."""
        if exporter is None or exporter in self._exporters:
            return True
        return not self.virtual and exporter.startswith("nv")

    def _real(self, path: bytes, file: RawFile) -> NamedFile | None:
        found = re.fullmatch(_REAL, path)
        if found is None or not found.lastgroup:
            return None
        kind: FileKind = found.lastgroup  # type: ignore[assignment]
        if kind == "dmabuf":
            return NamedFile("dmabuf", b"/dmabuf:")
        if file.mode and not _is_nvidia_device(kind, file):
            return None
        return NamedFile(kind, path, int(found["gpu"]) if kind == "gpu" else None)

    def _virtual(self, path: bytes, file: RawFile) -> NamedFile | None:
        pattern = _VIRTUAL_WINDOWS if self._windows else _VIRTUAL
        inside = path.startswith(self._dev)
        found = re.fullmatch(pattern, path.removeprefix(self._dev)) if inside else None
        if found is None or not found.lastgroup or (file.mode and not stat.S_ISREG(file.mode)):
            return None
        kind: FileKind = found.lastgroup  # type: ignore[assignment]
        if kind == "dxg":
            return NamedFile(kind, self._dev + b"dxg")
        return NamedFile(kind, path, int(found["gpu"]) if kind == "gpu" else None)


def _drm_node(path: bytes, file: RawFile) -> NamedFile | None:
    found = re.fullmatch(_DRM, path)
    if found is None:
        return None
    if not file.mode:
        return NamedFile("drm", path, int(found[1]))
    # A container can give its device files any name; the kernel's number is the device.
    if not stat.S_ISCHR(file.mode) or os.major(file.device) != _DRM_MAJOR:
        return None
    return NamedFile("drm", path, os.minor(file.device))


def _is_nvidia_device(kind: FileKind, file: RawFile) -> bool:
    """A plain file can be called /dev/nvidia0 in a container that owns its /dev."""
    if not stat.S_ISCHR(file.mode):
        return False
    return kind not in ("gpu", "control") or os.major(file.device) == _NVIDIA_MAJOR


# ---- mappings of device files: how many, and how much managed memory they show ----


class Mappings(NamedTuple):
    """``managed_bytes`` is what the process may have on its GPUs, in host memory, or half and half."""

    number: int
    managed_bytes: int


def mappings_in(maps: bytes, prefixes: tuple[bytes, ...], uvm: bytes) -> Mappings:
    """Read /proc/PID/maps for files that start with *prefixes*; *uvm* is the managed memory's."""
    device = [line for line in map_lines(maps, prefixes) if line.path.startswith(prefixes)]
    managed = (line.nbytes for line in device if line.path == uvm)
    return Mappings(len(device), sum(nbytes for nbytes in managed if nbytes > _OF_A_CONTEXT))


# ---- a walk that begins before its result is asked for, in a thread: it is a call into C ----


Result = TypeVar("Result")


class Background(Generic[Result]):
    """Runs *job* at once. ``result`` waits for it, and raises what it raised."""

    def __init__(self, job: Callable[[], Result]) -> None:
        self._job = job
        self._results: list[Result] = []
        self._error: BaseException | None = None
        # A daemon: a program that ends does not wait for a result that it no longer asks for.
        self._thread = threading.Thread(target=self._run, daemon=True)
        try:
            self._thread.start()
        except RuntimeError:  # this user may have no more threads: then it is done now
            self._run()

    def _run(self) -> None:
        try:
            self._results.append(self._job())
        except BaseException as error:
            self._error = error

    def result(self) -> Result:
        if self._thread.ident is not None:
            self._thread.join()
        if self._error is not None:
            raise self._error
        return self._results[0]
