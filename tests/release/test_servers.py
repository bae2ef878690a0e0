"""Every kind of server is recognised by its answers, asked in its own way, measured, and undone."""

from __future__ import annotations

import json
from http.client import HTTPConnection
from pathlib import Path

import pytest

from tests.patience import PATIENCE_S
from tests.release.conftest import ServerWorld, freed
from tests.release.server_program import CACHE, WEIGHTS

ALL = WEIGHTS + CACHE
UNLOAD_ODD = "/v2/repository/models/a%20model%2Fwith%20%3F%25/unload"

KINDS = [
    (("vllm",), ["/sleep?level=1"], ALL),
    (("vllm", "front"), ["/sleep?level=1"], ALL),
    (("vllm", "key"), ["/sleep?level=1"], ALL),
    (("vllm", "no-metrics"), ["/sleep?level=1"], ALL),
    (("sglang",), ["/release_memory_occupation"], CACHE),
    (("sglang", "backup"), ["/release_memory_occupation"], ALL),
    (("sglang", "backup", "weight-cache"), ["/release_memory_occupation"], CACHE),
    (("ollama",), ["/api/generate"] * 2, ALL),
    (("ollama", "runner"), ["/api/generate"] * 2, ALL),
    (("comfyui",), ["/free"], ALL),
    (("triton",), ["/v2/repository/models/first/unload", UNLOAD_ODD], ALL),
    (("llamacpp",), ["/models/unload"], ALL),
]


@pytest.mark.parametrize(("words", "asked", "nbytes"), KINDS, ids=lambda each: str(each))
def test_asked_in_its_own_way(
    servers: ServerWorld, words: tuple[str, ...], asked: list[str], nbytes: int
) -> None:
    server = servers.start(*words)
    receipt = servers.release(server.pid)
    assert (receipt["end"], receipt["exit code"]) == ("answered", 0), receipt
    assert [each for each in server.posts() if not each.endswith("/index")] == asked
    assert freed(receipt) >= nbytes
    assert freed(receipt) == nbytes or "runner" in words  # whose context has gone with it
    assert receipt["order"]["where"] == f"127.0.0.1:{server.port}"


@pytest.mark.parametrize("mode", ["front", "runner"])
def test_the_process_that_holds_the_memory_leads_to_its_server(servers: ServerWorld, mode: str) -> None:
    server = servers.start("vllm" if mode == "front" else "ollama", mode)
    receipt = servers.release(server.child)
    assert receipt["order"]["target"]["process"]["pid"] == server.pid
    assert freed(receipt) >= ALL


@pytest.mark.parametrize("kind", ["vllm", "sglang", "triton", "llamacpp"])
def test_undone(servers: ServerWorld, kind: str) -> None:
    server = servers.start(kind, "backup")
    before = servers.release(server.pid)["charged_before"]
    receipt = servers.release(server.pid, "--undo")
    assert (receipt["end"], receipt["exit code"]) == ("answered", 0), receipt
    assert receipt["charged_after"] == before
    code, said = servers.refusal(server.pid, "--undo")
    assert (code, "nothing to undo" in said) == (14, True), said
    assert freed(servers.release(server.pid)) == ALL


def test_what_a_vram_with_another_state_folder_released_is_undone(
    servers: ServerWorld, tmp_path: Path
) -> None:
    """The service's worker does not know the user's $XDG_STATE_HOME; only the log knows what SGLang did."""
    home = tmp_path / "home"
    home.mkdir(mode=0o700)
    server = servers.start("sglang")
    words = ("release", server.pid, "--yes")
    assert servers.vram(*words, HOME=str(home), XDG_STATE_HOME="").returncode == 0
    assert (home / ".local/state/vram/audit.jsonl").exists()
    assert servers.vram(*words, HOME=str(home)).returncode == 14  # as it was asked already
    undone = servers.vram(*words, "--undo", HOME=str(home))
    assert (undone.returncode, server.posts()[-1]) == (0, "/resume_memory_occupation"), undone.stderr
    # A second one would end the server. This log does not know of the first; the driver does.
    assert servers.vram(*words, "--undo", HOME=str(home), XDG_STATE_HOME="").returncode == 14


def test_sglang_that_was_resumed_by_another_is_not_resumed_again(servers: ServerWorld) -> None:
    server = servers.start("sglang", "backup")
    servers.release(server.pid)
    connection = HTTPConnection("127.0.0.1", server.port, timeout=PATIENCE_S)
    connection.request("POST", "/resume_memory_occupation", b"{}")
    assert connection.getresponse().status == 200
    connection.close()
    code, said = servers.refusal(server.pid, "--undo")
    assert (code, "nothing to undo" in said) == (14, True), said
    assert freed(servers.release(server.pid)) == ALL


@pytest.mark.parametrize("kind", ["ollama", "comfyui"])
def test_what_needs_no_undoing(servers: ServerWorld, kind: str) -> None:
    server = servers.start(kind)
    code, said = servers.refusal(server.pid, "--undo")
    assert (code, server.posts()) == (14, [])
    assert "nothing to undo" in said


def test_sglang_that_was_not_released_by_us_is_not_resumed(servers: ServerWorld) -> None:
    """Resuming what was never released ends its scheduler; releasing twice does, too."""
    server = servers.start("sglang")
    assert servers.refusal(server.pid, "--undo")[0] == 14
    servers.release(server.pid)
    code, said = servers.refusal(server.pid)
    assert (code, "already" in said) == (14, True), said
    assert server.posts() == ["/release_memory_occupation"]


CANNOT = [
    (("vllm", "no-dev"), "VLLM_SERVER_DEV_MODE=1 and --enable-sleep-mode"),
    (("vllm", "busy"), "3 requests in progress"),
    (("sglang", "busy"), "3 requests in progress"),
    (("sglang", "old"), "whether it keeps a copy of its weights"),
    (("sglang", "no-saver"), "--enable-memory-saver"),
    (("sglang", "no-loads"), "whether requests are in progress"),
    (("sglang", "key"), "asks for a key"),
    (("llamacpp", "single"), "one model for as long as it runs"),
]


@pytest.mark.parametrize(("words", "why"), CANNOT, ids=lambda each: str(each))
def test_refused_before_anything_is_asked(servers: ServerWorld, words: tuple[str, ...], why: str) -> None:
    server = servers.start(*words)
    code, said = servers.refusal(server.pid)
    assert (code, server.posts()) == (14, [])
    assert why in said, said


def test_asleep_already(servers: ServerWorld) -> None:
    server = servers.start("vllm")
    servers.release(server.pid)
    code, said = servers.refusal(server.pid, "--yes")
    assert (code, "asleep already" in said) == (14, True), said


def test_triton_without_explicit_mode(servers: ServerWorld) -> None:
    server = servers.start("triton", "no-explicit")
    receipt = servers.release(server.pid)
    assert (receipt["end"], receipt["exit code"], len(receipt["asked"])) == ("refused", 3, 1)
    assert receipt["asked"][0]["status"] == 400
    assert "--model-control-mode=explicit" in receipt["asked"][0]["problem"]


@pytest.mark.parametrize("words", [("address=0.0.0.0",), ("address=::1",), ("address=::",)])
def test_wherever_it_listens(servers: ServerWorld, words: tuple[str, ...]) -> None:
    server = servers.start("comfyui", *words)
    assert freed(servers.release(server.pid)) == ALL
    host = "127.0.0.1" if "." in words[0] else "[::1]"
    assert {each["host"] for each in server.heard if "host" in each} == {f"{host}:{server.port}"}


@pytest.mark.parametrize("name", ["server.sock", "a folder with spaces.sock"])
def test_a_unix_socket(servers: ServerWorld, tmp_path: Path, name: str) -> None:
    server = servers.start("vllm", f"unix={tmp_path / name}")
    receipt = servers.release(server.pid)
    assert freed(receipt) == ALL
    assert receipt["order"]["where"] == str(tmp_path / name)


def test_only_shown_without_yes(servers: ServerWorld) -> None:
    server = servers.start("ollama")
    done = servers.vram("release", server.pid)
    assert (done.returncode, server.posts()) == (1, [])
    assert "lost: the loaded models" in done.stdout
    assert json.loads(servers.vram("release", server.pid, "--json").stdout)["receipt"] is None
    assert server.posts() == []


def test_every_request_is_in_the_audit_log(servers: ServerWorld) -> None:
    server = servers.start("vllm")
    servers.release(server.pid)
    intent, outcome = servers.world.audit()
    assert (intent["action"], intent["requests"]) == ("release", ["POST /sleep?level=1"])
    assert (outcome["token"], outcome["status"]) == (intent["token"], "done")
