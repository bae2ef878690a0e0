"""The fdinfo of DRM files: every driver's words, every kernel's, and words that no kernel wrote."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.vendors.fdinfo_styles import AMDGPU_KERNELS, HEAD, I915_KERNELS, XE_KERNELS, Use, amdgpu, i915, xe
from vram.host.local.drm_usage import MAX_NBYTES, read_client
from vram.host.ports import DrmClient
from vram.units import KIB, MIB

AMD, CARD, INTEGRATED = "0000:03:00.0", "0000:0a:00.0", "0000:00:02.0"


def regions(client: DrmClient) -> dict[str, tuple[bool, int | None, int | None]]:
    return {each.name: (each.dedicated, each.nbytes, each.shared) for each in client.facts.regions}


@pytest.mark.parametrize("kernel", AMDGPU_KERNELS)
def test_amdgpu(kernel: str) -> None:
    """From its own keys over the common ones to both at once: the same figures."""
    raw = amdgpu(kernel, AMD, 7, Use(vram=5348 * KIB, system=25_258_000 * KIB)).encode()
    client = read_client(9, 128, raw)
    assert client.status == "ok"
    assert (client.facts.driver, client.facts.address, client.facts.node) == ("amdgpu", AMD, 128)
    assert client.facts.client == (32768 + 7 if kernel == "5.15" else 7)
    told = regions(client)
    assert set(told) == {"vram", "gtt", "cpu"}  # what lies inside the chip is nobody's memory
    assert told["vram"][:2] == (True, 5348 * KIB)
    assert told["gtt"][:2] == (False, 25_258_000 * KIB)


@pytest.mark.parametrize("kernel", I915_KERNELS)
def test_i915(kernel: str) -> None:
    client = read_client(
        3, 128, i915(kernel, CARD, 4, Use(vram=3 * MIB, shared=MIB, system=5 * MIB)).encode()
    )
    if kernel in ("5.15", "5.19", "6.1"):
        assert (client.status, client.facts.regions) == ("unsupported", ())
        return
    assert client.status == "ok"
    told = regions(client)
    assert told["local0"] == (True, 3 * MIB, MIB)
    assert told["system0"][:2] == (False, 5 * MIB)
    assert told["stolen-local0"][0]


@pytest.mark.parametrize("kernel", XE_KERNELS)
def test_xe(kernel: str) -> None:
    """Two tiles are two regions; its clock, drm-total-cycles-rcs, is none."""
    raw = xe(kernel, CARD, 4, Use(vram=24_568_832, second_tile=2 * MIB, system=192 * KIB)).encode()
    told = regions(read_client(3, 129, raw))
    assert told["vram0"][:2] == (True, 24_568_832)
    assert told["vram1"][:2] == (True, 2 * MIB)
    assert told["gtt"][:2] == (False, 192 * KIB)
    assert told["stolen"][0]  # of a card: it lies on the card
    assert not any("cycles" in name for name in told)


def test_stolen_memory_of_an_integrated_gpu_is_the_machines() -> None:
    told = regions(read_client(3, 128, xe("6.12", INTEGRATED, 4, Use(system=MIB)).encode()))
    assert {name: dedicated for name, (dedicated, _, _) in told.items()} == {
        "system": False,
        "gtt": False,
        "stolen": False,
    }


@pytest.mark.parametrize(
    ("lines", "nbytes"),
    [
        ("drm-total-vram: 9 MiB\ndrm-memory-vram: 4 MiB\ndrm-resident-vram: 5 MiB", 5 * MIB),
        ("drm-total-vram: 9 MiB\ndrm-memory-vram: 4 MiB", 4 * MIB),
        ("drm-total-vram: 9 MiB", 9 * MIB),
        ("drm-resident-vram: 4096", 4096),
        ("drm-resident-vram:4096 KiB", 4 * MIB),
        ("drm-resident-vram:\t \t2 GiB  ", 2048 * MIB),
        ("drm-resident-vram: 0", 0),
        ("drm-resident-vram: -1 KiB\ndrm-memory-vram: 7 KiB", 7 * KIB),
        ("drm-resident-vram: 18446744073709551615", None),
        ("drm-resident-vram: 99999999999999999999999 KiB", None),
        ("drm-resident-vram: 17592186044416 MiB", None),
        ("drm-resident-vram: 1 furlong", None),
        ("drm-resident-vram: 1.5 MiB", None),
        ("drm-resident-vram:", None),
        ("drm-resident-vram: ١ MiB", None),
    ],
)
def test_figures(lines: str, nbytes: int | None) -> None:
    """Resident first, then the old name, then what was asked for; what is no size is unknown."""
    client = read_client(3, 0, f"{HEAD}drm-driver: amdgpu\n{lines}\n".encode())
    assert client.facts.regions[0].nbytes == nbytes
    hostile = "is not a size" in (client.message or "")
    assert (client.status == "failed") == hostile == (nbytes is None or "-1" in lines)


def test_a_key_that_is_there_twice_is_told() -> None:
    raw = b"drm-driver:\txe\ndrm-client-id:\t1\ndrm-client-id:\t2\ndrm-resident-vram0:\t1 MiB\n"
    client = read_client(3, 0, raw)
    assert client.status == "failed"
    assert "drm-client-id appears twice" in (client.message or "")
    assert client.facts.client == 1


@pytest.mark.parametrize("address", ["0000:03:00", "../../etc", "0000:03:00.9", "\x1b]0;x", "a" * 500])
def test_an_address_that_is_none(address: str) -> None:
    raw = f"drm-driver: amdgpu\ndrm-pdev: {address}\ndrm-resident-vram: 1 MiB\n".encode()
    client = read_client(3, 5, raw)
    assert (client.facts.address, client.facts.node, client.status) == (None, 5, "failed")


def test_a_text_without_end_is_cut_at_a_line() -> None:
    """A figure that was cut in the middle would be another figure."""
    head = b"drm-driver: xe\ndrm-resident-vram0: 1 MiB\n"
    raw = (head + b"drm-resident-vram1: 123456789 KiB\n" * MAX_NBYTES)[:MAX_NBYTES]
    client = read_client(3, 0, raw)
    assert client.status == "failed"
    assert {region.nbytes for region in client.facts.regions} == {MIB, 123456789 * KIB}


def test_a_line_of_a_megabyte() -> None:
    client = read_client(3, 0, (b"drm-resident-" + b"x" * (1 << 20))[:MAX_NBYTES])
    assert (client.status, client.facts.regions) == ("failed", ())


KEYS = (
    *(b"drm-driver", b"drm-pdev", b"drm-client-id", b"drm-resident-vram", b"drm-shared-vram"),
    *(b"drm-total-gtt", b"drm-memory-", b"vram mem", b"pdev", b"pasid", b"drm-total-cycles-rcs"),
)
FIELDS = st.one_of(
    st.binary(max_size=60),
    st.tuples(
        st.sampled_from(KEYS),
        st.sampled_from([b":", b"::", b" : ", b""]),
        st.one_of(
            st.binary(max_size=30),
            st.integers(-(1 << 70), 1 << 70).map(lambda number: f"{number} KiB".encode()),
        ),
    ).map(b"".join),
)


@given(st.lists(FIELDS, max_size=30).map(b"\n".join))
def test_no_text_upsets_it(raw: bytes) -> None:
    """Whatever it says, sizes are sizes, and a part is never more than the whole."""
    client = read_client(3, None, raw)
    for region in client.facts.regions:
        assert region.nbytes is None or 0 <= region.nbytes < 1 << 62
        if region.shared is not None and region.nbytes is not None:
            assert region.shared <= region.nbytes
    assert client.status == "ok" or client.message
