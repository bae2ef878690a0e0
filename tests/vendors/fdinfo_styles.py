"""What each driver has written into fdinfo over time, after the kernel's own sources.

The numbers order the forms and say about when each appeared: distributions carry some to older
kernels, and no test depends on more than their order.
"""

from __future__ import annotations

from typing import NamedTuple

KIB, MIB = 1 << 10, 1 << 20
HEAD = "pos:\t0\nflags:\t02100002\nmnt_id:\t26\nino:\t1186\n"
AMDGPU_KERNELS = ("5.15", "5.19", "6.1", "6.5", "6.8", "6.12", "6.13", "6.18")
I915_KERNELS = ("5.15", "5.19", "6.1", "6.8", "6.12")
XE_KERNELS = ("6.8", "6.12")


class Use(NamedTuple):
    """What a client uses; sizes are whole KiB, as every driver counts pages."""

    vram: int = 0
    shared: int = 0
    system: int = 0
    second_tile: int = 0


def at_least(kernel: str, other: str) -> bool:
    return tuple(map(int, kernel.split("."))) >= tuple(map(int, other.split(".")))


def amdgpu(kernel: str, address: str, client: int, use: Use) -> str:
    if not at_least(kernel, "5.19"):
        return (
            f"{HEAD}pdev:\t{address}\npasid:\t{32768 + client}\nvram mem:\t{use.vram // KIB} kB\n"
            f"gtt mem:\t{use.system // KIB} kB\ncpu mem:\t0 kB\ngfx0:\t12.5%\n"
        )
    who = f"drm-driver:\tamdgpu\ndrm-client-id:\t{client}\ndrm-pdev:\t{address}\n"
    legacy = (
        f"drm-memory-vram:\t{use.vram // KIB} KiB\ndrm-memory-gtt: \t{use.system // KIB} KiB\n"
        "drm-memory-cpu: \t0 KiB\n"
    )
    engines = "drm-engine-gfx:\t107322799 ns\ndrm-engine-compute:\t9 ns\n"
    if not at_least(kernel, "6.5"):
        return f"{HEAD}pasid:\t{32768 + client}\n{who}{legacy}{engines}"
    if not at_least(kernel, "6.13"):
        more = f"amd-evicted-vram:\t0 KiB\namd-requested-vram:\t{use.vram // KIB} KiB\n"
        shared = f"drm-shared-vram:\t{use.shared // KIB} KiB\n" if at_least(kernel, "6.9") else ""
        return f"{HEAD}{who}pasid:\t{32768 + client}\n{legacy}{more}{shared}{engines}"
    regions = _region("vram", use.vram, use.shared) + _region("gtt", use.system) + _region("cpu", 0)
    chips = "".join(_region(name, 4096) for name in ("gds", "gws", "oa", "doorbell"))
    return f"{HEAD}{who}pasid:\t{32768 + client}\n{regions}{chips}{legacy}{engines}"


def i915(kernel: str, address: str, client: int, use: Use) -> str:
    if not at_least(kernel, "5.19"):
        return HEAD
    who = f"drm-driver:\ti915\ndrm-client-id:\t{client}\ndrm-pdev:\t{address}\n"
    engines = "drm-engine-render:\t9288864723 ns\ndrm-engine-capacity-video:\t2\n"
    if not at_least(kernel, "6.8"):
        return f"{HEAD}{who}{engines}"
    regions = _region("system0", use.system)
    if not address.startswith("0000:00:02."):
        regions += _region("local0", use.vram, use.shared) + _region("stolen-local0", 0)
    return f"{HEAD}{who}{regions}{engines}"


def xe(kernel: str, address: str, client: int, use: Use) -> str:
    who = f"drm-driver:\txe\ndrm-client-id:\t{client}\ndrm-pdev:\t{address}\n"
    regions = _region("system", 0) + _region("gtt", use.system)
    if not address.startswith("0000:00:02."):
        regions += _region("vram0", use.vram, use.shared)
        regions += _region("vram1", use.second_tile) if use.second_tile else ""
    regions += _region("stolen", 0)
    cycles = "drm-cycles-rcs:\t28257900\ndrm-total-cycles-rcs:\t7655183225\n"
    return f"{HEAD}{who}{regions}" + (cycles if at_least(kernel, "6.12") else "")


def _region(name: str, nbytes: int, shared: int = 0) -> str:
    figures = {"total": nbytes, "shared": shared, "active": 0, "resident": nbytes, "purgeable": 0}
    return "".join(f"drm-{word}-{name}:\t{_size(figure)}\n" for word, figure in figures.items())


def _size(nbytes: int) -> str:
    """The kernel takes the largest unit in which the figure is whole."""
    for unit, word in ((MIB, " MiB"), (KIB, " KiB")):
        if nbytes and nbytes % unit == 0:
            return f"{nbytes // unit}{word}"
    return str(nbytes)


STYLES = {"amdgpu": amdgpu, "i915": i915, "xe": xe}
