"""nvidia-smi, where only it may act: found in the system's own folders, never by the caller's PATH."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Sequence

from vram.host.ports import VendorAnswer
from vram.untrusted import Rejected, receive

# This runs as root: a PATH that somebody else prepared must not choose the program.
FOLDERS = ("/usr/bin", "/usr/local/bin", "/bin", "/usr/sbin", "/opt/bin", "/usr/lib/wsl/lib")
_MAX_OUTPUT_LENGTH = 1 << 20
_SAFE = {"PATH": ":".join(FOLDERS), "LC_ALL": "C"}


class LocalVendor:
    """Runs the vendor's tool under a deadline."""

    def reset_command(self, gpu: int) -> tuple[str, ...]:
        places = (f"{folder}/nvidia-smi" for folder in FOLDERS)
        tool = next((place for place in places if os.access(place, os.X_OK)), "nvidia-smi")
        return (tool, "--gpu-reset", "-i", str(gpu))

    def run(self, command: Sequence[str], deadline_s: float) -> VendorAnswer:
        until = time.monotonic() + deadline_s
        quiet, pipe, both = subprocess.DEVNULL, subprocess.PIPE, subprocess.STDOUT
        try:
            tool = subprocess.Popen(command, env=_SAFE, stdin=quiet, stdout=pipe, stderr=both)
        except OSError as error:
            return VendorAnswer(None, f"cannot run {command[0]}: {error.strerror}")
        assert tool.stdout is not None
        with tool:
            try:
                said = receive(tool.stdout.fileno(), nbytes=_MAX_OUTPUT_LENGTH, until=until, end=None)
                tool.wait(max(0.0, until - time.monotonic()))
            except (Rejected, subprocess.TimeoutExpired) as error:
                tool.kill()
                if isinstance(error, Rejected) and error.code != "late":
                    return VendorAnswer(None, f"its output cannot be parsed: {error}")
                return VendorAnswer(None, f"it did not finish within {deadline_s:g} s")
        return VendorAnswer(tool.returncode, said.decode(errors="backslashreplace").strip())
