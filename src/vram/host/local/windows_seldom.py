"""Windows asked seldom, or not at all: each question starts a PowerShell over there."""

from __future__ import annotations

import time
from collections.abc import Callable

from msgspec.structs import replace

from vram.host.local.windows import Inquiry
from vram.host.ports import Inquiry as AnyInquiry
from vram.host.ports import Windows, WindowsAnswer
from vram.model.windows import LEFT_OUT


class UnaskedWindows:
    """Starts nothing, for whoever wants Windows left out."""

    def ask(self, script: str, deadline_s: float) -> Inquiry:
        return Inquiry.settled("unsupported", LEFT_OUT)


class SeldomWindows:
    """Asks *windows* at most every *every_s*, and repeats its last answer in between.

    What failed is repeated too: one that hangs would hold up every look until its deadline.
    """

    def __init__(
        self, windows: Windows, every_s: float, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self._windows = windows
        self._every_s = every_s
        self._monotonic = monotonic
        self._last: WindowsAnswer | None = None
        self._asked_at = 0.0

    def ask(self, script: str, deadline_s: float) -> AnyInquiry:
        age_s = self._monotonic() - self._asked_at
        if self._last is not None and age_s < self._every_s:
            return Inquiry(None, 0.0, replace(self._last, age_s=age_s))
        self._asked_at = self._monotonic()
        return _Heard(self._windows.ask(script, deadline_s), self._keep)

    def _keep(self, answer: WindowsAnswer) -> None:
        self._last = answer


class _Heard:
    """An inquiry whose answer is passed on to be kept."""

    def __init__(self, inquiry: AnyInquiry, keep: Callable[[WindowsAnswer], None]) -> None:
        self._inquiry = inquiry
        self._keep = keep

    def answer(self) -> WindowsAnswer:
        answer = self._inquiry.answer()
        self._keep(answer)
        return answer

    def close(self) -> None:
        self._inquiry.close()
