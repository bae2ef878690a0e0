"""Reads NVML, inside a process of its own. Every call is announced before it is made.

Statements are plain dictionaries here, with the fields of the model's structs: this runs
while the process that asked is still importing those. What it says:

    calling  probe, gpu, call     the next call; if nothing follows, it never returned
    found    gpus                 how many there are
    saw      observation          one statement, as the fields of an Observation
    meanwhile observation         one that counts only if the better one never comes
    done     stays                all was said; without it the reader died. stays: ask again for another round
"""

from __future__ import annotations

import _thread
import gc
import marshal
import os
import select
import sys
from collections.abc import Callable, Iterable
from contextlib import suppress
from types import ModuleType
from typing import Any

from vram.children import frame, send
from vram.host.local import FIGURES
from vram.host.local.nvml_library import (
    GpuGone,
    code_of,
    driver_facts,
    is_loss,
    left_statement,
    lend_library,
    message_of,
    statement_of,
    text,
)
from vram.payloads.procfs import read_stat

_LISTS = (("compute", "Compute"), ("graphics", "Graphics"), ("mps", "MPSCompute"))
_COMPUTE_MODES = ("default", "exclusive-thread", "prohibited", "exclusive-process")
# The driver's advice, by its number, and the field that has it (NVML_FI_DEV_GET_GPU_RECOVERY_ACTION): as
# the headers of NVML 13 have them. On real hardware the field was not read yet.
_RECOVERY_ACTION = 230
_RECOVERY_ACTIONS = (
    *("none", "gpu-reset", "node-reboot", "drain-p2p", "drain-and-reset"),
    *("recover-imex-domain", "bus-reset", "system-reboot"),
)
_TRIES = 3
_UNCORRECTED_SINCE_BOOT = (1, 0)
_LIBRARY_NOT_FOUND = 12
_WITHHELD = (3, 4, 6)  # not supported, no permission, not found (any more)
_NOT_SUPPORTED = 3
_LIMITS_SINCE = 615
_NO_LIMIT = (1 << 64) - 1
_VIRTUALIZATIONS = ("none", "passthrough", "vgpu", "host-vgpu", "host-vsga")
_ADDRESSING_MODES = ("none", "hmm", "ats")
_MAX_PID = 1 << 22  # the kernel's PID_MAX_LIMIT
_UNDER_MIG = "under MIG only root may read the whole GPU; its instances are read one by one"

_Failure = tuple[str, Exception]  # of the list with that name
_SENTINEL = 1 << 63  # the driver writes 2^64-1 for "not available"; no size comes near it
_NO_INSTANCE = 0xFFFFFFFF

_Memory = dict[str, Any] | None
# A GPU's handle, its facts, and its MIG devices.
_Device = tuple[Any, dict[str, Any], "_MigDevices"]
# The handle of each MIG device, and the fields of its facts; None where MIG is off or they are unknown.
_MigDevices = list[tuple[Any, dict[str, Any]]] | None
# By pid, GPU instance and compute instance: bytes, and which lists name them.
_Figures = dict[tuple[int, int | None, int | None], tuple[int | None, tuple[str, ...]]]


class Reader:
    """One pass over the library, said into a pipe."""

    def __init__(self, nvml: ModuleType, pipe: int) -> None:
        self._nvml = nvml
        self._pipe = pipe
        self._probe = "nvml.init"
        self._gpu: int | None = None
        self._nodes: dict[int | None, int | None] = {}
        """GPUs that may share the machine's memory, and the node of it that is theirs."""
        self._cgroup: str | None = None
        """The control group that this process is in, where the driver knows limits."""

    def say(self, **fields: Any) -> None:
        self._send("saw", self._statement(fields))

    def _send(self, *message: Any) -> None:
        _say(self._pipe, *message)

    def _statement(self, fields: dict[str, Any]) -> dict[str, Any]:
        return {"probe": self._probe, "gpu": self._gpu, **fields}

    def call(self, name: str, *arguments: Any, **options: Any) -> Any:
        """Make a call, announced; raises what the library raises."""
        self._announce(name)
        function: Callable[..., Any] = getattr(self._nvml, name)
        return function(*arguments, **options)

    def _announce(self, name: str) -> None:
        self._send("calling", self._probe, self._gpu, name)

    def ask(self, name: str, *arguments: Any) -> Any:
        """Make a call whose answer may be missing; only the loss of the GPU is an error."""
        try:
            return self.call(name, *arguments)
        except Exception as error:
            if is_loss(error):
                raise GpuGone(error) from error
            return None

    def read(self, skip: set[int]) -> None:
        if not self._init():
            return
        try:
            gpus = int(self.call("nvmlDeviceGetCount"))
        except Exception as error:
            self._probe = "nvml.init"
            self.say(**self._statement_of(error))
            return
        self._send("found", gpus)
        for index in range(gpus):
            if index not in skip:
                self._gpu = index
                self._read_gpu(index)

    def _init(self) -> bool:
        try:
            self._start_library()
        except Exception as error:
            self.say(**statement_of(error, self._nvml))
            self._probe = "nvml.driver"
            self.say(facts=driver_facts(lambda name: None))
            return False
        self._say_driver()
        return True

    def _say_driver(self) -> None:
        self.say()
        self._probe = "nvml.driver"
        facts = driver_facts(self.ask)
        self.say(facts=facts)
        major = (facts["driver_version"] or "").partition(".")[0]
        if major.isdigit() and int(major) >= _LIMITS_SINCE:
            from vram.host.local.cgroup_root import own_cgroup

            self._cgroup = own_cgroup()

    def _start_library(self) -> None:
        try:
            self.call("nvmlInit")
        except Exception as error:
            if getattr(error, "value", None) != _LIBRARY_NOT_FOUND or not lend_library(self._nvml):
                raise
            self.call("nvmlInit")

    def _read_gpu(self, index: int) -> None:
        try:
            self._probe = "nvml.gpu"
            handle, facts, devices = self._device(index)
            self.say(facts=facts)
            self._read_memory(handle, devices)
        except Exception as error:
            cause = error.__cause__ if isinstance(error, GpuGone) and error.__cause__ else error
            self.say(**self._statement_of(cause))

    def _device(self, index: int) -> _Device:
        handle = self.call("nvmlDeviceGetHandleByIndex", index)
        facts = self._facts(handle)
        devices = _find_mig(self.ask, handle) if facts["mig_enabled"] else None
        return handle, {**facts, "mig_devices": None if devices is None else len(devices)}, devices

    def _statement_of(self, error: BaseException) -> dict[str, Any]:
        """What *error* means of a library that was open a moment ago."""
        return left_statement(error) or statement_of(error, self._nvml)

    def _facts(self, handle: Any) -> dict[str, Any]:
        bar1 = self.ask("nvmlDeviceGetBAR1MemoryInfo", handle)
        rows = self.ask("nvmlDeviceGetRemappedRows", handle) or (None,) * 4
        mode = self.ask("nvmlDeviceGetComputeMode", handle)
        mig_mode = self.ask("nvmlDeviceGetMigMode", handle) or (None, None)
        pci = self.ask("nvmlDeviceGetPciInfo", handle)
        rates = self.ask("nvmlDeviceGetUtilizationRates", handle)
        name = text(self.ask("nvmlDeviceGetName", handle)) or "unknown GPU"
        # Only those that are reached over no bus have no such window: GB10 and GH200, as reported.
        shares = bar1 is None
        node = _count(self.ask("nvmlDeviceGetNumaNodeId", handle)) if shares else None
        addressing = self.ask("nvmlDeviceGetAddressingMode", handle) if shares else None
        if shares:
            self._nodes[self._gpu] = node
        return {
            "type": "gpu",
            "uuid": text(self.call("nvmlDeviceGetUUID", handle)) or "",
            "name": name,
            "minor": _count(self.ask("nvmlDeviceGetMinorNumber", handle)),
            "bus_id": text(pci.busId) if pci else None,
            "virtual": bool(os.environ.get("VRAM_VIRTUAL_GPU")),
            "persistence": _flag(self.ask("nvmlDeviceGetPersistenceMode", handle)),
            "compute_mode": _COMPUTE_MODES[mode] if mode in range(len(_COMPUTE_MODES)) else None,
            "mig_enabled": _flag(mig_mode[0]),
            "mig_pending": _flag(mig_mode[1]),
            "ecc_enabled": _flag(_first(self.ask("nvmlDeviceGetEccMode", handle))),
            "ecc_uncorrected": _count(
                self.ask("nvmlDeviceGetTotalEccErrors", handle, *_UNCORRECTED_SINCE_BOOT)
            ),
            "bar1_total": _count(bar1.bar1Total) if bar1 else None,
            "bar1_used": _count(bar1.bar1Used) if bar1 else None,
            "remapped_correctable": _count(rows[0]),
            "remapped_uncorrectable": _count(rows[1]),
            "remap_pending": _flag(rows[2]),
            "remap_failed": _flag(rows[3]),
            "retired_pending": _flag(self.ask("nvmlDeviceGetRetiredPagesPendingStatus", handle)),
            "utilization": _count(rates.gpu) if rates else None,
            "recovery_action": self._recovery_action(handle),
            "virtualization": _VIRTUALIZATIONS[mode] if (mode := self._virtualization(handle)) else None,
            "numa_node": node,
            "addressing": _ADDRESSING_MODES[addressing] if addressing in (0, 1, 2) else None,
        }

    def _virtualization(self, handle: Any) -> int | None:
        """How a virtual machine is involved, by NVML's number; None or 0: not at all, as far as is known."""
        mode = self.ask("nvmlDeviceGetVirtualizationMode", handle)
        return int(mode) if mode is not None and 0 < int(mode) < len(_VIRTUALIZATIONS) else None

    def _recovery_action(self, handle: Any) -> str | None:
        """What the driver advises; None where driver or binding does not know the field or value."""
        answers = self.ask("nvmlDeviceGetFieldValues", handle, [_RECOVERY_ACTION])
        if not answers or answers[0].nvmlReturn != 0:
            return None
        number = int(answers[0].value.uiVal)
        return _RECOVERY_ACTIONS[number] if number < len(_RECOVERY_ACTIONS) else None

    def _read_memory(self, handle: Any, devices: _MigDevices) -> None:
        """_Memory, lists, memory again: the account is only exact when nothing moved between."""
        self._probe = "nvml.memory"
        before = self._memories(handle, devices)
        # If a list hangs, this reading is what remains known of the GPU.
        if before[0]:
            self._send("meanwhile", self._statement({"facts": {"type": "memory", **before[0]}}))
        for _ in range(_TRIES):
            figures, failure = self._figures(handle, devices)
            self._probe = "nvml.memory"
            after = self._memories(handle, devices)
            by = [_moved(one, other) for one, other in zip(before, after, strict=True)]
            if not any(by):
                break
            before = after
        self._say_memories(devices, after, by)
        self._probe = "nvml.processes"
        if failure is not None:
            name, error = failure
            said = self._statement_of(error)
            message = f"the list of {name} processes could not be read: {said['message']}"
            self.say(**(_without_lists() or {**said, "message": message}))
        if after[0] and after[0].get("counted_by") == "kernel":
            # A Jetson's library was reported to list pids that are none.
            figures = {key: figure for key, figure in figures.items() if 0 < key[0] <= _MAX_PID}
        found = {pid: _read_start(pid) for pid, _, _ in figures}
        dead = {pid for pid, (started_at, _) in found.items() if started_at is None}
        ended = self._unlisted(handle, devices, dead) if dead else dead
        for (pid, instance, compute), (nbytes, lists) in figures.items():
            facts = {"type": "charge", "lists": lists, "gpu_instance": instance, "compute_instance": compute}
            started_at, facts["exiting"] = found[pid]
            facts["ended"] = pid in ended
            self.say(process={"pid": pid, "started_at": started_at}, nbytes=nbytes, facts=facts)

    def _unlisted(self, handle: Any, devices: _MigDevices, dead: set[int]) -> set[int]:
        """Those of the *dead* that are listed no more. One whose memory is held by others stays listed."""
        again, failure = self._figures(handle, devices)
        return set() if failure else dead - {pid for pid, _, _ in again}

    def _say_memories(self, devices: _MigDevices, memories: list[_Memory], by: list[int]) -> None:
        whole = memories[0]
        if whole:
            self.say(facts={"type": "memory", **whole, "moved_bytes": by[0]})
        else:
            self.say(status="denied", code="under-mig", message=_UNDER_MIG)
        for (_, names), memory, bytes_moved in zip(devices or (), memories[1:], by[1:], strict=True):
            read = {"type": "memory", **memory, "moved_bytes": bytes_moved} if memory else None
            self.say(facts={"type": "mig", **names, "memory": read})

    def _memories(self, handle: Any, devices: _MigDevices) -> list[_Memory]:
        """Of the whole GPU, and of each MIG device; None where it may not be read."""
        if devices is None:
            return [self._memory(handle)]
        return [self._memory_or_none(device) for device in (handle, *(each for each, _ in devices))]

    def _memory_or_none(self, device: Any) -> _Memory:
        """Under MIG the whole GPU answers only to the privileged, and a device can go meanwhile."""
        try:
            return self._memory(device)
        except Exception as error:
            if is_loss(error) or getattr(error, "value", None) not in _WITHHELD:
                raise
            return None

    def _memory(self, handle: Any) -> dict[str, Any]:
        if self._gpu not in self._nodes:
            return self._driver_memory(handle)
        from vram.host.local.system_memory import node_memory, node_use, system_memory

        node = self._nodes[self._gpu]
        refusal: Exception | None = None
        try:
            memory = self._driver_memory(handle)
        except Exception as error:
            if getattr(error, "value", None) != _NOT_SUPPORTED:
                raise
            refusal, memory = error, {"total": 0}
        if memory["total"]:
            return {**memory, "system": None if node is None else node_use(node)}
        counted = (None if node is None else node_memory(node)) or system_memory()
        if counted is None:
            raise refusal or ValueError("the driver reports a GPU without memory")
        return counted

    def _driver_memory(self, handle: Any) -> dict[str, Any]:
        one = self.call("nvmlDeviceGetMemoryInfo", handle)
        try:
            two = self.call(
                "nvmlDeviceGetMemoryInfo", handle, version=getattr(self._nvml, "nvmlMemory_v2", 0x02000028)
            )
        except Exception as error:
            if is_loss(error):
                raise
            return _plausible(total=one.total, free=one.free, used=one.used, v1_used=one.used)
        sizes = {"total": two.total, "free": two.free, "used": two.used, "reserved": two.reserved}
        limit = self._limit(handle) if self._cgroup else None
        # Version 1 is not said to answer for the group: what it calls used may be more than the limit.
        whole = _count(one.total) if self._cgroup and one.total > two.total else None
        if whole is not None or (limit is not None and limit["hard"] == two.total):
            # Its parts are "adjusted", as the vendor's page says: none is more than the total here.
            parts = {name: min(nbytes, two.total) for name, nbytes in sizes.items()}
            return {**_plausible(**parts), "limit": limit, "device_total": whole}
        memory: dict[str, Any] = _plausible(**sizes, v1_used=one.used)
        return memory if limit is None else {**memory, "limit": limit}

    def _limit(self, handle: Any) -> dict[str, Any] | None:
        """Of the group that we are in; None where it has none, or where that is not to be learned."""
        from vram.host.local.cgroup_root import root

        kind = getattr(self._nvml, "c_nvmlGetMemoryLimits_v1_t", None)
        if kind is None:
            return None
        path = root() + (self._cgroup or "").rstrip("/")
        asked = kind(nameSpace=path.encode())
        try:
            self.call("nvmlDeviceGetMemoryLimits_v1", handle, asked)
        except Exception as error:
            if is_loss(error):
                raise GpuGone(error) from error
            return None
        if asked.hardLimit == _NO_LIMIT and not asked.softLimit:
            return None
        hard = None if asked.hardLimit == _NO_LIMIT else int(asked.hardLimit)
        return {
            "cgroup": self._cgroup,
            "hard": hard,
            "soft": int(asked.softLimit),
            "used": int(asked.currentUsed),
        }

    def _figures(self, handle: Any, devices: _MigDevices) -> tuple[_Figures, _Failure | None]:
        """Every listed pid with its bytes, and what kept a list from us.

        Under MIG the whole GPU's lists name all processes, and so do those of all its devices together.
        """
        self._probe = "nvml.processes"
        figures, failure = self._lists(handle)
        if devices:
            parts = [(names, *self._lists(device)) for device, names in devices]
            figures = _assign_to_devices(figures, [(names, found) for names, found, _ in parts])
            failure = failure and next((failed for _, _, failed in parts if failed), None)
        return figures, failure

    def _lists(self, device: Any) -> tuple[_Figures, _Failure | None]:
        figures: _Figures = {}
        failures: list[_Failure] = []
        for name, word in self._lists_to_read():
            try:
                _merge(figures, name, self._list(word, device))
            except Exception as error:
                if is_loss(error):
                    raise
                failures.append((name, error))
        return figures, self._gap(failures)

    def _lists_to_read(self) -> tuple[tuple[str, str], ...]:
        return _LISTS

    def _gap(self, failures: list[_Failure]) -> _Failure | None:
        """The failure that matters: driver and binding need not have every list, but have to have one."""
        gaps = [
            (name, error)
            for name, error in failures
            if not isinstance(error, AttributeError) and self._statement_of(error)["status"] != "unsupported"
        ]
        return next(iter(gaps or failures), None) if gaps or len(failures) == len(_LISTS) else None

    def _list(self, word: str, device: Any) -> Any:
        """The newest version of the list that driver and binding both know."""
        failure: Exception | None = None
        for version in ("_v3", "_v2", ""):
            name = f"nvmlDeviceGet{word}RunningProcesses{version}"
            if not hasattr(self._nvml, name):
                continue
            for _ in range(_TRIES):
                try:
                    return self.call(name, device)
                except Exception as error:
                    failure = error
                    # 7: processes came between the library's two steps of asking.
                    if getattr(error, "value", None) != 7:
                        break
            if getattr(failure, "value", 13) != 13:  # 13: the driver lacks this version
                break
        raise failure or AttributeError(word)


class KeptReader(Reader):
    """Stays for many rounds with the library open.

    A round of figures asks again only what changes from moment to moment, announces each GPU once
    instead of every call, and says everything about a GPU in one write.
    """

    def __init__(self, nvml: ModuleType, pipe: int) -> None:
        super().__init__(nvml, pipe)
        self._known: dict[int, _Device] = {}
        self._used: dict[int | None, dict[str, Any]] = {}
        self._empty: set[tuple[int | None, str]] = set()
        self._moved = False
        self._figures_only = False
        self._announced: int | None = None
        self._unsent = bytearray()
        self._opened = False
        self.stays = True

    def round(self, figures_only: bool) -> None:
        """Read every GPU once. Afterwards ``stays`` is False where another process should start afresh."""
        self._figures_only = figures_only and self._opened
        self._probe, self._gpu, self._announced = "nvml.init", None, None
        self.read(set())
        self._flush()

    def say(self, **fields: Any) -> None:
        if fields.get("status", "ok") in ("lost", "failed", "timeout"):
            self.stays = False
        super().say(**fields)

    def _init(self) -> bool:
        if not self._figures_only:
            self._known.clear()
            self._used.clear()
            self._empty.clear()
        if not self._opened:
            self._opened = super()._init()
        elif not self._figures_only:
            self._say_driver()
        return self._opened

    def _device(self, index: int) -> _Device:
        known = self._known.get(index)
        if known is None:
            known = self._known[index] = super()._device(index)
            return known
        handle, facts, devices = known
        rates = self.ask("nvmlDeviceGetUtilizationRates", handle)
        return handle, {**facts, "utilization": _count(rates.gpu) if rates else None}, devices

    def _memories(self, handle: Any, devices: _MigDevices) -> list[_Memory]:
        """As they were, where the figure that every allocation changes is the same."""
        known = self._used.get(self._gpu) if self._figures_only and devices is None else None
        if (
            known is not None
            and known.get("reserved") is not None
            and known.keys().isdisjoint(("system", "limit"))
        ):
            version = getattr(self._nvml, "nvmlMemory_v2", 0x02000028)
            now = self.call("nvmlDeviceGetMemoryInfo", handle, version=version)
            self._moved = now.used != known["used"]
            if (now.total, now.reserved) == (known["total"], known["reserved"]):
                return [self._with_used(known, now) if self._moved else known]
        self._moved = True
        found = super()._memories(handle, devices)
        if found[0] is not None:
            self._used[self._gpu] = found[0]
        return found

    def _with_used(self, known: dict[str, Any], now: Any) -> dict[str, Any]:
        """*known* with what is in use now; version 1 counts the reserved bytes too, which are the same."""
        apart = known["v1_used"] - known["used"]
        figures = {"free": now.free, "used": now.used, "v1_used": now.used + apart}
        self._used[self._gpu] = memory = _plausible(**{**known, **figures})
        return memory

    def _lists_to_read(self) -> tuple[tuple[str, str], ...]:
        """Without those that were empty, while the memory in use is the same as then."""
        if not self._figures_only or self._moved:
            return _LISTS
        return tuple(each for each in _LISTS if (self._gpu, each[1]) not in self._empty)

    def _list(self, word: str, device: Any) -> Any:
        listed = super()._list(word, device)
        if listed:
            self._empty.discard((self._gpu, word))
        else:
            self._empty.add((self._gpu, word))
        return listed

    def _announce(self, name: str) -> None:
        if not self._figures_only:
            super()._announce(name)
        elif self._gpu != self._announced:
            self._announced = self._gpu
            super()._announce(name)
            self._flush()

    def _send(self, *message: Any) -> None:
        if self._figures_only:
            self._unsent += frame(marshal.dumps(message))
        else:
            super()._send(*message)

    def _flush(self) -> None:
        while self._unsent:
            del self._unsent[: os.write(self._pipe, self._unsent)]


# ---- MIG devices: which there are, and whose processes run on which of them ----


def _find_mig(ask: Callable[..., Any], gpu: Any) -> _MigDevices:
    """Every MIG device of *gpu*; numbers may have holes. None where the GPU does not tell."""
    most = ask("nvmlDeviceGetMaxMigDeviceCount", gpu)
    if most is None:
        return None
    handles = {at: ask("nvmlDeviceGetMigDeviceHandleByIndex", gpu, at) for at in range(most)}
    found = []
    for index, handle in handles.items():
        if handle is None:
            continue
        uuid, name = ask("nvmlDeviceGetUUID", handle), ask("nvmlDeviceGetName", handle)
        instance = ask("nvmlDeviceGetGpuInstanceId", handle)
        compute = ask("nvmlDeviceGetComputeInstanceId", handle)
        if uuid is None or instance is None or compute is None:  # it was destroyed while we asked
            continue
        names = {"index": index, "uuid": text(uuid), "name": text(name or "unknown MIG device")}
        found.append((handle, {**names, "gpu_instance": int(instance), "compute_instance": int(compute)}))
    return found


def _assign_to_devices(whole: _Figures, parts: Iterable[tuple[dict[str, Any], _Figures]]) -> _Figures:
    """What the devices list, and what only the whole GPU does; no process twice.

    A device's own list need not repeat which instance it is. The whole GPU's list, which only
    the privileged get, says it for each process; where it does not, a process that a device lists is
    known already.
    """
    figures: _Figures = {}
    for names, listed in parts:
        for (pid, instance, compute), figure in listed.items():
            own_instance = names["gpu_instance"] if instance is None else instance
            own_compute = names["compute_instance"] if compute is None else compute
            figures[pid, own_instance, own_compute] = figure
    known = {pid for pid, _, _ in figures}
    for key, figure in whole.items():
        if key not in figures and (key[1] is not None or key[0] not in known):
            figures[key] = figure
    return figures


# ---- answers as plain values: sentinels become None, and what no GPU can say is refused ----


def _merge(figures: _Figures, name: str, listed: Any) -> None:
    for each in listed:
        key = (int(each.pid), _instance(each, "gpuInstanceId"), _instance(each, "computeInstanceId"))
        nbytes, lists = figures.get(key, (None, ()))
        said = _count(each.usedGpuMemory)
        most = said if nbytes is None else nbytes if said is None else max(said, nbytes)
        figures[key] = (most, lists if name in lists else (*lists, name))


def _instance(listed: Any, field: str) -> int | None:
    number = getattr(listed, field, None)
    return None if number in (None, _NO_INSTANCE) else int(number)


def _moved(before: _Memory, after: _Memory) -> int:
    if after and after.get("counted_by") == "kernel":
        return 0  # the whole machine's memory never rests
    return abs(after["used"] - before["used"]) if before and after else 0


def _plausible(**sizes: int) -> dict[str, int]:
    """Refuse a reading that no GPU can give, rather than hand a sentinel on as bytes."""
    wrong = [name for name, nbytes in sizes.items() if not 0 <= nbytes <= sizes["total"] < _SENTINEL]
    if wrong:
        raise ValueError(f"the driver reported impossible memory figures: {', '.join(wrong)}")
    return sizes


def _count(value: Any) -> int | None:
    return int(value) if value is not None and 0 <= int(value) < _SENTINEL else None


def _flag(value: Any) -> bool | None:
    return None if value is None else bool(value)


def _first(pair: Any) -> Any:
    return pair[0] if pair else None


# ---- the process ----


def _say(pipe: int, *message: Any) -> None:
    send(pipe, marshal.dumps(message))


def _without_lists() -> dict[str, Any] | None:
    """Under Windows' driver the lists are no failure where they are missing: some versions answer 999."""
    folder = os.environ.get("VRAM_VIRTUAL_GPU")
    if not os.path.exists(f"{folder}/dev/dxg" if folder else "/dev/dxg"):
        return None
    message = "Windows' driver provides no process lists here"
    return {"status": "unsupported", "code": "no-process-lists", "message": message}


def read_into(pipe: int, skip: set[int]) -> None:
    """Say everything that NVML knows of the GPUs not in *skip* into *pipe*."""
    _end_when_unheard(pipe)
    if nvml := _load_binding(pipe):
        Reader(nvml, pipe).read(skip)
    _say(pipe, "done", False)


def serve(pipe: int) -> None:
    """Read all GPUs whenever *pipe* asks, until its other end is closed or a round went wrong."""
    gc.freeze()  # to look through what was inherited by a fork would copy its pages
    _end_when_unheard(pipe)
    reader: KeptReader | None = None
    while request := os.read(pipe, 1):
        if reader is None and (nvml := _load_binding(pipe)):
            reader = KeptReader(nvml, pipe)
        if reader is not None:
            reader.round(request == FIGURES)
        stays = reader is not None and reader.stays
        _say(pipe, "done", stays)
        if not stays:
            return


def _load_binding(pipe: int) -> ModuleType | None:
    """The module pynvml; where it is missing, that is said."""
    _say(pipe, "calling", "nvml.init", None, "nvmlInit")
    try:
        import pynvml
    except ImportError as error:
        said = {"status": "failed", "code": code_of(error), "message": message_of(error)}
        _say(pipe, "saw", {"probe": "nvml.init", **said})
        return None
    nvml: ModuleType = pynvml
    return nvml


def _read_start(pid: int) -> tuple[int | None, bool]:
    """When *pid* was started, and whether it is exiting; None where no living process has that pid."""
    stat = read_stat(pid)
    return (None, False) if stat is None or stat.has_ended else (stat.started_at, stat.exiting)


def _end_when_unheard(pipe: int) -> None:
    """A reader that hangs must not outlive the command that asked: end when *pipe* has no reader left.

    Not by PR_SET_PDEATHSIG, which comes when the thread ends that started us, and never when its
    process has ended already.
    """

    def watch() -> None:
        poll = select.poll()
        poll.register(pipe, 0)  # an error is reported unasked, and a pipe without readers is one
        poll.poll()
        os._exit(0)

    with suppress(RuntimeError):  # this user may have no more threads
        _thread.start_new_thread(watch, ())


def main() -> None:
    """Started as a program: descriptor 3 is the pipe, the arguments are GPUs to leave out, or --serve."""
    if sys.argv[1:] == ["--serve"]:
        serve(3)
    else:
        read_into(3, {int(index) for index in sys.argv[1:]})
    os._exit(0)
