"""The faults that vram is held to: what happens, and what must hold. One row each, never renumbered.

A test holds a row by ``@pytest.mark.fault(NUMBER)``; ``make faults`` runs all of them and writes what came
of it to docs/reference/faults.md.
"""

from __future__ import annotations

from typing import NamedTuple


class Row(NamedTuple):
    number: int
    fault: str
    must_hold: str
    not_built: str = ""
    """What of this row concerns a feature that does not exist yet."""
    whole: bool = False
    """Whether that is all of it: then the row has no test."""


_TRACER = "tracing"

ROWS = (
    Row(
        1,
        "GPU lost in the middle of a scan",
        "the others are reported, that one is `lost`, exit code partial",
    ),
    Row(2, "reset required", "shown, never done by itself"),
    Row(
        3,
        "an NVML call never returns",
        "the prompt is back by the deadline; the rest is reported; no pile-up",
    ),
    Row(4, "D-state holder", "`unkillable`, no retry storm"),
    Row(5, "the driver lists a dead pid", 'its bytes stay counted, never "clean"'),
    Row(6, "used > Σ processes", "the residual is named, the sum is exact"),
    Row(7, "sentinels, N/A, no permission", "unknown, never 0 or 2⁶³"),
    Row(8, "driver replaced or unloaded under a long run", "a clear state, re-init, no crash"),
    Row(
        9,
        "MIG change mid-scan, hot unplug",
        "no double count, series end cleanly",
    ),
    Row(
        10,
        "vram itself killed at any moment",
        "no target left locked; a journal lists what is parked or stopped, and unpark works after restart",
    ),
    Row(
        11,
        "processes exit and appear mid-scan, 1,000 a second",
        "no exception, totals consistent",
    ),
    Row(12, "pid reuse between choosing and acting", "no wrong signal in 10,000 forced tries"),
    Row(13, "the target execs or changes user", "refused"),
    Row(14, "10,000 processes × 16 GPUs", "answered within a second"),
    Row(15, "someone else's process", "denied, audited, nothing leaked"),
    Row(
        16,
        "everything asked for at once, as root, forced",
        "protected processes are never signalled",
        not_built="policies: the widest request today is `free --up-to kill --yes`, and naming every pid",
    ),
    Row(17, "dry run", "same digest as the run; makes no mutating call"),
    Row(18, "SIGTERM ignored", "grace, SIGKILL, bytes read again"),
    Row(
        19,
        "park with managed memory, IPC, MPS, MIG, too little RAM; unpark with too little GPU memory",
        "refused before anything is touched, or unlocked and running",
    ),
    Row(
        20,
        "injection while the target is in malloc, holds the GIL, is stopped, or is no Python",
        "deadline; target unharmed over 1,000 tries",
    ),
    Row(21, "audit disk full", "actions refused, scans go on"),
    Row(22, "traced process killed", "trace readable, at most one record lost"),
    Row(
        23,
        "disk full while tracing",
        "tracing stops with a marker, the program goes on, no SIGBUS",
    ),
    Row(
        24,
        "trace files truncated at every byte, bits flipped, huge lengths",
        "a typed error or a partial report, bounded memory",
    ),
    Row(25, "fork in a traced process", "files of their own"),
    Row(
        26,
        "names with escape codes, CR, bidi, broken UTF-8",
        "terminal stays sane, prompts cannot be redrawn",
    ),
    Row(
        27,
        "names with quotes, backslashes, newlines in metrics; `<script>` in HTML; `=cmd` in CSV",
        "inert, round-trips",
        not_built="CSV: nothing writes it",
    ),
    Row(
        28,
        "runtime folder or socket pre-created or symlinked by someone else",
        "refused; no fallback to a shared folder",
    ),
    Row(
        29,
        "malicious Jupyter connection file",
        "owner, mode and loopback checked; root opens nobody else's",
    ),
    Row(30, "clock jumps, suspend", "ages are monotonic, identity stable"),
    Row(
        31,
        "two services at once",
        "the second leaves, nothing is done twice",
    ),
    Row(32, "remanence test", "its positive control finds data, the result states its scope"),
    Row(
        33,
        "a program that is parked works, polls and has timers",
        "no thread of it runs while its memory is away; several are parked as one, or not at all",
    ),
    Row(
        34,
        "hostile users: handles in flight or handed over, daemons, floods, refused comparisons",
        "no healthy process is ended on 10,000 machines",
    ),
    Row(
        35,
        "a program that has given up system calls (seccomp), or that ends while vram is in it",
        "it is not reached, unless only its container's filters forbid calls; one that ends is a failure",
    ),
    Row(
        36,
        "a program that is looked into fills tuples, frees and resizes arrays meanwhile",
        "none of its threads fails, and nothing that it releases stays",
    ),
    Row(
        37,
        "a native program (C, C++, Rust) is visited while it computes, forks, loads libraries, handles"
        " signals, execs or exits; the visitor is killed",
        "none harmed in 5,000 visits and 500 kills: sums right, no EINTR, every wake-up, nothing left",
    ),
    Row(
        38,
        "a PyTorch that trains and allocates in threads of C++ is looked into, recorded and trimmed",
        "it trains on: no gradient is asked for, no history ends under a reader, no workspace goes in use",
    ),
    Row(
        39,
        "a program that sleeps is continued by hand (SIGCONT), sent signals, or killed",
        "no thread of it runs without its memory; it is woken, or ends at once and its port is free",
    ),
    Row(
        40,
        "the waker or its standby is killed while requests come for programs that sleep",
        "every request is answered, and rightly",
    ),
)

BUILT = tuple(row for row in ROWS if not row.whole)
