"""The walker of native frames finds the calls that were made, in the libraries where they are."""

from __future__ import annotations

import ctypes
import platform
import random
import shutil
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.needs import needs
from tests.tracer.stack_harness import HERE, compile_c, harness, sanitized
from vram.trace.symbols import function_names

pytestmark = pytest.mark.native
__all__ = ["harness"]

MAX_DEPTH = 256
# As readelf calls them, and whether a call leaves its return address in a register.
STACK_POINTER, BASE_POINTER, LINK = (
    ("sp", "x29", True) if platform.machine() == "aarch64" else ("rsp", "rbp", False)
)


class _Chain(ctypes.Structure):
    _fields_ = (
        ("functions", ctypes.POINTER(ctypes.c_void_p)),
        ("at", ctypes.c_int),
        ("most", ctypes.c_int),
        ("count", ctypes.c_int),
        ("addresses", ctypes.POINTER(ctypes.c_size_t)),
    )


class _NativePlace(ctypes.Structure):
    _fields_ = (
        ("library", ctypes.c_char * 1024),
        ("symbol", ctypes.c_char * 512),
        ("build_id", ctypes.c_char * 65),
        ("offset", ctypes.c_uint64),
    )


class Frame(NamedTuple):
    library: str
    symbol: str
    offset: int
    is_python: bool


class Walker:
    """Calls functions of libraries in a chain whose last call walks, and describes what was found."""

    def __init__(self, harness: Path, folder: Path) -> None:
        self._harness = ctypes.PyDLL(str(harness))
        self._harness.harness_native_describe.argtypes = (ctypes.c_size_t, ctypes.c_void_p)
        self._harness.harness_native_is_python.argtypes = (ctypes.c_size_t,)
        self._folder = folder

    def library(self, name: str, prefix: str) -> ctypes.PyDLL:
        source = str(HERE / "native_caller.c")
        flags = ("-fPIC", "-shared", "-fvisibility=hidden", f"-DPREFIX={prefix}", f"-I{HERE}")
        return ctypes.PyDLL(str(compile_c(self._folder / name, *flags, source)))

    def addresses(self, *functions: Callable[..., int], most: int = MAX_DEPTH) -> list[int]:
        found = (ctypes.c_size_t * most)()
        calls = [*functions, self._harness.harness_native_walk]
        pointers = (ctypes.c_void_p * len(calls))(*(ctypes.cast(each, ctypes.c_void_p) for each in calls))
        chain = _Chain(pointers, 1, most, -1, found)
        calls[0](ctypes.byref(chain))
        assert chain.count >= 0
        return list(found[: chain.count])

    def walk(self, *functions: Callable[..., int], most: int = MAX_DEPTH) -> list[Frame]:
        return [self.describe(each) for each in self.addresses(*functions, most=most)]

    def describe(self, address: int) -> Frame:
        place = _NativePlace()
        assert self._harness.harness_native_describe(address, ctypes.byref(place))
        is_python = bool(self._harness.harness_native_is_python(address))
        return Frame(place.library.decode(), place.symbol.decode(), place.offset, is_python)


@pytest.fixture(scope="module")
def walker(harness: Path, tmp_path_factory: pytest.TempPathFactory) -> Walker:
    return Walker(harness, tmp_path_factory.mktemp("libraries"))


@pytest.fixture(scope="module")
def app(walker: Walker) -> ctypes.PyDLL:
    return walker.library("libapp.so", "app")


@pytest.fixture(scope="module")
def cuda(walker: Walker) -> ctypes.PyDLL:
    return walker.library("libcuda.so.1", "cuda")


@pytest.fixture(scope="module")
def cupti(walker: Walker) -> ctypes.PyDLL:
    return walker.library("libcupti.so.13", "cupti")


def symbols(frames: list[Frame]) -> list[str]:
    return [each.symbol for each in frames]


def test_calls_are_found_in_their_order(walker: Walker, app: ctypes.PyDLL) -> None:
    frames = walker.walk(app.app_pass, app.app_static, app.app_pass)
    assert symbols(frames)[:4] == ["app_pass", "", "app_static", "app_pass"]
    assert {each.library for each in frames[:4]} == {app._name}
    assert walker.walk(app.app_pass, app.app_pass, most=1) == [frames[0]]


def test_static_functions_are_named_by_the_file(walker: Walker, app: ctypes.PyDLL) -> None:
    """The offset is one that symbol tables and addr2line understand."""
    frame = walker.walk(app.app_static)[0]
    assert function_names(frame.library, [frame.offset]) == {frame.offset: "hidden_function"}
    command = ["addr2line", "-f", "-e", frame.library, hex(frame.offset)]
    listed = subprocess.run(command, capture_output=True, text=True, check=True)
    assert listed.stdout.splitlines()[0] == "hidden_function"


def test_libraries_are_described_with_their_build_ids(
    walker: Walker, app: ctypes.PyDLL, harness: Path
) -> None:
    """Of a small library, and of whatever this Python has called on the way."""
    library = ctypes.CDLL(str(harness))
    library.harness_native_describe.argtypes = (ctypes.c_size_t, ctypes.c_void_p)
    compared = set()
    for address in walker.addresses(app.app_pass):
        place = _NativePlace()
        assert library.harness_native_describe(address, ctypes.byref(place))
        path = place.library.decode()
        if path not in compared:
            listed = subprocess.run(["readelf", "-n", path], capture_output=True, text=True).stdout
            wanted = listed.partition("Build ID: ")[2].split()[:1]
            assert [place.build_id.decode()] == (wanted or [""]), path
            compared.add(path)
    assert app._name in compared


def test_frames_of_unusual_shapes(walker: Walker, app: ctypes.PyDLL) -> None:
    """Arrays whose size is known at run time, and aligned variables, of different sizes each time."""
    names = ["", "app_aligned", "", "app_array", "app_pass", "", "app_array", "", "app_aligned"]
    functions = (app.app_aligned, app.app_array, app.app_pass, app.app_array, app.app_aligned)
    for _ in range(3):
        assert symbols(walker.walk(*functions))[: len(names)] == names
    deeper = (app.app_pass, app.app_pass, *functions)
    assert symbols(walker.walk(*deeper))[: len(names) + 2] == [*names, "app_pass", "app_pass"]


def test_the_driver_and_the_recorder_are_left_out_at_the_inner_end(
    walker: Walker, app: ctypes.PyDLL, cuda: ctypes.PyDLL, cupti: ctypes.PyDLL
) -> None:
    frames = walker.walk(
        app.app_pass, cuda.cuda_pass, app.app_static, cuda.cuda_pass, cuda.cuda_static, cupti.cupti_pass
    )
    # A frame of the driver that called the program back belongs to the stack.
    assert symbols(frames)[:4] == ["", "app_static", "cuda_pass", "app_pass"]


def test_a_driver_that_is_loaded_later_is_left_out(walker: Walker, app: ctypes.PyDLL) -> None:
    assert symbols(walker.walk(app.app_pass))[0] == "app_pass"
    newer = walker.library("libcupti.so.14", "newer")
    assert symbols(walker.walk(app.app_pass, newer.newer_pass))[0] == "app_pass"


def test_python_itself_is_recognised(walker: Walker, app: ctypes.PyDLL) -> None:
    frames = walker.walk(app.app_pass)
    own = [each.is_python for each in frames]
    assert not own[0]
    assert any(own)
    assert {each.library for each in frames if each.is_python} == {_file_of("PyObject_Call")}
    assert not any(each.is_python for each in frames if "_ctypes" in each.library or "libffi" in each.library)


def test_signal_handlers_and_threads(walker: Walker, app: ctypes.PyDLL) -> None:
    names = symbols(walker.walk(app.app_signal))
    assert names[0] == ""
    assert "app_signal" in names
    frames = walker.walk(app.app_thread)
    assert [each.library for each in frames[:2]] == [app._name] * 2
    assert not any(each.is_python for each in frames)


def test_random_chains(walker: Walker, app: ctypes.PyDLL, cuda: ctypes.PyDLL) -> None:
    """The end of each chain compares with libgcc's unwinder; some calls go through Python again."""
    chooser = random.Random(3)
    back = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p)

    def call_next(address: int) -> int:
        chain = _Chain.from_address(address)
        chain.at += 1
        following = back(chain.functions[chain.at - 1])
        return max([0], key=lambda _: following(address)) if chain.at % 2 else following(address)

    through_python = back(call_next)
    names = ("app_pass", "app_static", "app_array", "app_aligned", "app_signal", "app_pass", "app_static")
    functions = [getattr(app, name) for name in names] + [cuda.cuda_pass, cuda.cuda_array]
    for _ in range(300):
        chain = chooser.choices(functions, k=chooser.randrange(1, 12))
        for _ in range(chooser.randrange(3)):
            chain.insert(chooser.randrange(len(chain)), through_python)
        assert walker.addresses(*chain)


@needs("known-processor", "readelf")
def test_rules_are_those_of_readelf(harness: Path, app: ctypes.PyDLL) -> None:
    """What is read of each row of the tables of call frames: the C library, Python and a small library."""
    library = ctypes.CDLL(str(harness))
    library.harness_rule.argtypes = (ctypes.c_size_t, ctypes.c_void_p)
    numbers = (ctypes.c_int * 5)()
    compared = 0
    for path in {app._name, _file_of("PyObject_Call"), _file_of("printf")}:
        bias = _bias(path)
        for address, wanted in _rows(path):
            library.harness_rule(bias + address + 1, numbers)
            found = tuple(numbers)[: len(wanted)]
            # On aarch64 it does not say whether there is no return address, or it is still in its register.
            assert found == wanted or (wanted == (1,) and found == (0,) and LINK), (path, hex(address))
            compared += 1
    assert compared > 10_000


def _file_of(symbol: str) -> str:
    """The file whose memory has the function."""
    address = ctypes.cast(getattr(ctypes.CDLL(None), symbol), ctypes.c_void_p).value
    assert address is not None
    for begin, end, _, path in _mappings():
        if begin <= address < end:
            return path
    raise LookupError(symbol)


def _bias(path: str) -> int:
    """Where the file's first byte lies; a program at fixed addresses has none."""
    with open(path, "rb") as file:
        is_fixed = file.read(18)[16] == 2
    return (
        0
        if is_fixed
        else next(begin for begin, _, offset, each in _mappings() if each == path and not offset)
    )


def _mappings() -> Iterator[tuple[int, int, int, str]]:
    with open("/proc/self/maps") as file:
        for line in file:
            words = line.split(maxsplit=5)
            if len(words) == 6:
                begin, _, end = words[0].partition("-")
                yield int(begin, 16), int(end, 16), int(words[2], 16), words[5].rstrip("\n")


def _rows(path: str) -> Iterator[tuple[int, tuple[int, ...]]]:
    """Each address at which the rule changes, and it, as harness_rule packs it."""
    command = ["readelf", "--debug-dump=frames-interp", path]
    listed = subprocess.run(command, capture_output=True, text=True, errors="replace")  # 1 where it warns
    columns, end, signal = list[str](), 0, False
    for line in listed.stdout.splitlines():
        words = line.replace(" (", "(").split()
        if " FDE " in line:
            end = int(line.rpartition("..")[2], 16)
        elif " CIE " in line:
            end, signal = 0, '"zRS"' in line or "zRS" in words
        elif "LOC" in words:
            columns = words
        elif words and len(words[0]) == 16 and end and int(words[0], 16) < end and not signal:
            yield int(words[0], 16), _rule(dict(zip(columns, words, strict=False)))


def _rule(row: dict[str, str]) -> tuple[int, ...]:
    (register, _, offset), base_pointer = row["CFA"].partition("+"), row.get(BASE_POINTER, "u")
    returns = row.get("ra", "u")
    if returns == "u":
        return (1,)
    is_saved = base_pointer.startswith("c")
    in_frame = returns[0] == "c" and (int(returns[1:]) <= 8 if LINK else returns == "c-8")
    if (
        register not in (STACK_POINTER, BASE_POINTER)
        or not in_frame
        or not (is_saved or base_pointer in "us")
    ):
        return (0,)
    return (
        2 if register == STACK_POINTER else 3,
        int(is_saved),
        int(offset),
        int(base_pointer[1:]) if is_saved else 0,
        int(returns[1:]),
    )


def test_an_address_in_no_library_is_not_described(walker: Walker, harness: Path) -> None:
    library = ctypes.CDLL(str(harness))
    library.harness_native_describe.argtypes = (ctypes.c_size_t, ctypes.c_void_p)
    for address in (0, 1, 4096, (1 << 64) - 1):
        assert not library.harness_native_describe(address, ctypes.byref(_NativePlace()))


def test_libraries_come_and_go_while_threads_walk(walker: Walker, app: ctypes.PyDLL, tmp_path: Path) -> None:
    """Four threads walk through two libraries of which one is loaded, called and unloaded over and over."""
    wanted = symbols(walker.walk(app.app_pass, app.app_static))[:3]
    stop, wrong = threading.Event(), list[object]()

    def walk_on() -> None:
        while not stop.is_set():
            found = symbols(walker.walk(app.app_pass, app.app_static))[:3]
            if found != wanted:
                wrong.append(found)

    threads = [threading.Thread(target=walk_on) for _ in range(4)]
    for thread in threads:
        thread.start()
    original = walker.library("libcoming.so", "coming")._name
    close = ctypes.CDLL(None).dlclose
    close.argtypes = (ctypes.c_void_p,)
    for turn in range(15):
        path = tmp_path / f"libcoming{turn}.so"
        shutil.copy(original, path)
        library = ctypes.PyDLL(str(path))
        if symbols(walker.walk(library.coming_array, app.app_pass))[:3] != ["app_pass", "", "coming_array"]:
            wrong.append("a library that was loaded just now")
        close(library._handle)
        path.unlink()
    stop.set()
    for thread in threads:
        thread.join()
    assert wrong == []


@needs("known-processor")
@needs("no-sanitizers", there=not sanitized(), detail="the sanitizers make everything slower")
def test_a_walk_is_fast(harness: Path) -> None:
    """A fifth of libgcc's time at most; it is a thirtieth, usually."""
    library = ctypes.PyDLL(str(harness))
    library.harness_native_time.restype = ctypes.c_double
    assert library.harness_native_time(64, 200, 0) < library.harness_native_time(64, 200, 1) / 5
