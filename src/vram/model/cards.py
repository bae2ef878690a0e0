"""How much memory a graphics card has, by its name: for logs that name their card and not its size."""

from __future__ import annotations

import re

from vram.units import GIB, MIB

# "memory.total" of nvidia-smi, which is NVML's, as public logs show it; with ECC on where the card has it.
CARD_MIB = {
    "B200": 183359,
    "H200": 143771,
    "RTX PRO 6000 Blackwell": 97887,
    "GH200 96 GB": 97871,
    "H20": 97871,
    "H100 NVL": 95830,
    "A100 80 GB": 81920,
    "H100 80 GB": 81559,
    "H100 PCIe": 81559,
    "RTX A6000": 49140,
    "RTX 6000 Ada": 49140,
    "L40S": 46068,
    "A40": 46068,
    "A100 40 GB": 40960,
    "V100 32 GB": 32768,
    "RTX 5090": 32607,
    "RTX 3090": 24576,
    "A30": 24576,
    "RTX 4090": 24564,
    "L4": 23034,
    "A10": 23028,
    "RTX 4080": 16376,
    "RTX A4000": 16376,
    "RTX 5080": 16303,
    "RTX 5070 Ti": 16303,
    "T4": 15360,
    "RTX 3080 Ti": 12288,
    "RTX 4070": 12282,
    "GTX 1080 Ti": 11264,
    "RTX 2080 Ti": 11264,
    "RTX 3080": 10240,
    "GTX 1070": 8192,
    "GTX 1070 Ti": 8192,
    "RTX 3060 Ti": 8192,
    "RTX 3070": 8192,
    "RTX 4060": 8188,
    "GTX 970": 4096,
    "GTX 1050 Ti": 4096,
    "GTX 1650": 4096,
}
# Sold with different amounts under one name.
_SEVERAL_SIZES = frozenset(("RTX 3080",))
_MAKER = re.compile(r"^(?:NVIDIA |GeForce |Tesla |AMD |Radeon )+")
_EDITION = re.compile(r"(?: Generation| (?:Max-Q )?(?:Workstation|Server) Edition)+$")
_SIZE_IN_NAME = re.compile(r"(?<![\d.])(\d{1,3})\s?GB\b")


def card_nbytes(name: str) -> int | None:
    """The memory of the card that CUDA calls *name*; None where the name does not decide it.

    Many names have the size in them ("NVIDIA A100-SXM4-80GB"). CUDA's own total is up to 4 % below it.
    """
    said = _SIZE_IN_NAME.search(name)
    if said:
        return int(said.group(1)) * GIB
    short = _EDITION.sub("", _MAKER.sub("", name.strip()))
    return CARD_MIB[short] * MIB if short in CARD_MIB and short not in _SEVERAL_SIZES else None
