"""Who had the bytes that were missing: it would have fit, so somebody else's share is to blame."""

from __future__ import annotations

from typing import Literal

from vram.model.oom import Reading
from vram.oom.sums import CONTEXT, DRIVER, Sums
from vram.units import MIB

# A smaller share than these explains nothing that is worth telling.
LEAST = 64 * MIB
LEAST_OF_TOTAL = 0.03


def blamed(reading: Reading, worked: Sums) -> Literal["ghost", "other-process", "context"] | None:
    """The largest share that is not this program's own work; None where nothing stands out."""
    free_enough = (
        reading.asked is not None
        and reading.free is not None
        and reading.free.nbytes >= reading.asked.nbytes + worked.slack
    )
    if worked.fits_alone is False or worked.short is None or free_enough:
        return None
    listed = reading.others is not None
    unnamed = max(0, (worked.unnamed or 0) - DRIVER)
    shares = {
        "other-process": (worked.named or 0) if listed else unnamed,
        "ghost": unnamed if listed else 0,
        "context": max(0, (worked.outside or 0) - CONTEXT),
    }
    name, nbytes = max(shares.items(), key=lambda item: item[1])
    least = max(LEAST, LEAST_OF_TOTAL * (reading.total.nbytes if reading.total else 0))
    return name if nbytes >= least else None  # type: ignore[return-value]
