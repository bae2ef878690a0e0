"""What every test may ask for: a virtual GPU of its own, on libraries that are built."""

from __future__ import annotations

import gc
import os
import resource
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from tests import interpreters, skipped
from tests.faults.record import TALLY, Recorder, Tally
from tests.needs import skip_without
from vram.virtualgpu import VirtualGpu, folder

ROOT = Path(__file__).parents[1]
BUILD = ROOT / "native" / "build.py"
LEND = ROOT / "src" / "vram" / "guard" / "lib" / "libvrambuffer.so"

# xdist tells its workers how wide its own terminal is; what tests start has none. Python's own variables
# (PYTHONUNBUFFERED, say) change how the programs that tests start behave: they run as they do for everybody.
for variable in [name for name in os.environ if name.startswith("PYTHON") and name != "PYTHONPATH"]:
    del os.environ[variable]
os.environ.pop("COLUMNS", None)

# A shell without job control starts its background jobs with SIGINT ignored, and nohup ignores SIGHUP:
# every program that a test starts would inherit that, and neither could be tested.
for number, usual in ((signal.SIGINT, signal.default_int_handler), (signal.SIGHUP, signal.SIG_DFL)):
    if signal.getsignal(number) == signal.SIG_IGN:
        signal.signal(number, usual)

# How soon examples are drawn and tried tells about the machine, and nothing about vram. And a change
# is judged by the same examples as the one before it; `make explore` looks for many new ones.
patient = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("steady", patient, derandomize=True, max_examples=30)
settings.register_profile("explore", patient, print_blob=True, max_examples=1000)
settings.load_profile("steady")


def pytest_addoption(parser: pytest.Parser) -> None:
    skipped.add_option(parser)
    interpreters.add_option(parser)
    parser.addoption("--real-gpu", action="store_true", help="play on this machine's own GPU")
    parser.addoption("--faults-page", metavar="FILE", help="write what the tests of the fault table did")


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(Recorder(config))
    config.pluginmanager.register(skipped.SkipReporter(config))
    if settings.default.derandomize:
        _draw_no_constants_of_ours()


def _draw_no_constants_of_ours() -> None:
    """Hypothesis draws constants of those of our modules that are imported by then: other ones in each run.

    There is no setting for that. Where Hypothesis has changed, examples may be less steady, and that is all.
    """
    from hypothesis.internal.conjecture import providers

    none = getattr(providers, "_local_constants", None)
    if none is not None and hasattr(providers, "_get_local_constants"):
        providers._get_local_constants = lambda: none


@pytest.fixture(scope="session", autouse=True)
def _second_thread() -> Iterator[None]:
    """A thread that does nothing, as workers of pytest-xdist have one.

    Where there is only one thread vram forks what reads the driver, and a fork looks for libraries along the
    LD_LIBRARY_PATH that this process had at its start: not along the one that a virtual GPU sets.
    """
    done = threading.Event()
    thread = threading.Thread(target=done.wait)
    thread.start()
    yield
    done.set()
    thread.join()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    interpreters.leave_out_other_pythons(config, items)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Thousands of tests are no garbage: Python need not look through them, now and in every test."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.fixture
def tally(request: pytest.FixtureRequest) -> Tally:
    """Where a test of the fault table says how often it tried, how often that landed and went wrong."""
    return request.node.stash.setdefault(TALLY, Tally())


@pytest.fixture(scope="session")
def real_gpu(pytestconfig: pytest.Config) -> bool:
    """Whether the machine's own GPU is asked for."""
    return bool(pytestconfig.getoption("--real-gpu"))


@pytest.fixture(scope="session")
def native_libraries() -> Path:
    """The folder of the compiled libraries, built now where they are missing."""
    needed = [LEND, *(folder.BUILT / name for name in folder.LIBRARIES.values())]
    if not all(path.exists() for path in needed):
        subprocess.run([sys.executable, BUILD], check=True, stdout=subprocess.DEVNULL)
    return folder.BUILT


@pytest.fixture
def no_more_threads() -> Iterator[None]:
    """As for a user who has used up what the machine allows: no thread can be started."""
    usual = threading.stack_size(1 << 47)  # there is no address space for a stack of that size
    yield
    threading.stack_size(usual)


@pytest.fixture
def thousands_of_files() -> Iterator[None]:
    """This process may open more files than users usually may: 1024."""
    usual, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    if most < 4096:
        skip_without("kernel", "the limit allows no 4,096 open files")
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (usual, most))


@pytest.fixture
def virtual_gpu(native_libraries: Path) -> Iterator[VirtualGpu]:
    """One virtual H200, gone after the test."""
    with VirtualGpu.create() as gpu:
        yield gpu


@pytest.fixture
def two_virtual_gpus(native_libraries: Path) -> Iterator[VirtualGpu]:
    with VirtualGpu.create(gpus=2) as gpu:
        yield gpu
