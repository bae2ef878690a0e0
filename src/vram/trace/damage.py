"""What could not be read of a trace, in sentences."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from vram.trace.native import DamageRow, SectionRow
from vram.units import counted, size

# By the codes of native/tracereader/reader.h.
_SENTENCES: dict[int, Callable[[int], str]] = {
    1: lambda count: f"{size(count)} of the file belong to nothing that is known; skipped",
    2: lambda count: "the header of a process is unreadable: who it was is not known",
    3: lambda count: f"a process was recorded by a newer vram (format {count}); left out",
    4: lambda count: "the header contradicts itself",
    5: lambda count: f"{counted(count, 'chunk')} of records found twice, read once",
    6: lambda count: f"{counted(count, 'chunk')} of records missing, with the stacks that they defined",
    7: lambda count: f"the rest of {counted(count, 'chunk')} of records is unreadable",
    8: lambda count: "the trace is cut off in the middle of a record",
    9: lambda count: f"{counted(count, 'impossible time')}, replaced by that of the record before or after",
    10: lambda count: f"{counted(count, 'reference')} to stacks or places that are not there",
    11: lambda count: f"{counted(count, 'allocation')} of an impossible size, left out",
    12: lambda count: f"{size(count)} could not be read: the file became shorter meanwhile",
    13: lambda count: f"more marks, gaps or parts of blobs than are kept: {count} left out",
    14: lambda count: "a framework's blocks lie in too many places to say in which memory of the driver",
    15: lambda count: f"{counted(count, 'record')} of a kind that this vram does not know, skipped",
    16: lambda count: f"too many stacks: the {count} that allocated least are one, without frames",
}


def damage_sentences(
    rows: Sequence[DamageRow], sections: Sequence[SectionRow], paths: Sequence[str]
) -> tuple[str, ...]:
    return tuple(_whose(row, sections, paths) + _SENTENCES[row.code](row.times) for row in rows)


def _whose(row: DamageRow, sections: Sequence[SectionRow], paths: Sequence[str]) -> str:
    """Which file and process it is about, where there are several."""
    parts = []
    if len(paths) > 1 and row.file < len(paths):
        parts.append(paths[row.file])
    if len(sections) > 1 and row.section < len(sections) and sections[row.section].pid:
        parts.append(f"pid {sections[row.section].pid}")
    return ", ".join(parts) + ": " if parts else ""
