"""Which cards a traced program would have fitted."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct


class GraphicsCard(Struct, frozen=True):
    """A graphics card: its name and its memory as NVML reports it."""

    name: str
    total_nbytes: int


class GpuNeed(Struct, frozen=True, kw_only=True):
    """What the traced processes needed on one GPU at its highest moment."""

    gpu: int | None
    name: str | None
    """Of the GPU that it was recorded on, and that one's memory."""
    total_nbytes: int | None
    live_nbytes: int
    """Allocated at the peak, as recorded."""
    before_nbytes: int
    """Held before recording began, where the trace says so."""
    contexts: int
    context_nbytes: int
    """Assumed for those contexts."""
    cached_nbytes: int
    """Of ``live_nbytes``: kept unused by a framework's allocator, which may return it."""

    @property
    def most(self) -> int:
        """As it was recorded."""
        return self.live_nbytes + self.before_nbytes + self.context_nbytes

    @property
    def least(self) -> int:
        """Without what a framework kept unused."""
        return self.most - self.cached_nbytes


class CardFit(Struct, frozen=True, kw_only=True):
    """Whether the fullest GPU of the trace fits a card.

    "fits": as it was recorded. "if caches shrink": only without what a framework kept unused.
    "too small": not even then. ``left_nbytes`` is negative by what is missing.
    """

    card: GraphicsCard
    verdict: Literal["fits", "if caches shrink", "too small"]
    left_nbytes: int


class Fit(Struct, frozen=True, kw_only=True):
    """What a program needed, the cards it fits, what was assumed, and what a trace cannot know."""

    needs: tuple[GpuNeed, ...]
    cards: tuple[CardFit, ...]
    reserve_nbytes: int
    """Of every card, assumed to be kept by the driver."""
    assumptions: tuple[str, ...]
    doubts: tuple[str, ...]
