"""nvidia-smi, where only it may act: found in the system's own folders, never by the caller's PATH."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence

from vram.host.ports import VendorAnswer

# This runs as root: a PATH that somebody else prepared must not choose the program.
FOLDERS = ("/usr/bin", "/usr/local/bin", "/bin", "/usr/sbin", "/opt/bin", "/usr/lib/wsl/lib")
_SAFE = {"PATH": ":".join(FOLDERS), "LC_ALL": "C"}


class LocalVendor:
    """Runs the vendor's tool under a deadline."""

    def reset_command(self, gpu: int) -> tuple[str, ...]:
        places = (f"{folder}/nvidia-smi" for folder in FOLDERS)
        tool = next((place for place in places if os.access(place, os.X_OK)), "nvidia-smi")
        return (tool, "--gpu-reset", "-i", str(gpu))

    def run(self, command: Sequence[str], deadline_s: float) -> VendorAnswer:
        try:
            done = subprocess.run(
                command,
                env=_SAFE,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=deadline_s,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return VendorAnswer(None, f"it did not end within {deadline_s:g} s")
        except OSError as error:
            return VendorAnswer(None, f"{command[0]} cannot be run: {error.strerror}")
        return VendorAnswer(
            done.returncode, (done.stdout + done.stderr).decode(errors="backslashreplace").strip()
        )
