"""The tables ``[[policy]]`` of a configuration file, read strictly: what cannot be meant is refused.

Patterns are wildcards (``*``, ``?``, ``[a-z]``) over the whole text: they are anchored by nature, take linear
time on any text, and whether one matches everything can be told.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from difflib import get_close_matches
from typing import Any, get_args
from urllib.parse import urlsplit

from vram.diagnosis.leftover import CODES
from vram.errors import ConfigError, UsageError
from vram.policy.kinds import KINDS, PolicyKind
from vram.policy.policy import MAX_TEXT_LENGTH, NotifyConfig, Policy, PolicyMatch, PolicyMode
from vram.units import parse_duration, parse_size

MAX_POLICIES = 64
MAX_PER_HOUR = 12
"""Actions and messages of all policies together."""
_MAX_WORDS = 256

_COMMON_KEYS = ("name", "do", "mode", "after", "readings", "most-per-hour", "all", "match")
_NOTIFY_KEYS = ("terminals", "mail", "mail-to", "webhook", "webhook-token-file")


def read_policies(tables: Any) -> tuple[Policy, ...]:
    """Read the tables, as a TOML parser returns them. Raises ConfigError, which names policy and key."""
    if not isinstance(tables, Sequence) or isinstance(tables, str | bytes):
        raise ConfigError("policy is not a list of tables", hint="begin each one with [[policy]]")
    if len(tables) > MAX_POLICIES:
        raise ConfigError(
            f"there are more than {MAX_POLICIES} policies", hint="one policy may name many users"
        )
    policies = tuple(_read(table, at) for at, table in enumerate(tables, 1))
    names = [policy.name for policy in policies]
    for name in names:
        if names.count(name) > 1:
            raise ConfigError(f"two policies have the name {name!r}", hint="give each a name of its own")
    return policies


def _read(table: Any, at: int) -> Policy:
    where = f"policy {at}"
    if not isinstance(table, Mapping):
        raise ConfigError(f"{where} is not a table", hint="begin it with [[policy]]")
    do: Any = table.get("do")
    kind = KINDS.get(do) if isinstance(do, str) else None
    if kind is None:
        said = "does not say what to do" if do is None else f"says do = {do!r}"
        raise ConfigError(f"{where} {said}", hint=f"do is one of {', '.join(KINDS)}")
    if isinstance(table.get("name"), str):
        where = f"policy {table['name'][:MAX_TEXT_LENGTH]!r}"
    known = _Table(table, where, (*_COMMON_KEYS, *kind.keys))
    policy = Policy(
        name=known.text("name", "", needed=True),
        do=kind.name,
        mode=known.choice("mode", get_args(PolicyMode), "dry-run"),
        after_s=known.duration("after", kind.after_s, least=1.0),
        readings=known.number("readings", 3, 2, 1000),
        most_per_hour=known.number("most-per-hour", 4, 1, 1000),
        all=known.flag("all"),
        match=_read_match(known.table("match"), f"{where}: match", kind),
        grace_s=known.duration("grace", 10.0, least=0.1, most=600.0),
        unpark_after_s=known.duration("unpark-after", 60.0, least=0.0),
        again_after_s=known.duration("again-after", kind.again_after_s or 86400.0, least=60.0),
        idle_s=known.duration("idle", 1800.0, least=1.0),
        notice_s=known.duration("notice", 900.0, most=7 * 86400.0),
        notify=_read_notify(known.table("notify"), f"{where}: notify"),
        full_in_s=known.duration("full-in", 600.0, least=1.0),
        min_free_bytes=known.size("min-free"),
    )
    _require_meant(policy, kind, where)
    return policy


def _require_meant(policy: Policy, kind: PolicyKind, where: str) -> None:
    notify = policy.notify
    if kind.check_match:
        kind.check_match(policy.match, where)
    tells_somebody = bool(notify.terminals or notify.mail or notify.webhook)
    if kind.is_message:
        if not tells_somebody:
            raise ConfigError(
                f"{where} notifies no one", hint="add [policy.notify] with terminals, mail or webhook"
            )
        if kind.check_notify:
            kind.check_notify(notify, where)
    if kind.gives_notice and bool(policy.notice_s) != tells_somebody:
        if tells_somebody:
            raise ConfigError(
                f'{where}: notice = "0s" sends no message, and [policy.notify] says to whom',
                hint="leave one of them out",
            )
        raise ConfigError(
            f"{where} would tell no owner before it acts",
            hint='add [policy.notify] with terminals, mail or webhook, or notice = "0s" if that is meant',
        )
    if policy.mode == "act" and not policy.all and not policy.match.narrows:
        raise ConfigError(
            f"{where} would act on everything: nothing below [policy.match] narrows it down",
            hint="name gpus, users, codes, min-size ..., or say all = true if that is meant",
        )


def _read_match(table: Mapping[str, Any], where: str, kind: PolicyKind) -> PolicyMatch:
    known = _Table(table, where, kind.match_keys)
    codes = tuple(code.upper() for code in known.words("codes"))
    for code in codes:
        if code not in CODES:
            raise ConfigError(
                f"{where}: {code!r} is not a finding that speaks of leftovers",
                hint=f"one of {', '.join(CODES)}",
            )
    return PolicyMatch(
        gpus=known.numbers("gpus"),
        users=known.patterns("users"),
        not_users=known.patterns("not-users"),
        codes=codes,
        min_bytes=known.size("min-size"),
        min_age_s=known.duration("min-age", 0.0),
        commands=known.patterns("commands"),
        units=known.patterns("units"),
        slurm_jobs=known.patterns("slurm-jobs"),
        containers=known.patterns("containers"),
    )


def _read_notify(table: Mapping[str, Any], where: str) -> NotifyConfig:
    known = _Table(table, where, _NOTIFY_KEYS)
    mail, webhook = known.words("mail"), known.text("webhook", "")
    if mail and not mail[0].startswith("/"):
        raise ConfigError(
            f"{where}: mail must begin with the whole path of a program, not {mail[0]!r}",
            hint='for example mail = ["/usr/sbin/sendmail", "-i", "{user}"]; no shell is used',
        )
    if webhook:
        _require_address(webhook, where)
    token_file = known.text("webhook-token-file", "")
    if token_file and not token_file.startswith("/"):
        raise ConfigError(f"{where}: webhook-token-file is not a whole path", hint="begin it with /")
    return NotifyConfig(
        terminals=known.flag("terminals"),
        mail=mail,
        mail_to=known.text("mail-to", ""),
        webhook=webhook,
        webhook_token_file=token_file,
    )


def _require_address(webhook: str, where: str) -> None:
    try:
        parts = urlsplit(webhook)
        sound = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port or 1) > 0
    except ValueError:
        sound, parts = False, urlsplit("")
    if not sound or not webhook.isprintable() or " " in webhook or not webhook.isascii():
        raise ConfigError(f"{where}: webhook is not an address", hint="write https://host/path")
    if parts.username or parts.password:
        raise ConfigError(
            f"{where}: the webhook's address contains a password, which would be shown",
            hint="put it into a file and name that: webhook-token-file",
        )


class _Table:
    """One table: only *keys* may be in it, and each has the type that it is asked for."""

    def __init__(self, table: Mapping[str, Any], where: str, keys: Sequence[str]) -> None:
        self._table, self._where = table, where
        for key in table:
            if key not in keys:
                near = get_close_matches(str(key), keys, 1)
                hint = f"did you mean {near[0]}?" if near else f"these are known: {', '.join(keys)}"
                raise ConfigError(f"{where}: there is no key {str(key)[:MAX_TEXT_LENGTH]!r} here", hint=hint)

    def _wrong(self, key: str, hint: str) -> ConfigError:
        return ConfigError(f"{self._where}: {key} = {self._table[key]!r} is not possible"[:500], hint=hint)

    def text(self, key: str, default: str, *, needed: bool = False) -> str:
        value = self._table.get(key, default)
        if needed and value == "":
            raise ConfigError(f"{self._where} has no {key}", hint=f'add {key} = "..."')
        if not isinstance(value, str) or len(value) > 4096 or not value.isprintable():
            raise self._wrong(key, "write text in quotes, on one line")
        return value

    def choice(self, key: str, words: Sequence[Any], default: Any) -> Any:
        value = self._table.get(key, default)
        if value not in words:
            raise self._wrong(key, f"one of {', '.join(words)}")
        return value

    def flag(self, key: str) -> bool:
        value = self._table.get(key, False)
        if not isinstance(value, bool):
            raise self._wrong(key, "write true or false")
        return value

    def number(self, key: str, default: int, least: int, most: int) -> int:
        value = self._table.get(key, default)
        if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
            raise self._wrong(key, f"write a number from {least} to {most}")
        return value

    def duration(self, key: str, default: float, *, least: float = 0.0, most: float = 3.2e7) -> float:
        return self._parse(key, parse_duration, default, least, most, "10s, 15min or 12h")

    def size(self, key: str) -> int:
        return int(self._parse(key, parse_size, 0, 0, 1 << 60, "512MiB or 20GiB"))

    def _parse(
        self,
        key: str,
        parse: Callable[[str], float],
        default: float,
        least: float,
        most: float,
        examples: str,
    ) -> float:
        value = self._table.get(key)
        if value is None:
            return default
        if isinstance(value, int | float):  # the hint then shows how the number is written with its unit
            value = str(value)
        try:
            number = parse(value) if isinstance(value, str) else -1.0
        except UsageError as error:
            raise self._wrong(key, f"{error.hint}, in quotes") from None
        if not least <= number <= most:
            raise self._wrong(key, f"write it like {examples}")
        return number

    def words(self, key: str) -> tuple[str, ...]:
        value = self._table.get(key, [])
        good = isinstance(value, list) and len(value) <= _MAX_WORDS
        if not good or not all(isinstance(each, str) and each.isprintable() and each for each in value):
            raise self._wrong(key, f"write a list of at most {_MAX_WORDS} texts in quotes")
        return tuple(value)

    def patterns(self, key: str) -> tuple[str, ...]:
        found = self.words(key)
        if any(len(each) > MAX_TEXT_LENGTH for each in found):
            raise self._wrong(key, f"a pattern may have {MAX_TEXT_LENGTH} characters")
        if key in self._table and not found:
            raise self._wrong(key, "an empty list matches no user: leave the key out, or name one")
        return found

    def numbers(self, key: str) -> tuple[int, ...]:
        value = self._table.get(key, [])
        good = isinstance(value, list) and len(value) <= _MAX_WORDS and (value or key not in self._table)
        if not good or not all(type(each) is int and 0 <= each < 4096 for each in value):
            raise self._wrong(key, "write the numbers of GPUs: [0, 1]")
        return tuple(sorted(set(value)))

    def table(self, key: str) -> Mapping[str, Any]:
        value = self._table.get(key, {})
        if not isinstance(value, Mapping):
            raise self._wrong(key, f"write it as a table: [policy.{key}]")
        return value
