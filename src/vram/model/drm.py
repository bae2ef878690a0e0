"""What the kernel's DRM and KFD interfaces tell about GPUs of AMD and Intel, and who uses them."""

from __future__ import annotations

from msgspec import Struct


class Region(Struct, frozen=True, omit_defaults=True):
    """One kind of memory that a client uses, as its driver names it.

    ``dedicated`` memory lies on the GPU; the rest is the machine's own. ``nbytes`` None: the
    figure could not be read. ``shared`` is the part that other clients use too, where it is told.
    """

    name: str
    dedicated: bool
    nbytes: int | None
    shared: int | None = None


class ClientFacts(Struct, frozen=True, omit_defaults=True, tag="client"):
    """One open file on a GPU, as its fdinfo tells.

    ``client`` numbers it on its GPU: descriptors with the same number are one client, in
    whatever process they are. Where the driver gives no number, ``description`` tells open
    files apart, if the kernel compares them. ``address`` is the GPU's PCI address; where it is
    missing, the device file's ``node`` number names the GPU.
    """

    fd: int
    driver: str | None = None
    address: str | None = None
    node: int | None = None
    client: int | None = None
    description: int | None = None
    regions: tuple[Region, ...] = ()


class ComputeFacts(Struct, frozen=True, tag="compute"):
    """The kernel's list of ROCm processes names a pid. The bytes are the observation's own.

    ``system``: they lie in the machine's memory, not in the GPU's.
    """

    address: str
    system: bool = False


class CapacityFacts(Struct, frozen=True, tag="capacity"):
    """How much memory a GPU has, where the driver does not tell how much of it is in use."""

    total: int


class SystemMemoryFacts(Struct, frozen=True, tag="system_memory"):
    """The machine's own memory that a GPU may use, and how much of it does."""

    total: int | None
    used: int | None
