"""Policies from TOML: what cannot be meant is refused, with the policy, the key and a hint."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from tests.patience import must_end
from vram.errors import ConfigError
from vram.policy.config import read_policies
from vram.policy.policy import NotifyConfig, PolicyMatch, matches_any
from vram.units import GIB

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

GOOD = """
[[policy]]
name = "ghosts of students"
do = "end-leftovers"
mode = "act"
after = "15min"
readings = 5
most-per-hour = 2
grace = "30s"
[policy.match]
users = ["student-*"]
not-users = ["student-root"]
gpus = [1, 0]
codes = ["vr101"]
min-size = "1GiB"
min-age = "2h"
commands = ["*python*"]

[[policy]]
name = "tell"
do = "warn-owner"
[policy.notify]
terminals = true
mail = ["/usr/sbin/sendmail", "-i", "{user}"]
webhook = "https://chat.example.org/hook?room=1"
webhook-token-file = "/etc/vram/token"
"""


def read(text: str) -> Any:
    return read_policies(tomllib.loads(text).get("policy", []))


def test_a_file_means_what_it_says():
    ending, telling = read(GOOD)
    assert (ending.do, ending.mode, ending.after_s, ending.readings) == ("end-leftovers", "act", 900.0, 5)
    assert (ending.most_per_hour, ending.grace_s) == (2, 30.0)
    assert ending.match == PolicyMatch(
        gpus=(0, 1),
        users=("student-*",),
        not_users=("student-root",),
        codes=("VR101",),
        min_bytes=GIB,
        min_age_s=7200.0,
        commands=("*python*",),
    )
    assert telling.mode == "dry-run"
    assert telling.notify == NotifyConfig(
        terminals=True,
        mail=("/usr/sbin/sendmail", "-i", "{user}"),
        webhook="https://chat.example.org/hook?room=1",
        webhook_token_file="/etc/vram/token",
    )


def test_the_guides_examples_are_policies():
    guide = (Path(__file__).parents[2] / "docs/guides/policies.md").read_text()
    examples = [block.partition("```")[0] for block in guide.split("```toml\n")[1:]]
    assert [policy.do for text in examples for policy in read(text)] == [
        "end-leftovers",
        "end-orphans",
        "before-oom",
    ]
    (orphans,) = read(examples[1])
    assert orphans == replace(orphans, after_s=3600.0, idle_s=1800.0, notice_s=900.0, mode="dry-run")


BASE = {"name": "p", "do": "end-leftovers"}
TELL = {"name": "p", "do": "warn-owner"}


@pytest.mark.parametrize(
    ("table", "said", "hint"),
    [
        ({"name": "p"}, "does not say what to do", "end-leftovers"),
        ({**BASE, "do": "kill"}, "do = 'kill'", "park-idle"),
        ({"do": "end-leftovers"}, "has no name", "name ="),
        ({**BASE, "mod": "act"}, "no key 'mod'", "mode"),
        ({**BASE, "mode": "live"}, "mode = 'live'", "dry-run"),
        ({**BASE, "after": 60}, "after = 60", "write 60s, in quotes"),
        ({**BASE, "after": "0s"}, "after = '0s'", "10s"),
        ({**BASE, "after": "1 fortnight"}, "after", "5min"),
        ({**BASE, "readings": 1}, "readings = 1", "from 2"),
        ({**BASE, "readings": True}, "readings", "number"),
        ({**BASE, "most-per-hour": 0}, "most-per-hour", "from 1"),
        ({**BASE, "all": "yes"}, "all", "true or false"),
        ({**BASE, "match": []}, "match", "table"),
        ({**BASE, "match": {"user": ["a"]}}, "no key 'user'", "users"),
        ({**BASE, "match": {"users": "a"}}, "users", "list"),
        ({**BASE, "match": {"users": []}}, "users", "no user"),
        ({**BASE, "match": {"users": ["a" * 300]}}, "users", "256"),
        ({**BASE, "match": {"users": ["a\nb"]}}, "users", "list"),
        ({**BASE, "match": {"gpus": [-1]}}, "gpus", "[0, 1]"),
        ({**BASE, "match": {"gpus": [True]}}, "gpus", "[0, 1]"),
        ({**BASE, "match": {"codes": ["VR206"]}}, "VR206", "VR101"),
        ({**BASE, "match": {"min-size": "100"}}, "min-size", "write 100GiB"),
        ({**BASE, "match": {"min-size": 100}}, "min-size", "write 100GiB"),
        ({**BASE, "notify": {"terminals": True}}, "no key 'notify'", "known"),
        ({**TELL}, "notifies no one", "notify"),
        ({**TELL, "notify": {"mail": ["mail"]}}, "whole path", "no shell"),
        ({**TELL, "notify": {"mail": "/bin/mail -s x"}}, "mail", "list"),
        ({**TELL, "notify": {"webhook": "ftp://x/"}}, "not an address", "https"),
        ({**TELL, "notify": {"webhook": "https://u:p@h/"}}, "contains a password", "token-file"),
        ({**TELL, "notify": {"webhook": "https://h:99999/"}}, "not an address", "https"),
        ({**TELL, "notify": {"webhook": "https://h/ x"}}, "not an address", "https"),
        ({**TELL, "notify": {"webhook": "http://h", "webhook-token-file": "x"}}, "whole path", "/"),
        (
            {"name": "p", "do": "alert-unexplained", "notify": {"webhook": "http://h/"}},
            "which size",
            "min-size",
        ),
        (
            {
                "name": "p",
                "do": "alert-unexplained",
                "match": {"min-size": "1GiB"},
                "notify": {"terminals": True},
            },
            "no owner",
            "mail-to",
        ),
        ({"name": "p", "do": "park-idle", "match": {"codes": ["VR101"]}}, "no key 'codes'", "did you mean"),
    ],
)
def test_what_cannot_be_meant_is_refused_with_a_hint(table: dict[str, Any], said: str, hint: str):
    with pytest.raises(ConfigError) as caught:
        read_policies([table])
    assert said in str(caught.value)
    assert hint in caught.value.hint


def test_names_are_given_once():
    with pytest.raises(ConfigError, match="two policies"):
        read_policies([BASE, BASE])


@pytest.mark.parametrize("tables", ["policy", {"name": "p"}, [3], None])
def test_what_is_no_list_of_tables_is_refused(tables: Any):
    with pytest.raises(ConfigError):
        read_policies(tables)


EVERYTHING = [
    {},
    {"users": ["*"]},
    {"users": ["**", "alice"]},
    {"commands": ["?*"]},
    {"commands": ["[!x]*"]},
    {"not-users": ["root"]},
    {"min-age": "3h"},
    {"min-size": "1KiB"},
    {"codes": ["VR101", "VR103", "VR104", "VR203"]},
]


@pytest.mark.parametrize("match", EVERYTHING)
def test_acting_on_everything_must_be_said(match: dict[str, Any]):
    """Row 16: nobody gets there by leaving something out, or by a pattern that matches all."""
    table = {**BASE, "mode": "act", "match": match}
    with pytest.raises(ConfigError, match="would act on everything"):
        read_policies([table])
    assert read_policies([{**table, "all": True}])[0].all
    assert read_policies([{**table, "mode": "dry-run"}])


@pytest.mark.parametrize(
    "match", [{"gpus": [0]}, {"users": ["a*"]}, {"codes": ["VR101"]}, {"min-size": "1GiB"}, {"units": ["x"]}]
)
def test_anything_that_narrows_is_enough(match: dict[str, Any]):
    assert read_policies([{**BASE, "mode": "act", "match": match}])


def test_a_pattern_matches_the_whole_text_only():
    assert matches_any(["python*"], "python train.py")
    assert not matches_any(["python"], "python train.py")
    assert not matches_any(["train*"], "python train.py")
    assert matches_any(["[ab]*"], "bob")
    assert not matches_any(["*"], None)


def test_long_text_matches_only_where_its_end_is_left_open():
    assert matches_any(["python *"], "python " + "x" * 10_000)
    assert not matches_any(["*evil"], "y" * 256 + "evil")
    assert not matches_any(["x" * 256], "x" * 257)


def test_no_pattern_takes_long_on_any_text():
    """Tried in every way, each of these would take years."""
    with must_end():
        for _ in range(50):
            matches_any(["*a" * 100 + "*"], "a" * 255 + "b")
            matches_any(["*a" * 100 + "b"], "a" * 5000)


json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=10), inner, max_size=4),
    max_leaves=12,
)
keys = st.sampled_from(
    [*("name", "do", "mode", "after", "readings", "most-per-hour", "all", "match", "notify", "grace"), "x"]
)
values = json | st.sampled_from(
    ["end-leftovers", "warn-owner", "park-idle", "alert-unexplained", "act", "5min"]
)


@given(st.lists(st.dictionaries(keys, values, max_size=8) | json, max_size=4))
def test_whatever_a_file_contains_is_read_or_refused(tables: list[Any]):
    refused: ConfigError | None = None
    try:
        read_policies(tables)
    except ConfigError as error:
        refused = error
    assert refused is None or (len(str(refused)) < 1000 and refused.hint)
