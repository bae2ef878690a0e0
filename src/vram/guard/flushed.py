"""The report of a flush: what came back, what stayed, and who keeps it."""

from __future__ import annotations

from msgspec import Struct

from vram.guard.broken import BrokenContext
from vram.guard.columns import terminal_width, wrapped
from vram.guard.live import Live
from vram.guard.memory import DeviceMemory
from vram.guard.table import headline, live_html, live_lines
from vram.payloads.arrays.heap.peek import inert
from vram.units import counted, size

# Their own figures are of what they have not handed back yet: what their arrays hold comes on top.
_TELL_ONLY_CACHES = ("Numba", "PyCUDA", "vram.Buffer")


UNENTERED = (
    "nothing could be trimmed from this thread, which can enter no context there. If the program made one "
    "itself (cuCtxCreate, PyCUDA), call vram.flush() in the thread that uses it"
)


class CacheChange(Struct, frozen=True):
    """One framework's memory before and after, by its own count; None where it does not tell."""

    name: str
    memory: str
    device: int | None
    before: int | None
    after: int | None

    @property
    def returned(self) -> int:
        return (self.before or 0) - (self.after or 0) if None not in (self.before, self.after) else 0

    def words(self) -> str:
        where = "" if self.device is None else f" on GPU {self.device}"
        kind = "" if self.memory == "device" else f", {self.memory}"
        return f"{self.name}{kind}{where}: {_size(self.before)} → {_size(self.after)}"


class Flushed(Struct, frozen=True):
    """What :func:`vram.flush` did. ``refused`` says why it did nothing, where that is so.

    ``broken`` contexts cannot be freed from. ``unentered`` are GPUs where this process holds memory in no
    context that this thread can enter. ``exceptions_kept`` still keep the variables of their frames; they
    are counted where anything is loaded that can have arrays.
    """

    before: tuple[DeviceMemory, ...] = ()
    after: tuple[DeviceMemory, ...] = ()
    frameworks: tuple[CacheChange, ...] = ()
    dropped: tuple[str, ...] = ()
    collected: int = 0
    exceptions_kept: int = 0
    stayed: Live = Live(())
    notes: tuple[str, ...] = ()
    broken: tuple[BrokenContext, ...] = ()
    unentered: tuple[int, ...] = ()
    refused: str = ""
    took_s: float = 0.0

    @property
    def returned(self) -> int:
        """Device memory that came back, over all GPUs; less than nothing if more was taken meanwhile."""
        return sum(_returned(one, other) for one, other in zip(self.before, self.after, strict=True))

    @property
    def elsewhere(self) -> int | None:
        """What this process still holds outside every framework: contexts, code, raw allocations."""
        held = [reading.used for reading in self.after]
        if not held or None in held:
            return None
        live = self.stayed.by_framework()
        told = sum(line.after or 0 for line in self.frameworks if line.memory == "device")
        told += sum(live.get(name, 0) for name in _TELL_ONLY_CACHES)
        return max(0, sum(nbytes for nbytes in held if nbytes is not None) - told)

    def __repr__(self) -> str:
        return "\n".join(self._lines(terminal_width()))

    def _repr_html_(self) -> str:
        from html import escape

        if self.refused:
            return f"<p>{escape(self.refused)}</p>"
        changes = "".join(f"<li>{escape(line)}</li>" for line in self._changes())
        items = f"<ul>{changes}</ul>" if changes else ""
        stayed = live_html(self.stayed, "still alive: ") if self.stayed.arrays else ""
        rest = "".join(f"<p>{escape(line)}</p>" for line in self._rest())
        return f"<p><b>{escape(self._summary())}</b></p>{items}{stayed}{rest}"

    def _lines(self, width: int | None) -> list[str]:
        if self.refused:
            return wrapped(self.refused, width)
        above = [self._summary(), *(f"  {line}" for line in self._changes())]
        if self.stayed.arrays:
            above.append(f"still alive: {headline(self.stayed)}")
        lines = [piece for line in above for piece in wrapped(line, width)]
        lines += live_lines(self.stayed, width=width)
        return [*lines, *(piece for line in self._rest() for piece in wrapped(line, width))]

    def _summary(self) -> str:
        if not self.after:
            return "nothing to give back: this process holds no GPU memory"
        if self.returned > 0:
            return f"{size(self.returned)} came back: {self._devices()}"
        return f"nothing more to give back: {self._devices()}"

    def _devices(self) -> str:
        pairs = zip(self.before, self.after, strict=True)
        return ", ".join(_device_words(one, other) for one, other in pairs)

    def _changes(self) -> list[str]:
        changed = [line.words() for line in self.frameworks if line.returned]
        if self.dropped:
            changed.append(f"forgotten: {', '.join(self.dropped)}")
        if self.collected:
            changed.append(f"{counted(self.collected, 'unreachable object')} collected")
        return changed

    def _rest(self) -> list[str]:
        lines = [f"GPU {device}: {UNENTERED}" for device in self.unentered]
        lines += [inert(note) for note in self.notes]
        if self.exceptions_kept:
            whose = "keeps its" if self.exceptions_kept == 1 else "keep their"
            kept = counted(self.exceptions_kept, "exception")
            lines.append(f"{kept} elsewhere still {whose} frames' variables")
        if self.elsewhere:
            lines.append(f"{size(self.elsewhere)} besides: the context, loaded code, what no framework knows")
        return lines


def _returned(before: DeviceMemory, after: DeviceMemory) -> int:
    if before.used is None or after.used is None:
        return after.free - before.free
    return before.used - after.used


def _device_words(before: DeviceMemory, after: DeviceMemory) -> str:
    if before.used is None or after.used is None:
        return f"GPU {after.device} has {size(after.free)} free, had {size(before.free)}"
    if before.used == after.used:
        return f"GPU {after.device} {size(after.used)} held by this process"
    return f"GPU {after.device} {size(before.used)} → {size(after.used)} held by this process"


def _size(nbytes: int | None) -> str:
    return "unknown" if nbytes is None else size(nbytes)
