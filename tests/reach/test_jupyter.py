"""Through a kernel's connection file: real kernels, idle and busy, and files that must not be believed."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.needs import needs, skip_without
from tests.patience import PATIENCE_S
from tests.reach.conftest import CACHED, World, released, target_of
from vram.errors import TimedOut
from vram.reach import jupyter
from vram.reach.injectors import ask_trim

pytestmark = needs("jupyter_client", "ipykernel")

# The oldest kernels answer between cells only: the same kernel with that feature taken away.
WITHOUT_SUBSHELLS = """\
from ipykernel.ipkernel import IPythonKernel
from ipykernel.kernelapp import IPKernelApp
class Plain(IPythonKernel):
    _supports_kernel_subshells = False
app = IPKernelApp.instance(kernel_class=Plain)
app.initialize()
app.start()
"""

FILL = f"import subject; subject.fill_pool({CACHED})"


class Notebook:
    """A running kernel, and what a person would type into it."""

    def __init__(self, world: World, command: list[str]) -> None:
        path = f"{Path(__file__).parent}:{world.environment['PYTHONPATH']}"
        # A port that is free when it is chosen may be another's when the kernel binds it: then it ends.
        for _ in range(3):
            if self._starts(command, {**world.environment, "PYTHONPATH": path}):
                return
            self.close()
        raise AssertionError("no kernel starts")

    def _starts(self, command: list[str], environment: dict[str, str]) -> bool:
        from jupyter_client import manager

        self._manager = manager.KernelManager()
        self._manager.shutdown_wait_time = 2.0
        self._manager.kernel_spec.argv = [*command, "-f", "{connection_file}"]
        self._manager.start_kernel(env=environment)
        self.client = self._manager.client()
        self.client.start_channels()
        try:
            self.client.wait_for_ready(timeout=PATIENCE_S)
        except RuntimeError:
            if self._manager.is_alive():
                raise
            return False
        return True

    @property
    def pid(self) -> int:
        return int(self._manager.provisioner.process.pid)

    @property
    def connection_file(self) -> Path:
        return Path(self._manager.connection_file)

    def run(self, code: str) -> dict[str, Any]:
        return self.heard(self.client.execute(code))

    def heard(self, asked: str) -> dict[str, Any]:
        while True:
            reply = self.client.get_shell_msg(timeout=PATIENCE_S)
            if reply["parent_header"]["msg_id"] == asked:
                return dict(reply["content"])

    def begin(self, code: str) -> str:
        """Start a cell that says when it has begun; return its number without waiting for its end."""
        asked = self.client.execute(f"print('begun', flush=True)\n{code}")
        while True:
            message = self.client.get_iopub_msg(timeout=PATIENCE_S)
            if message["parent_header"].get("msg_id") == asked and message["msg_type"] == "stream":
                return str(asked)

    def close(self) -> None:
        self.client.stop_channels()
        self._manager.shutdown_kernel(now=True)


@pytest.fixture
def notebook(world: World) -> Iterator[Notebook]:
    made = Notebook(world, [sys.executable, "-m", "ipykernel_launcher"])
    yield made
    made.close()


@pytest.fixture
def plain_notebook(world: World) -> Iterator[Notebook]:
    made = Notebook(world, [sys.executable, "-c", WITHOUT_SUBSHELLS])
    yield made
    made.close()


def test_an_idle_notebook_releases_and_shows_nothing(world: World, notebook: Notebook) -> None:
    notebook.run(FILL)
    names = "sorted(name for name in globals() if not name.startswith('_i'))"
    modules = "sorted(name for name in __import__('sys').modules if 'vram' in name)"
    look = f"({names}, {modules}, len(In), __import__('threading').active_count())"
    before = notebook.client.execute("", user_expressions={"seen": look})
    seen = notebook.heard(before)["user_expressions"]["seen"]["data"]["text/plain"]
    count = notebook.run("pass")["execution_count"]

    receipt = world.trim(notebook.pid)

    assert receipt["via"] == "jupyter"
    assert released(receipt) >= CACHED
    assert notebook.run("pass")["execution_count"] == count + 1
    after = notebook.heard(notebook.client.execute("", user_expressions={"seen": look}))
    told = after["user_expressions"]["seen"]["data"]["text/plain"]
    # Two cells were run between the looks, by us.
    assert eval(told)[:2] == eval(seen)[:2]
    assert eval(told)[2] == eval(seen)[2] + 2


def test_a_busy_notebook_releases_while_its_cell_runs(world: World, notebook: Notebook) -> None:
    if "kernel subshells" not in _features(notebook):
        skip_without("test-packages", "this ipykernel has no subshells")
    notebook.run(FILL)
    read, write = os.pipe()
    path = f"/proc/{os.getpid()}/fd/{read}"
    cell = notebook.begin(f"waited = open({path!r}).read(1)")
    try:
        assert released(world.trim(notebook.pid)) >= CACHED
    finally:
        os.write(write, b"x")
    assert notebook.heard(cell)["status"] == "ok"
    os.close(read), os.close(write)


def test_a_busy_kernel_without_subshells_calls_it_off_by_itself(
    world: World, plain_notebook: Notebook
) -> None:
    """What was asked stands in the kernel's queue; when its turn comes, it is too late and does nothing."""
    plain_notebook.run(FILL)
    read, write = os.pipe()
    cell = plain_notebook.begin(f"waited = open('/proc/{os.getpid()}/fd/{read}').read(1)")
    with pytest.raises(TimedOut):
        ask_trim(target_of(plain_notebook.pid), "trim", 1.0)
    os.write(write, b"x")
    assert plain_notebook.heard(cell)["status"] == "ok"
    assert plain_notebook.run("pass")["status"] == "ok"
    os.close(read), os.close(write)
    assert released(world.trim(plain_notebook.pid)) >= CACHED


def test_a_kept_exception_is_forgotten_only_when_asked(world: World, notebook: Notebook) -> None:
    notebook.run("import driver, subject; subject.fill_pool(1 << 21)")
    allocate = f"tensor = driver.AllocationOwner({CACHED})"
    failing = f"def step():\n    {allocate}\n    raise RuntimeError('as it happens')\nstep()"
    assert notebook.run(failing)["status"] == "error"
    kept = world.trim(notebook.pid)
    assert released(kept) < CACHED
    assert kept["answer"]["exceptions_kept"] >= 1
    dropped = world.trim(notebook.pid, "--tracebacks")
    assert dropped["answer"]["dropped"]
    assert released(dropped) >= CACHED
    assert notebook.run("1 + 1")["status"] == "ok"


@pytest.mark.fault(29)
class TestConnectionFile:
    """Owner, mode and loopback are checked before a word is sent."""

    def refused(self, path: Path) -> str:
        with pytest.raises(jupyter.UntrustedConnectionFile) as error:
            jupyter.read_connection(str(path), os.getpid())
        return str(error.value)

    @pytest.fixture
    def path(self, tmp_path: Path) -> Path:
        path = tmp_path / "kernel.json"
        self.write(path, {})
        jupyter.read_connection(str(path), os.getpid())
        return path

    def write(self, path: Path, changes: dict[str, object]) -> None:
        where = {"transport": "tcp", "ip": "127.0.0.1", "shell_port": 50001, "control_port": 50002}
        key = {"key": "secret", "signature_scheme": "hmac-sha256"}
        path.write_text(json.dumps({**where, **key, **changes}))
        path.chmod(0o600)

    def test_open_to_others(self, path: Path) -> None:
        path.chmod(0o640)
        assert "accessible to others" in self.refused(path)

    @needs("root", detail="only root can give a file away")
    def test_somebody_elses_even_for_root(self, path: Path) -> None:
        os.chown(path, 65534, 65534)
        assert "not a regular file of yours" in self.refused(path)

    def test_a_link(self, path: Path, tmp_path: Path) -> None:
        link = tmp_path / "link.json"
        link.symlink_to(path)
        assert "cannot be opened" in self.refused(link)

    def test_a_pipe_that_would_never_answer(self, tmp_path: Path) -> None:
        pipe = tmp_path / "pipe"
        os.mkfifo(pipe, 0o600)
        assert "not a regular file of yours" in self.refused(pipe)

    @pytest.mark.parametrize("ip", ["10.1.2.3", "0.0.0.0", "example.org", "::", 7, None])
    def test_leads_to_another_machine(self, path: Path, ip: object) -> None:
        self.write(path, {"ip": ip})
        assert "loopback" in self.refused(path)

    @pytest.mark.parametrize("ip", ["127.0.0.1", "127.9.9.9", "::1", "localhost"])
    def test_leads_to_this_one(self, path: Path, ip: str) -> None:
        self.write(path, {"ip": ip})
        assert jupyter.read_connection(str(path), os.getpid())["ip"] == ip

    @pytest.mark.parametrize("change", [{"key": ""}, {"signature_scheme": "hmac-__name__"}])
    def test_has_no_key(self, path: Path, change: dict[str, object]) -> None:
        self.write(path, change)
        assert "no signing key" in self.refused(path)

    @pytest.mark.parametrize("port", [0, -1, 70000, "x", None])
    def test_has_no_port(self, path: Path, port: object) -> None:
        self.write(path, {"shell_port": port})
        assert "damaged" in self.refused(path)

    @pytest.mark.parametrize("text", ["", "[]", "{}", "null", "\0" * 100, "{" * 70000, "[" * 60000])
    def test_broken(self, path: Path, text: str) -> None:
        path.write_text(text)
        assert "damaged" in self.refused(path)


@pytest.mark.parametrize(
    ("argv", "path"),
    [
        (("python", "-m", "ipykernel_launcher", "-f", "/run/kernel.json"), "/run/kernel.json"),
        (("python", "-m", "ipykernel_launcher", "--f=/run/kernel.json"), "/run/kernel.json"),
        (("python", "train.py"), None),
        (("python", "train.py", "-f"), None),
    ],
)
def test_a_kernel_is_told_by_its_command_line(argv: tuple[str, ...], path: str | None) -> None:
    assert jupyter.connection_file(argv) == path


def _features(notebook: Notebook) -> list[str]:
    reply = notebook.heard(notebook.client.kernel_info())
    return list(reply.get("supported_features", ()))
