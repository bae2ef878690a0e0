"""The Windows side of WSL2: which of its processes hold GPU memory, and how much is the guest's.

Counters are asked for by their WMI classes and properties. Those are named in English on every
Windows, as the names in ``Get-Counter`` and ``typeperf`` are not. The raw classes are used: these
counters are plain readings, and the formatted ones would be sampled twice.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from math import ceil
from typing import Any

import msgspec

from vram.host.ports import Host, WindowsAnswer, WindowsQuery
from vram.model.observation import HostFacts, Observation
from vram.model.windows import AdapterFacts, WindowsMemoryFacts

NAME = "windows"

# No double quote may stand in it: it goes through Windows' rules for command lines.
_SCRIPT = r"""
$ErrorActionPreference='Stop';$ProgressPreference='SilentlyContinue';
try{[Console]::OutputEncoding=New-Object Text.UTF8Encoding $false}catch{};
$answer=@{vram=1;errors=@()};
function ask($name,$block){try{$answer[$name]=@(& $block)}catch{
$answer.errors+=@{source=$name;id=[string]$_.FullyQualifiedErrorId;text=[string]$_.Exception.Message}}};
ask 'memory' {Get-CimInstance -ClassName Win32_PerfRawData_GPUPerformanceCounters_GPUProcessMemory
-OperationTimeoutSec SECONDS | Select-Object Name,LocalUsage,NonLocalUsage,DedicatedUsage,SharedUsage};
ask 'adapters' {Get-CimInstance -ClassName Win32_PerfRawData_GPUPerformanceCounters_GPUAdapterMemory
-OperationTimeoutSec SECONDS | Select-Object Name,DedicatedUsage,SharedUsage};
ask 'processes' {Get-CimInstance -ClassName Win32_Process -Property ProcessId,Name
-OperationTimeoutSec SECONDS | Select-Object ProcessId,Name};
ask 'cards' {$places=@{};
Get-CimInstance -ClassName Win32_VideoController -Property PNPDeviceID -OperationTimeoutSec SECONDS |
ForEach-Object {$key='HKLM:\SYSTEM\CurrentControlSet\Enum\'+$_.PNPDeviceID;
$video=(Get-ItemProperty -LiteralPath ($key+'\Device Parameters') -ErrorAction SilentlyContinue).VideoID;
$place=(Get-ItemProperty -LiteralPath $key -ErrorAction SilentlyContinue).LocationInformation;
if($video){$places[$video]=$place}};
Get-ChildItem -LiteralPath 'HKLM:\SOFTWARE\Microsoft\DirectX' | ForEach-Object {
$card=Get-ItemProperty -LiteralPath $_.PSPath;
@{luid=$card.AdapterLuid;name=$card.Description;vendor=$card.VendorId;total=$card.DedicatedVideoMemory;
place=[string]$places[$_.PSChildName]}}};
$answer | ConvertTo-Json -Compress -Depth 4
"""


def begin(host: Host, me: HostFacts, deadline_s: float) -> WindowsQuery | None:
    """Start asking, where there is a Windows and it has the GPUs; None where there is nothing to ask."""
    if me.wsl_facts is None or not me.wsl_facts.gpu_device:
        return None
    # Windows gives up by itself a little before we do, so that nothing of ours goes on over there.
    return host.windows.ask(script(max(1, ceil(deadline_s) - 1)), deadline_s)


def script(timeout_s: int) -> str:
    """The question, on one line."""
    return " ".join(_SCRIPT.split("\n")).replace("SECONDS", str(timeout_s)).strip()


def observe(query: WindowsQuery, me: HostFacts) -> Iterator[Observation]:
    """Collect the answer; whatever came of it is an observation."""
    answer = query.answer()
    if answer.status != "ok":
        yield Observation(
            probe="windows.ask", status=answer.status, code=_code(answer, me), message=_why(answer, me)
        )
        return
    try:
        counters = read(answer.output)
    except Damaged as damage:
        yield Observation(probe="windows.ask", status="failed", code="windows-damaged", message=str(damage))
        return
    if not any(isinstance(facts, WindowsMemoryFacts) for facts in counters.facts):
        said = "; ".join(counters.refusals) or "Windows' counters list no process"
        yield Observation(probe="windows.ask", status="unsupported", code="no-counters", message=said)
    for facts in counters.facts:
        yield Observation(probe="windows.counters", facts=facts)
    for refusal in counters.refusals:
        yield Observation(
            probe="windows.counters", status="unsupported", code="counter-refused", message=refusal
        )
    if counters.damaged_rows:
        said = f"{counters.damaged_rows} of Windows' counters could not be read and are missing"
        yield Observation(
            probe="windows.counters", status="unsupported", code="windows-damaged", message=said
        )
    if answer.age_s:
        yield Observation(probe="windows.age", message=f"Windows' figures are {answer.age_s:.0f} s old")


def _code(answer: WindowsAnswer, me: HostFacts) -> str | None:
    in_container = me.wsl_facts is not None and me.wsl_facts.container
    return "in-container" if in_container else answer.code


def _why(answer: WindowsAnswer, me: HostFacts) -> str | None:
    if me.wsl_facts is not None and me.wsl_facts.container:
        return "a container inside WSL2 cannot query Windows: run vram in the distribution itself"
    if answer.age_s and answer.message:
        return f"{answer.message} ({answer.age_s:.0f} s ago)"
    return answer.message


# ---- what PowerShell printed, read with suspicion: any encoding, any shape, any number ----
#
# The script is ours, but between it and us lie a console's code page, a profile that prints, translated
# Windows, and versions of PowerShell that write a list of one as no list.

_INSTANCE = re.compile(
    r"(?:pid_(?P<pid>\d{1,10})_)?luid_0x(?P<high>[0-9a-f]{1,8})_0x(?P<low>[0-9a-f]{1,8})_phys_\d{1,3}", re.I
)
_NUMBER = re.compile(r"(\d{1,19})(?:[.,]0*)?")
# "@System32\drivers\pci.sys,#65536;PCI bus %1, device %2, function %3;(1,0,0)": the end needs no translation.
_PLACE = re.compile(r"\((\d{1,3}),(\d{1,3}),(\d{1,3})\)$")
_MAX_BYTES = 1 << 50  # no adapter is near it; counters are known to run below zero
_MAX_NAME_LENGTH = 260
_NOT_REGISTERED, _DENIED = "80041010", "80041003"

Facts = AdapterFacts | WindowsMemoryFacts


class Damaged(ValueError):
    """The answer cannot be read; the message says what is wrong with it."""


class Counters(msgspec.Struct, frozen=True):
    """All that could be understood, how many rows could not, and what Windows refused."""

    facts: tuple[Facts, ...]
    damaged_rows: int = 0
    refusals: tuple[str, ...] = ()


def read(output: bytes) -> Counters:
    """Understand *output*, or raise Damaged."""
    answer = _object(_text(output))
    if answer.get("vram") != 1:
        raise Damaged("powershell.exe printed an unexpected answer")
    names = {_number(row.get("ProcessId")): _name(row.get("Name")) for row in _rows(answer.get("processes"))}
    memory = [_memory(row, names) for row in _rows(answer.get("memory"))]
    used = {}
    for row in _rows(answer.get("adapters")):
        found = _INSTANCE.fullmatch(str(row.get("Name")))
        if found and not found["pid"]:
            used[_luid(int(found["high"], 16), int(found["low"], 16))] = row
    adapters = [_adapter(row, used) for row in _rows(answer.get("cards"))]
    known = {each.luid for each in adapters if each}
    # Some have counters, and the registry does not name them.
    adapters += [_adapter_facts(luid, row) for luid, row in used.items() if luid not in known]
    return Counters(
        facts=tuple(each for each in (*adapters, *memory) if each is not None),
        damaged_rows=sum(each is None for each in memory),
        refusals=tuple(_refusals(answer.get("errors"))),
    )


def _text(output: bytes) -> str:
    if output.startswith((b"\xff\xfe", b"\xfe\xff")):
        return output.decode("utf-16", "replace")
    if output[:64].count(0) * 3 > len(output[:64]):
        return output.decode("utf-16-le" if output[:1] != b"\0" else "utf-16-be", "replace")
    return output.removeprefix(b"\xef\xbb\xbf").decode("utf-8", "replace")


def _object(text: str) -> dict[str, Any]:
    """The one object in *text*, whatever a profile or a warning printed around it."""
    begin, end = text.find("{"), text.rfind("}")
    if begin < 0:
        raise Damaged("powershell.exe printed nothing that could be read")
    try:
        found = msgspec.json.decode(text[begin : end + 1].encode("utf-8", "replace"))
    except (msgspec.DecodeError, RecursionError, ValueError):
        raise Damaged("powershell.exe printed a damaged or truncated answer") from None
    return found if isinstance(found, dict) else {}


def _rows(value: object) -> Iterator[dict[str, Any]]:
    """The rows of a list; PowerShell may write one row as no list, none as null, and wrap a list."""
    if isinstance(value, dict) and isinstance(value.get("value"), list):
        value = value["value"]
    for each in value if isinstance(value, list) else [value]:
        if isinstance(each, dict):
            yield each


def _memory(row: dict[str, Any], names: dict[int | None, str | None]) -> WindowsMemoryFacts | None:
    found = _INSTANCE.fullmatch(str(row.get("Name")))
    if found is None or not found["pid"]:
        return None
    pid = int(found["pid"])
    return WindowsMemoryFacts(
        pid=pid,
        luid=_luid(int(found["high"], 16), int(found["low"], 16)),
        name=names.get(pid),
        local=_size(row.get("LocalUsage")),
        non_local=_size(row.get("NonLocalUsage")),
        dedicated=_size(row.get("DedicatedUsage")),
        shared=_size(row.get("SharedUsage")),
    )


def _adapter(row: dict[str, Any], used: dict[str, dict[str, Any]]) -> AdapterFacts | None:
    number = row.get("luid")
    if isinstance(number, str) and re.fullmatch(r"-?\d{1,20}", number):
        number = int(number)
    if not isinstance(number, int) or not number:
        return None  # 0 is what Windows writes for an adapter that is gone
    luid = _luid((number >> 32) & 0xFFFFFFFF, number & 0xFFFFFFFF)
    return _adapter_facts(luid, used.get(luid, {}), row)


def _adapter_facts(luid: str, counters: dict[str, Any], row: dict[str, Any] | None = None) -> AdapterFacts:
    """An adapter with its counters; *row* is what the registry says of it."""
    row = row or {}
    found = _PLACE.search(str(row.get("place")).strip())
    return AdapterFacts(
        luid=luid,
        name=_name(row.get("name")),
        vendor=_number(row.get("vendor")),
        total=_size(row.get("total")),
        bus=(int(found[1]), int(found[2]), int(found[3])) if found else None,
        local=_size(counters.get("DedicatedUsage")),
        shared=_size(counters.get("SharedUsage")),
    )


def _luid(high: int, low: int) -> str:
    return f"0x{high:08x}_0x{low:08x}"


def _size(value: object) -> int | None:
    nbytes = _number(value)
    return nbytes if nbytes is not None and nbytes < _MAX_BYTES else None


def _number(value: object) -> int | None:
    """A whole number that is not below zero, however it was written; None for anything else."""
    if isinstance(value, bool):
        return None
    if isinstance(value, float) and value.is_integer() and abs(value) < 1 << 62:
        value = int(value)
    if isinstance(value, str):
        found = _NUMBER.fullmatch(value.strip())
        value = int(found[1]) if found and found[1].isascii() else None
    return value if isinstance(value, int) and 0 <= value < 1 << 63 else None


def _name(value: object) -> str | None:
    return value[:_MAX_NAME_LENGTH] if isinstance(value, str) and value.strip() else None


def _refusals(errors: object) -> Iterator[str]:
    for row in _rows(errors):
        source, code = str(row.get("source")), str(row.get("id"))
        if _NOT_REGISTERED in code and source == "memory":
            yield (
                "Windows' WMI has no GPU memory counters; they exist since Windows 10 1709, and `winmgmt"
                " /resyncperf` as administrator registers them again"
            )
        elif _DENIED in code:
            yield f"Windows denies its {source} counters to this user"
        else:
            yield f"Windows could not report its {source}: {(_name(row.get('text')) or code)[:160]}"
