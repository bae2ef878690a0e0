"""The Windows side of WSL2: which of its processes hold GPU memory, and how much is the guest's.

Counters are asked for by their WMI classes and properties. Those are named in English on every
Windows, as the names in ``Get-Counter`` and ``typeperf`` are not. The raw classes are used: these
counters are plain readings, and the formatted ones would be sampled twice.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import ceil

from vram.host.ports import Host, WindowsAnswer, WindowsQuery
from vram.model.observation import HostFacts, Observation
from vram.model.windows import WindowsMemoryFacts
from vram.probes.windows_counters import Damaged, read

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
