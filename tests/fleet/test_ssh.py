"""`vram fleet --hosts`: real ssh, real sshd; hosts that fail in every way are lines."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fleet.conftest import in_time, vram_fleet
from tests.fleet.sshd import SshCluster
from tests.needs import needs
from tests.patience import PATIENCE_S, until, until_ended
from vram.errors import BadInput, UsageError, VramError
from vram.fleet.transports.ssh import SshNodes, host_list

PATIENCE = ("--deadline", "60s")


def test_hosts_that_answer_are_read_and_the_others_are_lines(ssh_cluster: SshCluster) -> None:
    names = "good,stranger,old,floods,newer,bare,refuses"
    run = vram_fleet("--hosts", names, "--ssh-config", ssh_cluster.config, "--json", *PATIENCE)
    nodes = run.nodes
    assert run.status == 3, run.errors
    assert {name: (node["state"], node["code"]) for name, node in nodes.items()} == {
        "good": ("ok", None),
        "stranger": ("unread", "unreachable"),
        "old": ("unread", "failed"),
        "floods": ("unread", "too-large"),
        "newer": ("rejected", "other-version"),
        "bare": ("unread", "no-vram"),
        "refuses": ("unread", "unreachable"),
    }
    assert len(nodes["good"]["gpus"]) == 2
    assert "refused" in nodes["refuses"]["message"]
    assert "no such command" in nodes["old"]["message"]


def test_hosts_that_hang_cost_their_deadline_and_nobody_else(ssh_cluster: SshCluster) -> None:
    run = in_time("--hosts", "hangs,silent,good", "--ssh-config", ssh_cluster.config, of=["good"])
    assert run.status == 3
    states = {name: (node["state"], node["code"]) for name, node in run.nodes.items()}
    assert states["good"] == ("ok", None)
    assert states["hangs"] == ("unread", "no-answer")
    assert states["silent"][0] == "unread"


def test_a_whole_fleet_has_a_deadline(ssh_cluster: SshCluster) -> None:
    words = ("--hosts", "hangs,silent", "--parallel", "1", "--deadline", "20s", "--all-within", "4s")
    run = vram_fleet(*words, "--ssh-config", ssh_cluster.config, "--json")
    assert run.nodes["hangs"]["code"] == "no-answer"
    assert run.nodes["silent"]["code"] == "not-asked"


def test_interrupted_it_leaves_no_ssh_behind(ssh_cluster: SshCluster) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "vram", "fleet", "--hosts", "hangs", "--ssh-config", str(ssh_cluster.config)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env={**os.environ},
    )
    with process:
        child = _ssh_of(process.pid)
        pidfd = os.pidfd_open(child)
        try:
            process.send_signal(signal.SIGINT)
            assert process.wait(PATIENCE_S) == 130
            until_ended(pidfd)
        finally:
            os.close(pidfd)


def _ssh_of(pid: int) -> int:
    """The first ssh that logs in below *pid*."""

    def found() -> Iterator[int]:
        for name in filter(str.isdigit, os.listdir("/proc")):
            try:
                stat = Path(f"/proc/{name}/stat").read_text()
                argv = Path(f"/proc/{name}/cmdline").read_bytes().split(b"\0")
            except OSError:
                continue
            parent = int(stat.rpartition(")")[2].split()[1])
            if parent == pid and argv[0].endswith(b"/ssh") and b"-G" not in argv:
                yield int(name)

    return until(lambda: list(found()))[0]


@pytest.mark.parametrize(
    "name",
    [
        *("-oProxyCommand=touch x", "a b", "a;b", "$(id)", "a\nb", "`id`", "@", "a@-b", "-a", "a/b", "é"),
        *("a@b@c", "ssh://a", "a'b", 'a"b', "a|b", "a%b", "a" * 300, "a\u202eb", "\x1b[31m"),
    ],
)
def test_names_that_are_no_host_names_are_refused(name: str) -> None:
    with pytest.raises(UsageError, match=r"is not a host name|names no host|cannot read"):
        host_list(name if not name.startswith("@") else f"x,{name}")


def test_usual_names_are_taken_once() -> None:
    assert host_list("a,b.c-d_e,root@gpu1, 10.0.0.1,fe80::1%eth0,a") == (
        *("a", "b.c-d_e", "root@gpu1", "10.0.0.1", "fe80::1%eth0"),
    )


def test_hosts_come_from_a_file_too(tmp_path: Path) -> None:
    file = tmp_path / "hosts"
    file.write_text("# rack 1\ngpu-1\n\n gpu-2  # slow\n")
    assert host_list(f"@{file}") == ("gpu-1", "gpu-2")
    with pytest.raises(BadInput):
        host_list(f"@{tmp_path}/none")
    for content in (b"gpu-1\n\nroot:$6$hunter2:1\n", b"gpu-1\n\xffhunter2"):
        file.write_bytes(content)
        with pytest.raises(VramError, match=r"line 3|at byte 6") as caught:
            host_list(f"@{file}")
        assert "hunter2" not in str(caught.value), "it may be a link to somebody's secrets"
    file.write_text("gpu-1\n")
    (tmp_path / "own").symlink_to(file)
    assert host_list(f"@{tmp_path}/own") == ("gpu-1",)
    tmp_path.chmod(0o1777)
    with pytest.raises(BadInput, match="is a link of"):
        host_list(f"@{tmp_path}/own")  # somebody else can have made it
    ours, theirs = os.pipe()
    os.write(theirs, b"gpu-2\n")
    os.close(theirs)
    assert host_list(f"@/dev/fd/{ours}") == ("gpu-2",)
    os.close(ours)
    file.write_text("# nobody\n")
    with pytest.raises(UsageError):
        host_list(f"@{file}")


@needs("ssh")
def test_options_that_are_none_are_refused() -> None:
    for option in ("-oX", "Port", "=1", ""):
        with pytest.raises(UsageError):
            SshNodes(("a",), options=[option])


@needs("ssh")
def test_what_the_configuration_names_is_what_the_host_may_be_called(tmp_path: Path) -> None:
    """An alias for an address can be called anything, an alias for a name cannot."""
    config = tmp_path / "config"
    config.write_text("Host rack7\n  HostName gpu-7.example\nHost byaddress\n  HostName 127.0.0.1\n")
    nodes = SshNodes(("root@rack7", "byaddress"), config=str(config))
    found = [nodes.located(node, time.monotonic() + PATIENCE_S) for node in nodes.nodes()]
    nodes.close()
    assert [node.host_names for node in found] == [("rack7", "gpu-7.example"), None]
    assert found[0].name == "rack7"
