"""Whether the driver is loaded is asked so that no other thread's import or dlopen is in the way."""

from __future__ import annotations

from pathlib import Path

from tests.guard.scoping import result
from vram.virtualgpu import VirtualGpu

LIBRARIES = 300


def test_asking_while_another_thread_loads_libraries_never_hangs(
    virtual_gpu: VirtualGpu, tmp_path: Path
) -> None:
    """The loader's lock and the interpreter's were once taken in two orders."""
    program = f"""
        import ctypes, shutil
        from vram.guard.memory import driver_is_loaded
        from vram.guard.memory import LIBRARY
        names = [shutil.copy(LIBRARY, f"{tmp_path}/{{number}}.so") for number in range({LIBRARIES})]
        sys.setswitchinterval(1e-6)
        loader = threading.Thread(target=lambda: [ctypes.CDLL(name) for name in names])
        loader.start()
        answers = set()
        while loader.is_alive():
            answers.add(driver_is_loaded())
        tell(sorted(answers))
    """
    assert result(virtual_gpu, program) == [True]
