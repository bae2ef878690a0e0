"""NVIDIA's driver branches, and until when each is maintained."""

from __future__ import annotations

from typing import Literal, NamedTuple

AS_OF = "2026-09"
"""When NVIDIA's pages were last read. Branches that came later are unknown here, and are not judged."""

SOURCE = "https://docs.nvidia.com/datacenter/tesla/drivers/supported-drivers-and-cuda-toolkit-versions.html"

Kind = Literal["long-term support", "production", "new feature", "legacy"]


class Branch(NamedTuple):
    """One branch. *end* is the last month in which it is maintained, written 2026-06.

    With *by* that month is when NVIDIA's list first called it ended; no exact date was published.
    """

    number: int
    kind: Kind
    end: str
    by: bool = False

    def has_ended(self, today: str) -> bool:
        """Whether it is over on *today*, a date or a time written in the order of ISO 8601."""
        return today[:7] > self.end


BRANCHES = {
    branch.number: branch
    for branch in (
        Branch(390, "legacy", "2022-12"),
        Branch(410, "production", "2021-03", by=True),
        Branch(418, "long-term support", "2022-03"),
        Branch(440, "new feature", "2020-11"),
        Branch(450, "long-term support", "2023-07"),
        Branch(455, "new feature", "2025-08", by=True),
        Branch(460, "production", "2022-01"),
        Branch(465, "new feature", "2025-08", by=True),
        Branch(470, "long-term support", "2024-07"),
        Branch(495, "new feature", "2025-08", by=True),
        Branch(510, "production", "2025-08", by=True),
        Branch(515, "production", "2023-05"),
        Branch(525, "production", "2024-08", by=True),
        Branch(535, "long-term support", "2026-06"),
        Branch(545, "new feature", "2025-08", by=True),
        Branch(550, "production", "2025-06"),
        Branch(555, "new feature", "2025-08", by=True),
        Branch(560, "new feature", "2025-08", by=True),
        Branch(565, "new feature", "2025-08", by=True),
        Branch(570, "production", "2026-02"),
        Branch(575, "new feature", "2025-08", by=True),
        Branch(580, "long-term support", "2028-06"),
        Branch(590, "new feature", AS_OF, by=True),
        Branch(595, "production", "2027-03"),
        Branch(610, "new feature", "2026-08"),
    )
}

LAST_FOR = {390: "Fermi", 470: "Kepler", 580: "Maxwell, Pascal and Volta"}
"""GPUs of these architectures have no newer branch."""

_MONTHS = (
    *("January", "February", "March", "April", "May", "June"),
    *("July", "August", "September", "October", "November", "December"),
)


def branch_of(version: str) -> Branch | None:
    """The branch of a Linux driver's *version* (580.159.04), or None where it is unknown."""
    number = version.partition(".")[0]
    return BRANCHES.get(int(number)) if number.isdecimal() else None


def successor(today: str) -> Branch | None:
    """The long-term branch that is maintained for the longest time after *today*."""
    alive = [
        branch
        for branch in BRANCHES.values()
        if branch.kind == "long-term support" and not branch.has_ended(today)
    ]
    return max(alive, key=lambda branch: branch.end, default=None)


def month(end: str) -> str:
    """2026-06 as June 2026."""
    year, number = end.split("-")
    return f"{_MONTHS[int(number) - 1]} {year}"
