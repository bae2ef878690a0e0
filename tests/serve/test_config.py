"""serve.toml: what is read, and what is refused with a sentence that names the key."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.needs import needs
from vram.errors import ConfigError, UsageError
from vram.serve.config import Address, load, parse, read_address
from vram.units import GIB, parse_duration

GOOD = """
interval = "10s"
[http]
listen = ["127.0.0.1:0", "[::1]:9000"]
hosts = ["gpu1.example"]
[history]
keep = "7d"
most = "200MiB"
[show]
commands = "never"
"""


def test_a_file_with_everything() -> None:
    config = parse(GOOD.encode(), "serve.toml")
    assert config.interval_s == 10
    assert config.http.addresses == (Address("127.0.0.1", 0), Address("::1", 9000))
    assert config.history.keep_s == 7 * 86400
    assert config.history.most_bytes == 200 << 20


def test_defaults_act_on_nothing_and_listen_here_alone() -> None:
    config = parse(b"", "serve.toml")
    assert all(address.is_loopback for address in config.http.addresses)
    assert config.policy == ()
    assert config.history.most_bytes == GIB


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ('intervall = "5s"', ("intervall", "interval")),
        ('[http]\nlisten = "0.0.0.0:9838"', ("0.0.0.0:9838", "allow-remote")),
        ('[http]\nlisten = "localhost"', ("localhost", "127.0.0.1:9838")),
        ('[http]\nlisten = "::1:80"', ("::1:80", "[::1]")),
        ("[http]\nlisten = 9838", ("http.listen", "docs")),
        ('[http]\nlistne = ""', ("http.listne", "http.listen")),
        ('interval = "5"', ("'5'", "5s")),
        ('interval = "1ms"', ("'1ms'", "5s")),
        ('interval = "0.1s"', ("0.1s", "0.5s")),
        ('[textfile]\npath = "/tmp/vram.txt"', ("/tmp/vram.txt", ".prom")),
        ('[history]\nkeep = "1min"', ("history.keep", "hour")),
        ('[history]\nmost = "huge"', ("huge", "GiB")),
        ('[show]\ncommands = "sometimes"', ("show.commands", "docs")),
        ('[socket]\npath = "vram.sock"', ("socket.path", "/")),
        ("interval = ", ("TOML", "quotes")),
        ("interval = 5", ("interval is 5", "write 5s, in quotes")),
        ('interval = "5"', ("interval is '5'", "write 5s, in quotes")),
        ('interval = "5m"', ("interval is '5m'", "write 5min, in quotes")),
        ("[history]\nkeep = 30", ("history.keep is 30", "write 30s, in quotes")),
        ("[history]\nmost = 1", ("history.most is 1", "write 1GiB")),
        ("[[http]]", ("http", "docs")),
    ],
)
def test_what_cannot_be_meant_is_refused(text: str, named: tuple[str, str]) -> None:
    with pytest.raises(ConfigError) as raised:
        parse(text.encode(), "serve.toml")
    assert "serve.toml" in str(raised.value)
    assert named[0] in str(raised.value)
    assert named[1] in raised.value.hint


@pytest.mark.parametrize("data", [b"\xff\xfe", b"a = [" + b"[" * 5000, b"=", b"\0"])
def test_bytes_that_are_no_configuration(data: bytes) -> None:
    with pytest.raises(ConfigError):
        parse(data, "serve.toml")


def test_a_named_file_that_is_missing_too_long_or_a_pipe_is_an_error(tmp_path: Path) -> None:
    huge = tmp_path / "huge.toml"
    huge.write_bytes(b"#" * (2 << 20))
    for path in (tmp_path / "nothing.toml", huge, Path("/dev/zero"), tmp_path):
        with pytest.raises(ConfigError):
            load(str(path))


@pytest.mark.fault(28)
@pytest.mark.parametrize("mode", [0o666, 0o622, 0o646])
def test_a_file_that_others_can_write_decides_nothing(tmp_path: Path, mode: int) -> None:
    file = tmp_path / "serve.toml"
    file.write_text(GOOD)
    assert load(str(file)).interval_s == 10
    file.chmod(mode)
    with pytest.raises(ConfigError, match="others can change it"):
        load(str(file))


@pytest.mark.fault(28)
@needs("root", detail="only root makes files of others")
def test_a_file_of_somebody_else_decides_nothing(tmp_path: Path) -> None:
    file = tmp_path / "serve.toml"
    file.write_text(GOOD)
    os.chown(file, 65534, 65534)
    with pytest.raises(ConfigError, match="belongs to nobody"):
        load(str(file))


@pytest.mark.parametrize(
    ("text", "seconds"), [("5s", 5), ("1.5h", 5400), ("30d", 2592000), ("2 min", 120), ("250ms", 0.25)]
)
def test_durations(text: str, seconds: float) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize(
    "text", ["", "5", "s", "-5s", "nan s", "infd", "1_0s", "٣s", "1e99d", "5m", "2w", "1e3s", ".5s"]
)
def test_what_is_no_duration(text: str) -> None:
    with pytest.raises(UsageError):
        parse_duration(text)


@pytest.mark.parametrize("text", ["", ":80", "1.2.3.4", "1.2.3.4:99999", "host:80", "[1.2.3.4]:80", "::1:80"])
def test_what_is_no_address(text: str) -> None:
    with pytest.raises(UsageError):
        read_address(text)


def test_check_config_says_what_it_means(tmp_path: Path) -> None:
    file = tmp_path / "serve.toml"
    file.write_text(GOOD)
    words = [sys.executable, "-m", "vram", "serve", "--check-config", "--config"]
    done = subprocess.run([*words, str(file)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "every 10s" in done.stdout
    file.write_text("nonsense = 1")
    done = subprocess.run([*words, str(file)], capture_output=True, text=True)
    assert done.returncode == 5
    assert "nonsense" in done.stderr
