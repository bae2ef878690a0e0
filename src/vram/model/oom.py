"""An out-of-memory message as data: its figures, which kind it is, and the arithmetic behind that."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from vram.model.finding import Remedy

OomKind = Literal[
    "too-large",
    "fragmented",
    "cached",
    "other-process",
    "ghost",
    "context",
    "host",
    "limit",
    "bar1",
    "on-chip",
    "broken-context",
    "unknown",
]
Where = Literal["device", "host", "pinned", "bar1", "on-chip"]
Certainty = Literal["fact", "likely", "unknown"]


class Amount(Struct, frozen=True):
    """A printed size: ``slack`` is how far the true one may be off, since messages round."""

    nbytes: int
    slack: int = 0


class NamedProcess(Struct, frozen=True):
    """A process that the message lists, and what it held; None where the figure makes no sense."""

    pid: int
    nbytes: Amount | None


class OomReading(Struct, frozen=True, kw_only=True):
    """What one message says, and nothing that it does not say.

    ``live`` is what the program's own allocator has handed out, ``idle`` what it keeps beside
    that, ``pooled`` what it keeps for captured graphs, ``process`` all that the driver charges the
    process for. ``limit`` is a bound below the GPU's total. ``program`` is the one whose log this is,
    where it has options of its own ("comfyui"). ``signs`` are short words for what else the message or
    the lines before it show ("cublas", "context", ...).
    """

    dialect: str
    wording: str
    program: str | None = None
    where: Where = "device"
    gpu: int | None = None
    asked: Amount | None = None
    total: Amount | None = None
    free: Amount | None = None
    live: Amount | None = None
    idle: Amount | None = None
    pooled: Amount | None = None
    process: Amount | None = None
    limit: Amount | None = None
    largest_free: Amount | None = None
    others: tuple[NamedProcess, ...] | None = None
    utilization: float | None = None
    tokens_wanted: int | None = None
    tokens_fitting: int | None = None
    signs: tuple[str, ...] = ()
    excerpt: str = ""


class OomMessage(OomReading, frozen=True, kw_only=True):
    """A reading with what its judgement needs beside figures. JSON has these facts as words among ``signs``.

    ``code`` is the number of the CUDA error or the Xid, ``pids`` are the processes that the driver blames,
    ``reporter`` is the dialect of the framework that reports an error of CUDA, ``assertion`` the condition
    that failed in a kernel, ``library`` the one that ran out ("cuBLAS"), ``settings`` what was set for XLA,
    ``language`` what the program is written in, None where CUDA's own words are all there is.
    """

    code: int | None = None
    pids: tuple[int, ...] = ()
    reporter: str | None = None
    assertion: str | None = None
    library: str | None = None
    settings: tuple[tuple[str, str], ...] = ()
    language: Literal["python", "c++"] | None = "python"

    def as_reading(self) -> OomReading:
        """The reading as JSON has it."""
        words = [
            *(f"{name}={value}" for name, value in self.settings),
            *self.signs[:1],
            *([self.library.lower()] if self.library else ()),
            *([f"in={self.reporter}"] if self.reporter else ()),
            *([f"assert={self.assertion}"] if self.assertion else ()),
            *(f"pid={pid}" for pid in self.pids),
            *self.signs[1:],
        ]
        fields = {name: getattr(self, name) for name in OomReading.__struct_fields__}
        return OomReading(**{**fields, "signs": tuple(words)})


class Term(Struct, frozen=True):
    """One line of a balance. ``sure`` is False for a remainder or an assumption, which no message printed."""

    name: str
    nbytes: int
    sure: bool = True


class Balance(Struct, frozen=True):
    """Terms that sum to ``total``; ``slack`` is how much of it is rounding."""

    terms: tuple[Term, ...]
    total: int
    slack: int = 0


class Working(Struct, frozen=True):
    """One calculation: terms with their signs, and what comes out."""

    terms: tuple[Term, ...]
    name: str
    nbytes: int


class Judgement(Struct, frozen=True, kw_only=True):
    """Which kind it is, and why."""

    kind: OomKind
    certainty: Certainty
    title: str
    cause: str
    workings: tuple[Working, ...] = ()
    balance: Balance | None = None
    missing: tuple[str, ...] = ()
    remedies: tuple[Remedy, ...] = ()


class OomHolder(Struct, frozen=True, kw_only=True):
    """Who holds memory on the matched GPU now. ``named``: the message lists this pid too."""

    pid: int | None
    nbytes: int | None
    what: str
    who: str
    named: bool = False
    finding: str | None = None


class GpuMatch(Struct, frozen=True, kw_only=True):
    """The message's GPU in this machine's ledger. ``gpu`` is None where none matches; ``reason`` says why.

    ``mig`` is the MIG device where the message is about one: "0:1".
    """

    gpu: int | None
    mig: str | None = None
    reason: str
    taken_at: str = ""
    total: int | None = None
    free: int | None = None
    holdings: tuple[OomHolder, ...] = ()
    gone: tuple[int, ...] = ()


class Case(Struct, frozen=True, kw_only=True):
    """One error of a log, which has it ``count`` times; the numbers of the first and the last line."""

    reading: OomReading
    judgement: Judgement
    count: int = 1
    first_line: int = 1
    last_line: int = 1
    live: GpuMatch | None = None

    @property
    def message(self) -> OomMessage:
        """The reading, with all facts; only what was decoded from JSON has none."""
        assert isinstance(self.reading, OomMessage)
        return self.reading
