"""The compiled libraries, and the names under which programs look for them."""

from __future__ import annotations

from pathlib import Path

from vram.errors import VirtualGpuError

BUILT = Path(__file__).with_name("lib")

# Some programs (Numba among them) try the name without a version first: on a machine with a
# real driver that name would lead past the virtual one.
NAMES = {
    "libcuda.so.1": "libcuda.so.1",
    "libcuda.so": "libcuda.so.1",
    "libnvidia-ml.so.1": "libnvidia-ml.so.1",
    "libnvidia-ml.so": "libnvidia-ml.so.1",
}


def link_into(folder: Path, built: Path = BUILT) -> None:
    """Make *folder* one that a loader can search, with every name the driver goes by."""
    folder.mkdir()
    for name, library in NAMES.items():
        target = built / library
        if not target.exists():
            raise VirtualGpuError(
                f"the virtual GPU's {library} has not been built",
                hint="in a checkout run `python native/build.py`; else reinstall vram for this platform",
            )
        (folder / name).symlink_to(target)
