"""A Windows to ask: a real program called powershell.exe, and what real ones print.

The answers have the shape that Windows PowerShell 5.1 gives to the script that vram sends, in the
words of several languages: class and property names stay English everywhere, while the texts of
errors, the encodings of consoles and some names do not.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

from vram.units import GIB, MIB

LUID, OTHER_LUID = 0x0000D3E4, 0x0001_0000_D3F5
PLACE = r"@System32\drivers\pci.sys,#65536;PCI bus %1, device %2, function %3;({},0,0)"
NVIDIA, MICROSOFT, INTEL = 0x10DE, 0x1414, 0x8086

# The same machine in five languages: who runs there, and what an error says.
SPEAKERS: dict[str, tuple[str, str]] = {
    "en": ("chrome.exe", "Invalid class "),
    "de": ("Überwachung für Größen.exe", "Ungültige Klasse "),
    "fr": ("Éditeur d’images.exe", "Classe non valide "),
    "ja": ("ゲーム.exe", "クラスが無効です "),
    "pl": ("Przeglądarka zdjęć.exe", "Nieprawidłowa klasa "),
}


def instance(pid: int | None, luid: int = LUID, *, physical: int = 0) -> str:
    """The name of a counter's instance, as Windows spells it."""
    owner = "" if pid is None else f"pid_{pid}_"
    return f"{owner}luid_0x{luid >> 32:08X}_0x{luid & 0xFFFFFFFF:08X}_phys_{physical}"


def row(pid: int, local: int, *, shared: int = 0, luid: int = LUID) -> dict[str, Any]:
    """What one process has; committed is more than resident, as it mostly is."""
    figures = {"LocalUsage": local, "NonLocalUsage": shared}
    return {"Name": instance(pid, luid), **figures, "DedicatedUsage": local + 64 * MIB, "SharedUsage": shared}


def card(
    luid: int = LUID, name: str = "NVIDIA GeForce RTX 4090", *, bus: int | None = 1, vendor: int = NVIDIA
) -> dict[str, Any]:
    place = "" if bus is None else PLACE.format(bus)
    return {"luid": luid, "name": name, "vendor": vendor, "total": 24 * GIB - 400 * MIB, "place": place}


BASIC = card(0x1234, "Microsoft Basic Render Driver", bus=None, vendor=MICROSOFT) | {"total": 0}


def answer(
    *rows: dict[str, Any],
    names: dict[int, str] | None = None,
    cards: tuple[dict[str, Any], ...] = (card(), BASIC),
    errors: tuple[dict[str, str], ...] = (),
) -> dict[str, Any]:
    """A whole answer about *rows*."""
    processes = [{"ProcessId": pid, "Name": name} for pid, name in (names or {}).items()]
    known = (each.get("LocalUsage") for each in rows)
    used = sum(each for each in known if isinstance(each, int) and 0 <= each < 1 << 50)
    adapters = [{"Name": instance(None), "DedicatedUsage": used, "SharedUsage": 0}]
    return {
        "vram": 1,
        "errors": list(errors),
        "memory": list(rows),
        "adapters": adapters,
        "processes": processes,
        "cards": list(cards),
    }


def speaking(language: str, *, guest: int = 5 * GIB, other: int = GIB, spilled: int = 0) -> dict[str, Any]:
    """A desktop with one program and WSL2, in one of the languages."""
    program, _ = SPEAKERS[language]
    names = {4: "System", 1844: program, 9120: "vmmemWSL"}
    return answer(row(1844, other), row(9120, guest, shared=spilled), names=names)


def encoded(said: object, encoding: str = "utf-8") -> bytes:
    return json.dumps(said, ensure_ascii=False).encode(encoding)


def install(folder: Path, said: bytes | None = None, *, before: str = "", then: str = "") -> Path:
    """Put a powershell.exe into *folder*; it notes its pid and its arguments, and prints *said*.

    *before* and *then* are lines of Python that run before and after printing.
    """
    folder.mkdir(exist_ok=True)
    (folder / "answer").write_bytes(said or b"")
    program = folder / "powershell.exe"
    lines = (
        f"#!{sys.executable} -S",
        "import os, sys, json",
        f"folder = {str(folder)!r}",
        "note = os.path.join(folder, 'asked')",
        "open(note + '.new', 'w').write(json.dumps({'pid': os.getpid(), 'argv': sys.argv[1:]}))",
        "os.replace(note + '.new', note)",
        "open(os.path.join(folder, 'starts'), 'a').write('once\\n')",
        before,
        "sys.stdout.buffer.write(open(os.path.join(folder, 'answer'), 'rb').read())",
        "sys.stdout.flush()",
        then,
    )
    program.write_text("\n".join(lines) + "\n")
    program.chmod(0o755)
    return program


def asked(folder: Path) -> dict[str, Any]:
    """What the stand-in was asked, and by which pid it ran."""
    found: dict[str, Any] = json.loads((folder / "asked").read_text())
    return found


def starts(folder: Path) -> int:
    """How often the stand-in was started."""
    noted = folder / "starts"
    return len(noted.read_text().splitlines()) if noted.exists() else 0


def search_path(folder: Path) -> str:
    """A PATH that finds the stand-in first."""
    return os.pathsep.join((str(folder), os.environ["PATH"]))
