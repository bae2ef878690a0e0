"""What an H200 showed under driver 580.159.04: the virtual GPU and the next real one are held to it."""

from __future__ import annotations

from score import GIB, MIB

KIB = 1024
CLOSE = 256 * KIB
"""Page tables make a context of a busy process dearer by this much at most."""

TOTAL = 143771 * MIB
RESERVED = 615 * MIB + 64 * KIB
INIT_USED = 3 * MIB + 256 * KIB
"""Used once any process called cuInit: two processes use it once. Charged to nobody."""
CONTEXT_LISTED = 518 * MIB
CONTEXT_USED = CONTEXT_LISTED + 5 * MIB + 576 * KIB
BAR1 = {"total": 256 * GIB, "used": 1 * MIB + 640 * KIB}


def files(gpu: int, mappings: int) -> dict[str, object]:
    return {"descriptors": {"nvidiactl": 1, "nvidia-uvm": 2, "nvidia0": gpu}, "mappings": mappings}


MONITOR = files(3, 0)
INIT = files(4, 3)
ONE_CONTEXT = files(20, 31)
TWO_CONTEXTS = files(36, 59)
FORKED = {"descriptors": 23, "mappings": 30}
"""Of the mappings, nvidia-uvm's is not inherited."""

TAKEN = (
    (1, 2 * MIB),
    (1, 0),
    (MIB, 0),
    (MIB, 2 * MIB),
    (2 * MIB, 2 * MIB),
    (3 * MIB, 4 * MIB),
    (3 * MIB, 4 * MIB),
    (64 * MIB + 1, 66 * MIB),
)
"""Bytes asked for, one after the other, and what each took."""

CODES = {
    "alloc without a context": 201,
    "free of the middle": 1,
    "first free": 0,
    "double free": 1,
    "free of a bad pointer": 1,
    "free of null": 0,
    "alloc of 1 TiB": 2,
    "alloc of 0 bytes": 1,
    "IPC open in the same process": 201,
    "IPC open of garbage": 1,
    "map larger than the handle": 801,
    "map of half the handle's step": 801,
    "import of a foreign descriptor": 999,
    "import of a closed descriptor": 999,
    "create of an odd size": 1,
}

SUPPORT = {
    "accounting mode": 0,
    "retired pages (double bit)": "NVMLError_NotSupported",
    "retired pages pending": "NVMLError_NotSupported",
    "remapped rows": [0, 0, 0, 0],
    "GSP firmware mode": [1, 1],
    "persistence mode": 1,
    "compute mode": 0,
    "ECC mode": [1, 1],
    "ECC uncorrected (volatile)": 0,
    "MIG mode": [0, 0],
    "process utilization": "NVMLError_NotFound",
    "minor number": 0,
    "brand": 14,
    "architecture": 9,
    "enforced power limit": 700000,
    "fan speed": "NVMLError_NotSupported",
    "display mode": 1,
    "performance state": 0,
}
"""Whatever does not change with the weather: temperature, power and clocks are left out."""
