"""What PowerShell prints, read: in every language, in every encoding, whole and broken."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.wsl.windows import (
    BASIC,
    LUID,
    OTHER_LUID,
    SPEAKERS,
    answer,
    card,
    encoded,
    instance,
    row,
    speaking,
)
from vram.model.windows import AdapterFacts, WindowsMemoryFacts
from vram.probes.sources.windows import Damaged, read
from vram.units import GIB, MIB


def memory(said: bytes) -> dict[int, WindowsMemoryFacts]:
    return {each.pid: each for each in read(said).facts if isinstance(each, WindowsMemoryFacts)}


def adapters(said: bytes) -> list[AdapterFacts]:
    return [each for each in read(said).facts if isinstance(each, AdapterFacts)]


@pytest.mark.parametrize("language", SPEAKERS)
@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-16-le", "utf-16-be"])
def test_the_language_and_the_encoding_do_not_matter(language: str, encoding: str) -> None:
    found = memory(encoded(speaking(language), encoding))
    assert {pid: (each.name, each.local) for pid, each in found.items()} == {
        1844: (SPEAKERS[language][0], GIB),
        9120: ("vmmemWSL", 5 * GIB),
    }


def test_names_in_a_consoles_own_code_page_lose_letters_and_no_bytes() -> None:
    """Where PowerShell may not set its encoding, text comes in the one that the console has."""
    said = encoded(speaking("de"), "cp850")
    assert memory(said)[1844].name == "�berwachung f�r Gr��en.exe"
    assert memory(said)[1844].local == GIB


def test_resident_bytes_count_and_committed_ones_only_where_there_are_no_others() -> None:
    rows = [row(1, GIB), row(2, GIB)]
    del rows[1]["LocalUsage"]
    found = memory(encoded(answer(*rows)))
    assert found[1].device_bytes == GIB
    assert found[2].device_bytes == GIB + 64 * MIB


def test_a_single_row_may_come_without_its_list() -> None:
    said = answer(row(7, MIB), names={7: "one.exe"})
    said["memory"], said["processes"] = said["memory"][0], said["processes"][0]
    said["cards"] = None
    assert memory(encoded(said))[7].name == "one.exe"


def test_a_list_may_come_wrapped() -> None:
    said = answer(row(7, MIB))
    said["memory"] = {"value": said["memory"], "Count": 1}
    assert memory(encoded(said))[7].local == MIB


def test_what_a_profile_prints_around_the_answer_is_passed_over() -> None:
    said = b"WARNUNG: Ihr Profil ist langsam.\r\n" + encoded(answer(row(7, MIB))) + b"\r\n"
    assert memory(said)[7].local == MIB


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        (4096, 4096),
        ("4096", 4096),
        ("4096,00", 4096),
        ("4096.0", 4096),
        (4096.0, 4096),
        (4096.5, None),
        ("4.096,00", None),
        ("viel", None),
        ("٣٤٥", None),
        (-1, None),
        (2**63, None),
        (2**64 - 4096, None),
        (None, None),
        (True, None),
        ([], None),
    ],
)
def test_a_number_is_a_size_or_it_is_nothing(written: object, meant: int | None) -> None:
    """A decimal comma is understood; what could be thousands or a fraction is not guessed."""
    said = answer(row(7, MIB) | {"LocalUsage": written, "DedicatedUsage": None})
    assert memory(encoded(said))[7].device_bytes == meant


@pytest.mark.parametrize(
    "name",
    ["", "pid_x_luid_0x0_0x1_phys_0", "pid_7_luid_0x00000000_0x0000D3E4", "luid_0x0_0xD3E4_phys_0", None, 7],
)
def test_a_row_that_names_nobody_is_left_out_and_counted(name: object) -> None:
    said = answer(row(7, MIB), row(8, MIB) | {"Name": name})
    assert read(encoded(said)).damaged_rows == 1
    assert list(memory(encoded(said))) == [7]


def test_adapters_are_named_placed_and_measured() -> None:
    said = answer(row(7, 3 * GIB), cards=(card(), card(OTHER_LUID, bus=65), BASIC))
    first, second, basic = adapters(encoded(said))
    assert (first.luid, first.bus, first.local) == ("0x00000000_0x0000d3e4", (1, 0, 0), 3 * GIB)
    assert (second.luid, second.bus, second.local) == ("0x00000001_0x0000d3f5", (65, 0, 0), None)
    assert basic.vendor == 0x1414


def test_an_adapter_that_is_gone_has_no_number_and_is_left_out() -> None:
    assert adapters(encoded(answer(cards=(card(0), card(LUID))))) == adapters(
        encoded(answer(cards=(card(),)))
    )


def test_an_adapter_with_counters_and_without_a_name_is_there_all_the_same() -> None:
    (found,) = adapters(encoded(answer(row(7, MIB), cards=())))
    assert found == AdapterFacts(luid="0x00000000_0x0000d3e4", local=MIB, shared=0)


@pytest.mark.parametrize("language", SPEAKERS)
def test_what_windows_refuses_is_told_by_its_code_and_not_by_its_words(language: str) -> None:
    code = "HRESULT 0x80041010,Microsoft.Management.Infrastructure.CimCmdlets.GetCimInstanceCommand"
    failure = {"source": "memory", "id": code, "text": SPEAKERS[language][1]}
    (said,) = read(encoded(answer(errors=(failure,)))).refusals
    assert "winmgmt /resyncperf" in said
    assert SPEAKERS[language][1] not in said


def test_other_refusals_keep_their_words() -> None:
    failure = {"source": "cards", "id": "X", "text": "Registrierungszugriff unzulässig"}
    assert read(encoded(answer(errors=(failure,)))).refusals == (
        "Windows could not report its cards: Registrierungszugriff unzulässig",
    )


@pytest.mark.parametrize(
    ("said", "complaint"),
    [
        (b"", "nothing"),
        (b"\xff\xfe", "nothing"),
        (b"Windows PowerShell\r\nCopyright", "nothing"),
        (encoded(answer(row(7, MIB)))[:-40], "damaged"),
        (b'{"vram": 1, "memory": [', "damaged"),
        (b'{"vram": 1}}', "damaged"),
        (b'{"vram":' * 100_000, "damaged"),
        (b'{"vram": 2}', "unexpected answer"),
        (b'{"a": "{"}', "unexpected answer"),
    ],
)
def test_a_broken_answer_is_called_broken(said: bytes, complaint: str) -> None:
    with pytest.raises(Damaged, match=complaint):
        read(said)


@given(st.binary(max_size=400))
def test_any_bytes_are_understood_or_refused(said: bytes) -> None:
    _understood_or_refused(said)


anything: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
names = st.sampled_from([instance(7), instance(None), instance(9, OTHER_LUID)]) | st.text(max_size=30)
rows = st.fixed_dictionaries(
    {"Name": names | anything}, optional={"LocalUsage": anything, "SharedUsage": anything}
)
cards = st.fixed_dictionaries({"luid": anything, "name": anything, "vendor": anything, "place": anything})
parts = st.fixed_dictionaries(
    {"vram": st.just(1)},
    optional={
        "memory": st.lists(rows, max_size=3) | rows | anything,
        "adapters": st.lists(rows, max_size=3) | anything,
        "processes": anything,
        "cards": st.lists(cards, max_size=3) | anything,
        "errors": anything,
    },
)


@given(parts)
def test_any_answer_is_understood_or_refused(said: dict[str, Any]) -> None:
    """And what is understood survives a snapshot: sizes are sizes."""
    _understood_or_refused(
        json.dumps(said, allow_nan=False, default=str).encode() if _finite(said) else b"{}"
    )


def _finite(said: object) -> bool:
    try:
        json.dumps(said, allow_nan=False)
    except ValueError:
        return False
    return True


def _understood_or_refused(said: bytes) -> None:
    try:
        found = read(said)
    except Damaged:
        return
    for facts in found.facts:
        assert msgspec.json.decode(msgspec.json.encode(facts), type=type(facts)) == facts
        if isinstance(facts, WindowsMemoryFacts):
            assert all(n is None or 0 <= n < 1 << 50 for n in (facts.local, facts.non_local, facts.shared))
