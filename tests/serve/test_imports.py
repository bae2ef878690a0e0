"""What stays in memory while the service runs: each of its processes imports only what it uses."""

from __future__ import annotations

import subprocess
import sys


def test_the_process_that_has_the_driver_open_is_forked_from_a_small_one() -> None:
    code = (
        "import sys; from vram import reading_process; from vram.host import local\n"
        "def start(): print(*sys.modules); sys.exit()\n"
        "local.start_kept_reader = start\n"
        "reading_process.main()"
    )
    loaded = _loaded(code)
    assert "vram.host.local" in loaded
    assert not loaded & {"msgspec", "vram.live_reader", "vram.model.ledger"}


def test_the_service_imports_nothing_that_makes_a_ledger() -> None:
    loaded = _loaded("import sys; import vram.serve.service, vram.serve.parts; print(*sys.modules)")
    assert "vram.ledger.holds" in loaded
    assert not loaded & {"vram.ledger.build", "vram.ledger.indexed_survey", "vram.ledger.charges"}


def _loaded(code: str) -> set[str]:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(done.stdout.split())
