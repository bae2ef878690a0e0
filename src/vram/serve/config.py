"""serve.toml: strict, so that a word that is spelled wrong is an error and not a policy that never runs.

    interval = "5s"
    [http]      listen = "127.0.0.1:9838"
    [history]   keep = "30d"

docs/guides/serve.md has every key. Whatever is wrong is one ConfigError that names the file and the key.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from difflib import get_close_matches
from ipaddress import IPv6Address, ip_address
from typing import Any, Literal, NamedTuple

import msgspec
from msgspec import Struct, field

from vram import folders, untrusted
from vram.errors import ConfigError, UsageError
from vram.files import open_plain
from vram.policy.config import read_policies
from vram.reclaim.state import SYSTEM_FOLDER
from vram.units import parse_duration, parse_size

PORT = 9838
MAX_BYTES = 1 << 20
MIN_S, MAX_S = 0.5, 3600.0
MIN_AFTER_S = 1.0
_FILE = "serve.toml"


class HttpConfig(Struct, frozen=True, kw_only=True, rename="kebab", forbid_unknown_fields=True):
    """``listen``: addresses with ports; none turns HTTP off. Others than loopback need ``allow_remote``.

    ``hosts``: names that requests may ask for besides addresses, localhost and this host's own name.
    """

    listen: str | tuple[str, ...] = f"127.0.0.1:{PORT}"
    hosts: tuple[str, ...] = ()
    allow_remote: bool = False

    @property
    def addresses(self) -> tuple[Address, ...]:
        said = (self.listen,) if isinstance(self.listen, str) else self.listen
        return tuple(read_address(each) for each in said if each)


class SocketConfig(Struct, frozen=True, kw_only=True, rename="kebab", forbid_unknown_fields=True):
    """The Unix socket for actions; an empty ``path`` is the usual place."""

    path: str = ""
    enabled: bool = True


class HistoryConfig(Struct, frozen=True, kw_only=True, rename="kebab", forbid_unknown_fields=True):
    """What is remembered; an empty ``path`` is history.sqlite in the state folder."""

    enabled: bool = True
    path: str = ""
    keep: str = "30d"
    most: str = "1GiB"

    @property
    def keep_s(self) -> float:
        return parse_duration(self.keep)

    @property
    def most_bytes(self) -> int:
        return parse_size(self.most)


class TextfileConfig(Struct, frozen=True, kw_only=True, rename="kebab", forbid_unknown_fields=True):
    """Metrics as a file for node_exporter's textfile collector; an empty ``path`` is none."""

    path: str = ""


class ShowConfig(Struct, frozen=True, kw_only=True, rename="kebab", forbid_unknown_fields=True):
    """Whether readers over TCP see commands: as /proc shows them to all users, never, or always."""

    commands: Literal["as-proc", "never", "always"] = "as-proc"


class ForecastConfig(Struct, frozen=True, kw_only=True, rename="kebab", forbid_unknown_fields=True):
    """Growth is forecast when it has lasted for ``after``; the first so long of a program does not count."""

    after: str = "5min"

    @property
    def after_s(self) -> float:
        return parse_duration(self.after)


class KubernetesConfig(Struct, frozen=True, kw_only=True, rename="kebab", forbid_unknown_fields=True):
    """Events on pods and the node, from inside a pod.

    An empty ``node`` is $NODE_NAME; an empty ``account`` is the folder of the pod's service account.
    """

    events: bool = False
    node: str = ""
    account: str = ""


class ServeConfig(Struct, frozen=True, kw_only=True, rename="kebab", forbid_unknown_fields=True):
    """Everything that serve.toml can say. ``policy`` tables are checked by the policies themselves."""

    interval: str = "5s"
    http: HttpConfig = HttpConfig()
    socket: SocketConfig = SocketConfig()
    history: HistoryConfig = HistoryConfig()
    forecast: ForecastConfig = ForecastConfig()
    textfile: TextfileConfig = TextfileConfig()
    show: ShowConfig = ShowConfig()
    kubernetes: KubernetesConfig = KubernetesConfig()
    policy: tuple[dict[str, Any], ...] = field(default=())

    @property
    def interval_s(self) -> float:
        return parse_duration(self.interval)


# ---- reading it ----


def load(path: str | None) -> ServeConfig:
    """The configuration in the file *path*; None: the usual one, or the defaults where there is none."""
    if path is None:
        usual = default_path()
        return load(usual) if os.path.lexists(usual) else ServeConfig()
    try:
        data = _read(path)
    except (OSError, untrusted.Rejected) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise ConfigError(
            f"cannot read {path}: {reason}", hint="docs/guides/serve.md has its keys"
        ) from error
    return parse(data, path)


def _read(path: str) -> bytes:
    """The file's bytes. Its writer decides what the service does: only we or root may be that."""
    file = open_plain(path)
    try:
        about = os.fstat(file)
        if not folders.is_trusted_owner(about.st_uid) or folders.others_may_write(file, about):
            who = folders.owner_name(about.st_uid)
            mode = about.st_mode & 0o777
            raise ConfigError(
                f"{path} is not used: others can change it (it belongs to {who}, its mode is {mode:04o})",
                hint="chown it to the user of the service, and chmod 0644",
            )
        return untrusted.read_stream(file, nbytes=MAX_BYTES)
    finally:
        os.close(file)


def parse(data: bytes, path: str) -> ServeConfig:
    """Read the text of a configuration; *path* is named where it is wrong."""
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib

    try:
        tables = tomllib.loads(data.decode())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ConfigError(f"{path} is not TOML: {error}", hint="text values stand in quotes") from error
    _require_known(tables, ServeConfig, path, "")
    try:
        _require_units(tables)
        config = msgspec.convert(tables, ServeConfig)
        check(config)
    except msgspec.ValidationError as error:
        raise ConfigError(f"{path}: {_plain(error)}", hint="see docs/guides/serve.md for its keys") from error
    except (UsageError, ConfigError) as error:
        raise ConfigError(f"{path}: {error}", hint=error.hint) from error
    return config


def _require_units(tables: dict[str, Any]) -> None:
    """Raise UsageError where a size or a duration is a bare number, or cannot be read."""
    history, forecast = tables.get("history", {}), tables.get("forecast", {})
    values: tuple[tuple[str, Any, Callable[[str], float]], ...] = (
        ("interval", tables.get("interval"), parse_duration),
        ("forecast.after", forecast.get("after") if isinstance(forecast, dict) else None, parse_duration),
        ("history.keep", history.get("keep") if isinstance(history, dict) else None, parse_duration),
        ("history.most", history.get("most") if isinstance(history, dict) else None, parse_size),
    )
    for key, value, parse_value in values:
        if isinstance(value, str | int | float):
            try:
                parse_value(str(value))
            except UsageError as error:
                raise UsageError(f"{key} is {value!r}", hint=f"{error.hint}, in quotes") from None


def check(config: ServeConfig) -> None:
    """Raise UsageError where a value cannot be meant."""
    if not MIN_S <= config.interval_s <= MAX_S:
        raise UsageError(f"interval is {config.interval!r}", hint="choose from 0.5s to 1h; 5s is usual")
    if not MIN_AFTER_S <= config.forecast.after_s <= MAX_S:
        raise UsageError(
            f"forecast.after is {config.forecast.after!r}", hint="choose from 1s to 1h; 5min is usual"
        )
    if config.history.keep_s < 3600:
        raise UsageError(
            f"history.keep is {config.history.keep}", hint="one hour at least; or enabled = false"
        )
    if config.history.most_bytes < 8 << 20:
        raise UsageError(f"history.most is {config.history.most}", hint="8MiB at least; or enabled = false")
    for address in config.http.addresses:
        if not address.is_loopback and not config.http.allow_remote:
            raise UsageError(
                f"http.listen is {address}, which other machines can reach",
                hint="what the service shows has no password; allow-remote = true says that this is meant",
            )
    textfile = config.textfile.path
    if textfile and not (os.path.isabs(textfile) and textfile.endswith(".prom")):
        raise UsageError(
            f"textfile.path is {textfile}", hint="a whole path ending in .prom: node_exporter reads no other"
        )
    read_policies(list(config.policy))
    for name, path in (("socket.path", config.socket.path), ("history.path", config.history.path)):
        if path and not os.path.isabs(path):
            raise UsageError(f"{name} is {path}", hint="write a whole path, beginning with /")


def _require_known(tables: dict[str, Any], kind: type[Struct], path: str, before: str) -> None:
    """Name the first unknown key, and the nearest one that is known."""
    known = {each.encode_name: each for each in msgspec.structs.fields(kind)}
    for key, value in tables.items():
        if key not in known:
            close = get_close_matches(key, known, n=1)
            hint = f"did you mean {before}{close[0]}?" if close else f"known here: {', '.join(sorted(known))}"
            raise ConfigError(f"{path}: there is no key {before}{key}", hint=hint)
        inner = known[key].type
        if isinstance(value, dict) and isinstance(inner, type) and issubclass(inner, Struct):
            _require_known(value, inner, path, f"{before}{key}.")


def _plain(error: msgspec.ValidationError) -> str:
    """The sentence of msgspec, with the key as TOML writes it."""
    text = str(error)
    sentence, _, where = text.partition(" - at `$")
    return f"{where.strip('.`')}: {sentence}" if where else sentence


# ---- addresses ----


class Address(NamedTuple):
    """Where HTTP listens."""

    host: str
    port: int

    @property
    def is_loopback(self) -> bool:
        return self.host == "localhost" or ip_address(self.host).is_loopback

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def read_address(text: str) -> Address:
    """Read "127.0.0.1:9838", "[::1]:9838" or "localhost:0"; raises UsageError."""
    host, _, port = text.strip().rpartition(":")
    hint = f"write it like 127.0.0.1:{PORT} or [::1]:{PORT}"
    if not (port.isascii() and port.isdigit() and int(port) < 65536):
        raise UsageError(f"{text!r} has no port from 0 to 65535", hint=hint)
    bare = host[1:-1] if host.startswith("[") and host.endswith("]") else host
    if bare != "localhost":
        try:
            address = ip_address(bare)
        except ValueError as error:
            raise UsageError(f"{bare!r} is not an address to listen on", hint=hint) from error
        if isinstance(address, IPv6Address) != (bare != host):
            raise UsageError(f"{text!r} is not an address to listen on", hint=hint)
    return Address(bare, int(port))


# ---- where things lie ----


class Places(NamedTuple):
    """The folders and files of one service."""

    state: str
    socket: str

    @property
    def history(self) -> str:
        return os.path.join(self.state, "history.sqlite")


def default_path() -> str:
    """Where the configuration is looked for."""
    if folder := os.environ.get("CONFIGURATION_DIRECTORY", "").partition(":")[0]:
        return os.path.join(folder, _FILE)
    if os.geteuid() == 0:
        return f"/etc/vram/{_FILE}"
    said = os.environ.get("XDG_CONFIG_HOME", "")
    return os.path.join(
        said if os.path.isabs(said) else os.path.join(folders.home(), ".config"), "vram", _FILE
    )


def places(config: ServeConfig, *, state: str | None = None, socket: str | None = None) -> Places:
    """Where this service keeps its state and its socket: by option, configuration, systemd, or as usual."""
    return Places(
        state=os.path.abspath(state) if state else _state_folder(),
        socket=os.path.abspath(socket) if socket else config.socket.path or default_socket(),
    )


def _state_folder() -> str:
    if folder := os.environ.get("STATE_DIRECTORY", "").partition(":")[0]:
        # With DynamicUser= systemd names a link of its own, which leads into /var/lib/private.
        return os.path.realpath(folder)
    return SYSTEM_FOLDER if os.geteuid() == 0 else os.path.join(folders.state_path(), "vram")


def default_socket() -> str:
    """Where clients look for the socket; a user without a runtime folder has it beside the state."""
    if folder := os.environ.get("RUNTIME_DIRECTORY", "").partition(":")[0]:
        return os.path.join(folder, "vram.sock")
    if os.geteuid() == 0:
        return "/run/vram/vram.sock"
    said = os.environ.get("XDG_RUNTIME_DIR", "")
    return os.path.join(said if os.path.isabs(said) else folders.state_path(), "vram", "vram.sock")
