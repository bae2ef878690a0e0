"""The recorder in real processes on the virtual GPU: what it writes, and that programs do not notice it."""

from __future__ import annotations

import re
import stat
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.interpreters import recorded_name
from tests.tracer.conftest import Traced
from tests.tracer.records import read

pytestmark = pytest.mark.native

MIB = 1 << 20


def test_allocations_carry_their_python_stack(traced: Traced) -> None:
    traced.run(
        "context()\n"
        "def inner(n):\n"
        "    return alloc(n)\n"
        "def outer(n):\n"
        "    return inner(n)\n"
        "first = outer(1 << 20)\n"
        "free(inner(4096))\n"
    )
    section = traced.section()
    [large, small] = [record for record in section.named("ALLOC") if record["kind"] == 0]
    assert (large["size"], small["size"]) == (MIB, 4096)
    assert [frame[0] for frame in large.stack] == ["alloc", "inner", "outer", "<module>"]
    assert [(frame[0], frame[2]) for frame in small.stack[1:]] == [("inner", 4), ("<module>", 8)]
    [freed] = section.named("FREE")
    assert (freed["space"], freed["address"]) == (0, small["address"])
    assert freed["time"] > small["time"] > large["time"]  # type: ignore[operator]
    [device] = section.named("DEVICE")
    assert re.fullmatch(r"[0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.0", str(device["pci"]))
    assert [record["reason"] for record in section.named("END")] == [1]
    assert large["device"] == device["device"] == 0


def test_a_method_is_named_with_its_class(traced: Traced) -> None:
    traced.run(
        "context()\n"
        "class Model:\n"
        "    def forward(self):\n"
        "        return list(self.layers())\n"
        "    def layers(self):\n"
        "        yield (lambda: alloc(4096))()\n"
        "def main():\n"
        "    def step():\n"
        "        Model().forward()\n"
        "    step()\n"
        "main()\n"
    )
    [record] = [record for record in traced.section().named("ALLOC") if record["kind"] == 0]
    names = ["alloc", "Model.layers.<locals>.<lambda>", "Model.layers", "Model.forward", "main.<locals>.step"]
    assert [frame[0] for frame in record.stack] == [*map(recorded_name, names), "main", "<module>"]


def test_the_header_names_the_process(traced: Traced) -> None:
    pid = int(traced.run("context()\nsay(os.getpid())", run="00112233445566778899aabbccddeeff"))
    section = traced.section()
    assert section.pid == pid
    assert "-c" in section.texts["command"].split("\0")
    assert section.texts["cupti"].endswith("libcupti.so.13")
    assert re.fullmatch(r"3\.\d+\.\d+.*", section.texts["python"])
    assert not section.attached
    assert not section.forked
    [part] = traced.parts()
    assert part.read_bytes()[64:80].hex() == "00112233445566778899aabbccddeeff"
    assert stat.S_IMODE(part.stat().st_mode) == 0o600
    assert part.name == f"trace.{pid}.part"
    assert traced.messages() == [["recording", str(part)]]


def test_every_kind_of_memory_is_recorded(traced: Traced) -> None:
    traced.run(
        """
made = context()
u64, size = ctypes.c_uint64, ctypes.c_size_t
p, q, h, s = u64(), u64(), u64(), ctypes.c_void_p()
free(alloc(1 << 20))
check(cuda.cuMemAllocPitch_v2(ctypes.byref(p), ctypes.byref(q), size(1000), size(10), 4)); free(p.value)
check(cuda.cuMemAllocManaged(ctypes.byref(p), size(3 << 20), 1)); free(p.value)
check(cuda.cuStreamCreate(ctypes.byref(s), 1))
check(cuda.cuMemAllocAsync(ctypes.byref(p), size(5000), s))
check(cuda.cuMemFreeAsync(p, s))
check(cuda.cuMemHostAlloc(ctypes.byref(p), size(8192), 0)); check(cuda.cuMemFreeHost(p))
check(cuda.cuMemAllocHost_v2(ctypes.byref(p), size(8192))); check(cuda.cuMemFreeHost(p))
room = ctypes.create_string_buffer(3 * 4096)
aligned = u64((ctypes.addressof(room) + 4095) & ~4095)
check(cuda.cuMemHostRegister_v2(aligned, size(4096), 0)); check(cuda.cuMemHostUnregister(aligned))
prop = (ctypes.c_int * 8)(1, 0, 1, 0)
check(cuda.cuMemAddressReserve(ctypes.byref(p), size(2 << 20), size(0), u64(0), u64(0)))
check(cuda.cuMemCreate(ctypes.byref(h), size(2 << 20), prop, u64(0)))
check(cuda.cuMemMap(p, size(2 << 20), size(0), h, u64(0)))
check(cuda.cuMemUnmap(p, size(2 << 20)))
check(cuda.cuMemRelease(h))
check(cuda.cuMemAddressFree(p, size(2 << 20)))
assert cuda.cuMemAlloc_v2(ctypes.byref(p), size(1 << 50)) == 2
check(cuda.cuDevicePrimaryCtxReset_v2(0))
"""
    )
    section = traced.section()
    kinds = Counter(record["kind"] for record in section.named("ALLOC"))
    assert kinds == {13: 1, 0: 2, 1: 1, 2: 1, 8: 2, 9: 1, 11: 1, 6: 1}
    spaces = Counter(record["space"] for record in section.named("FREE"))
    assert spaces == {0: 4, 1: 3, 2: 1, 4: 1, 6: 1}
    by_kind = {record["kind"]: record for record in section.named("ALLOC")}
    assert by_kind[1]["size"] == 3 * MIB
    assert by_kind[2]["stream"] != 0
    assert [record["handle"] for record in section.named("MAP")] == [by_kind[6]["address"]]
    assert [record["size"] for record in section.named("UNMAP")] == [2 * MIB]
    [failed] = section.named("FAILED")
    assert (failed["kind"], failed["size"], failed["result"]) == (0, 1 << 50, 2)
    assert failed.stack
    pitched = [record for record in section.named("ALLOC") if record["kind"] == 0][1]
    assert int(str(pitched["size"])) % 10 == 0
    assert int(str(pitched["size"])) >= 10_000


def test_a_program_that_uses_no_memory_leaves_no_file(traced: Traced) -> None:
    traced.run("check(cuda.cuInit(0))")
    assert traced.parts() == []
    assert traced.messages() == []


def test_without_stacks_and_with_native_ones(traced: Traced) -> None:
    traced.run("context()\nalloc(4096)", stacks="none")
    assert [record.stack for record in traced.section().named("ALLOC")] == [[], []]
    traced.parts()[0].unlink()
    traced.run("context()\nalloc(4096)", stacks="native")
    [record] = [record for record in traced.section().named("ALLOC") if record["kind"] == 0]
    files = [Path(frame[1]).name for frame in record.stack]
    assert any("libffi" in name or "_ctypes" in name for name in files)  # between Python and CUDA
    assert files[-1] == "<string>"
    assert not any(name.startswith(("libcuda", "libcupti", "libvramtracer")) for name in files)


def test_a_thread_takes_over_the_writer_of_one_that_ended(traced: Traced) -> None:
    traced.run(
        """
import threading
made = context()
def work(n):
    check(cuda.cuCtxSetCurrent(made))
    free(alloc(4096 + n))
for n in range(50):
    thread = threading.Thread(target=work, args=(n,))
    thread.start(); thread.join()
"""
    )
    section = traced.section()
    allocations = [record for record in section.named("ALLOC") if record["kind"] == 0]
    assert sorted(int(str(record["size"])) - 4096 for record in allocations) == list(range(50))
    assert len({record.thread for record in section.named("ALLOC", "FREE")}) > 40
    # A thread that Python has joined may still be about to end.
    assert len({record.writer for record in section.records}) < 26


def test_a_hundred_threads_at_once_lose_nothing(traced: Traced) -> None:
    traced.run(
        """
import threading
made = context()
ready = threading.Barrier(100)
def work(n):
    check(cuda.cuCtxSetCurrent(made))
    ready.wait()
    for _ in range(30):
        free(alloc(512 + n))
threads = [threading.Thread(target=work, args=(n,)) for n in range(100)]
for thread in threads: thread.start()
for thread in threads: thread.join()
"""
    )
    section = traced.section()
    sizes = Counter(record["size"] for record in section.named("ALLOC") if record["kind"] == 0)
    assert sizes == {512 + n: 30 for n in range(100)}
    live: dict[object, int] = {}
    events = [record for record in section.named("ALLOC", "FREE") if record.fields.get("kind") != 13]
    for record in sorted(events, key=lambda record: record["time"]):  # type: ignore[arg-type,return-value]
        change = 1 if record.name == "ALLOC" else -1
        live[record["address"]] = live.get(record["address"], 0) + change
        assert live[record["address"]] in (0, 1)  # freed before it is given out again, across threads
    assert not any(live.values())


def test_long_recordings_fill_many_chunks(traced: Traced) -> None:
    traced.run("context()\nfor n in range(20_000):\n    free(alloc(4096))")
    [part] = traced.parts()
    section = read(part)
    assert len(section.named("ALLOC")) == 20_001
    assert len(section.named("FREE")) == 20_000
    assert part.stat().st_size / 40_000 < 20  # bytes an event
    [end] = section.named("END")
    assert end["chunks"] == (part.stat().st_size - 4096) // 65536


class TestStartedByTheProgram:
    """As `vram attach` does it: the library is loaded into a process that uses CUDA already."""

    def test_start_and_stop_again_and_again(self, traced: Traced) -> None:
        out = traced.run_alone(
            """
context()
before = alloc(1 << 20)
library = tracer()
opened = len(os.listdir("/proc/self/fd"))
for n in range(30):
    path = f"{sys.argv[1]}/trace-{n}"
    assert start(library, path) == 0, library.vram_tracer_error()
    assert library.vram_tracer_file() == path.encode()
    free(alloc(4096 + n))
    assert library.vram_tracer_stop() == 0
    assert library.vram_tracer_file() == b""
    free(alloc(4096))
assert library.vram_tracer_stop() == 1
say(len(os.listdir("/proc/self/fd")) - opened, open("/proc/self/maps").read().count("trace-"))
"""
        )
        descriptors, mappings = map(int, out.split())
        assert descriptors <= 1
        assert mappings < 6
        for n in range(30):
            section = read(traced.folder / f"trace-{n}")
            assert [record["size"] for record in section.named("ALLOC")] == [4096 + n]
            assert len(section.named("FREE")) == 1
            assert [record["reason"] for record in section.named("END")] == [2]
            assert section.attached

    def test_threads_that_work_now_and_then_meanwhile(self, traced: Traced) -> None:
        # A thread that does nothing for some recordings still knows the writer that it had in an earlier one.
        out = traced.run_alone(
            """
import random, threading, time
made = context()
library, done = tracer(), threading.Event()
def work(seed):
    chance = random.Random(seed)
    check(cuda.cuCtxSetCurrent(made))
    while not done.is_set():
        for _ in range(chance.randrange(30)): free(alloc(4096 + seed))
        time.sleep(chance.choice((0, 0, 0.001, 0.02)))
threads = [threading.Thread(target=work, args=(n,)) for n in range(6)]
for thread in threads: thread.start()
for n in range(200):
    assert start(library, f"{sys.argv[1]}/trace-{n}") == 0, library.vram_tracer_error()
    time.sleep(random.choice((0, 0.002, 0.01)))
    assert library.vram_tracer_stop() == 0
done.set()
for thread in threads: thread.join()
say("unharmed")
"""
        )
        assert out == "unharmed\n"
        events = 0
        for n in range(200):
            section = read(traced.folder / f"trace-{n}")
            assert [record["reason"] for record in section.named("END")] == [2]
            events += len(section.named("ALLOC", "FREE"))
        assert events > 100

    def test_errors_have_a_number_and_a_sentence(self, traced: Traced) -> None:
        out = traced.run_alone(
            """
context()
library = tracer()
def tried(*lines):
    say(library.vram_tracer_start("\\n".join(lines).encode()), library.vram_tracer_error().decode())
tried("output=relative")
tried("output=/tmp/x", "stacks=wrong")
tried("output=/nonexistent/folder/trace")
open(f"{sys.argv[1]}/there", "w").close()
tried(f"output={sys.argv[1]}/there")
tried(f"output={sys.argv[1]}/ok")
tried(f"output={sys.argv[1]}/second")
"""
        )
        numbers, sentences = zip(*(line.split(" ", 1) for line in out.splitlines()), strict=True)
        assert numbers == ("6", "6", "2", "2", "0", "1")
        assert "No such file or directory" in sentences[2]
        assert "File exists" in sentences[3]
        assert sentences[5].startswith("recording already, into")
        assert (traced.folder / "there").read_bytes() == b""
        assert not (traced.folder / "second").exists()

    def test_marks_blobs_blocks_and_what_was_held_before(self, traced: Traced) -> None:
        traced.run_alone(
            """
context()
library = tracer()
assert library.vram_tracer_mark(b"nobody records") == 1
assert start(library, sys.argv[1] + "/trace") == 0
blob = bytes(range(256)) * 1000
def epoch():
    assert library.vram_tracer_mark("epoch 1 \\u00e9".encode()) == 0
    assert library.vram_tracer_before(0, 123456789, b"NVML") == 0
    assert library.vram_tracer_blob(b"torch", blob, len(blob)) == 0
    assert library.vram_tracer_block_alloc(17, 0, 0x7000, 512, 0) == 0
    assert library.vram_tracer_block_free(17, 0, 0x7000) == 0
    assert library.vram_tracer_block_alloc(3, 0, 0x7000, 512, 0) == 1
epoch()
library.vram_tracer_stop()
"""
        )
        section = read(traced.folder / "trace")
        assert [record["text"] for record in section.named("MARK")] == ["epoch 1 é"]
        [before] = section.named("BEFORE")
        assert (before["device"], before["size"], before["text"]) == (0, 123456789, "NVML")
        parts = section.named("BLOB")
        assert b"".join(part.fields["bytes"] for part in parts) == bytes(range(256)) * 1000  # type: ignore[misc]
        assert [part["part"] for part in parts] == list(range(len(parts)))
        [block] = section.named("ALLOC")
        assert (block["kind"], block["size"], block["address"]) == (17, 512, 0x7000)
        assert block.stack[0][0] == "epoch"
        assert [record["space"] for record in section.named("FREE")] == [9]


class TestOtherSubscribers:
    """CUPTI serves one subscriber in a process."""

    PROFILER = """
    #include <stdint.h>
    extern int cuptiSubscribe(void **, void (*)(void *, int, uint32_t, const void *), void *);
    extern int cuptiUnsubscribe(void *);
    extern int cuptiEnableCallback(uint32_t, void *, int, uint32_t);
    extern int cuptiEnableDomain(uint32_t, void *, int);
    extern int cuptiFinalize(void);
    static int seen; static void *handle;
    static void callback(void *data, int domain, uint32_t id, const void *call) {
        (void)domain; (void)id; (void)call; seen += data == &seen;
    }
    int begin(void) { return cuptiSubscribe(&handle, callback, &seen); }
    int enable(int on, uint32_t id) { return cuptiEnableCallback((uint32_t)on, handle, 1, id); }
    int all(int on) { return cuptiEnableDomain((uint32_t)on, handle, 1); }
    int end(void) { return cuptiUnsubscribe(handle); }
    int shut_down(void) { return cuptiFinalize(); }
    int count(void) { int now = seen; seen = 0; return now; }
    """

    def profiler(self, traced: Traced, compile_library: Callable[..., Path]) -> Path:
        lib = Path(traced.gpu.environment()["LD_LIBRARY_PATH"].split(":")[0])
        return compile_library("profiler", self.PROFILER, f"-L{lib}", "-l:libcupti.so.13")

    def test_a_profiler_of_the_program_shares_the_subscription(
        self, traced: Traced, compile_library: Callable[..., Path]
    ) -> None:
        library = self.profiler(traced, compile_library)
        out = traced.run(
            f"""
context()
free(alloc(1))
profiler = ctypes.CDLL({str(library)!r})
alloc(2)                                   # a new stack: the library is noticed
say("begin", profiler.begin())
free(alloc(3)); say("not asked", profiler.count())
say(profiler.enable(1, 243)); free(alloc(4)); say("alloc only", profiler.count())
say(profiler.enable(0, 243)); free(alloc(5)); say("off", profiler.count())
say(profiler.all(1)); free(alloc(6)); say("all", profiler.count() >= 4)
say(profiler.all(0)); free(alloc(7)); say("none", profiler.count())
say("end", profiler.end()); free(alloc(8)); say("ended", profiler.count())
say("again", profiler.begin(), profiler.end())
"""
        )
        assert out.splitlines() == [
            "begin 0",
            "not asked 0",
            "0",
            "alloc only 2",
            "0",
            "off 0",
            "0",
            "all True",
            "0",
            "none 0",
            "end 0",
            "ended 0",
            "again 0 0",
        ]
        section = traced.section()
        sizes = [record["size"] for record in section.named("ALLOC") if record["kind"] == 0]
        assert sizes == [1, 2, 3, 4, 5, 6, 7, 8]  # nothing was missed meanwhile
        assert len(section.named("FREE")) == 7
        assert section.named("GAP") == []

    def test_a_profiler_that_shuts_cupti_down_leaves_a_gap(
        self, traced: Traced, compile_library: Callable[..., Path]
    ) -> None:
        library = self.profiler(traced, compile_library)
        traced.run(
            f"context()\nprofiler = ctypes.CDLL({str(library)!r})\nalloc(2)\n"
            "assert profiler.begin() == 0\nassert profiler.shut_down() == 0\nalloc(3)"
        )
        section = traced.section()
        assert [record["size"] for record in section.named("ALLOC") if record["kind"] == 0] == [2]
        assert [(gap["reason"], gap["what"]) for gap in section.named("GAP")] == [(2, 1)]

    def test_who_was_there_first_keeps_the_subscription(
        self, traced: Traced, compile_library: Callable[..., Path]
    ) -> None:
        library = self.profiler(traced, compile_library)
        out = traced.run_alone(
            f"context()\nprofiler = ctypes.CDLL({str(library)!r})\nassert profiler.begin() == 0\n"
            "library = tracer()\nsay(start(library, sys.argv[1] + '/trace'))\n"
            "say(library.vram_tracer_error().decode())\nfree(alloc(1))"
        )
        assert out.splitlines()[0] == "4"
        assert "already subscribes to CUPTI" in out
        assert not (traced.folder / "trace").exists()


def test_without_cupti_the_program_runs_and_a_message_says_why(traced: Traced) -> None:
    assert traced.run("context()\nfree(alloc(1))\nsay('done')", check=True) == "done\n"
    [part] = traced.parts()
    part.unlink()
    traced.messages_file.write_text("")
    environment = traced.environment() | {"VRAM_VIRTUAL_CUPTI_ERROR": "39"}
    out = traced._run("context()\nfree(alloc(1))\nsay('done')", "python3", environment, check=True)
    assert out == "done\n"
    assert traced.parts() == []
    [[code, text]] = traced.messages()
    assert code == "subscriber"
    assert "already subscribes to CUPTI" in text


def test_an_output_that_cannot_be_written_does_not_harm_the_program(traced: Traced) -> None:
    assert traced.run("context()\nfree(alloc(1))\nsay('done')", output="/nonexistent/trace") == "done\n"
    assert [code for code, _ in traced.messages()] == ["output"]


def test_a_limit_on_file_sizes_ends_the_trace_and_not_the_program(traced: Traced) -> None:
    out = traced.run(
        "import resource\n"
        "context()\n"
        "alloc(4096)  # the virtual GPU has its own files, of 2 MiB\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, 300_000))\n"
        "for n in range(50_000):\n    free(alloc(4096))\n"
        "say('done')"
    )
    assert out == "done\n"
    section = traced.section()
    [end] = section.named("END")
    assert end["reason"] == 3
    assert [code for code, _ in traced.messages()] == ["recording", "disk-full"]
    assert 1000 < len(section.named("ALLOC")) < 50_000


def test_a_forked_child_has_a_file_of_its_own(traced: Traced) -> None:
    traced.run(
        """
context()
alloc(1)
library = ctypes.CDLL(os.environ["TRACER"])
child = os.fork()
if not child:
    library.vram_tracer_mark(b"child")
    os._exit(0)
os.waitpid(child, 0)
library.vram_tracer_mark(b"parent")
alloc(2)
"""
    )
    first, second = sorted((read(part) for part in traced.parts()), key=lambda section: section.forked)
    assert [record["text"] for record in first.named("MARK")] == ["parent"]
    assert [record["size"] for record in first.named("ALLOC") if record["kind"] == 0] == [1, 2]
    assert [record["text"] for record in second.named("MARK")] == ["child"]
    assert second.parent == first.pid


def test_an_allocation_is_made_to_fail(traced: Traced) -> None:
    program = """
context()
def tried(n):
    address = ctypes.c_uint64()
    return cuda.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(n))
say(*(tried(n) for n in (1, 2, 3, 3, 3, 3, 4, 900, 3)))
"""
    assert traced.run(program, fail_at="count=3") == "0 0 2 2 2 0 0 0 0\n"
    assert traced.run(program, fail_at="size=4") == "0 0 0 0 0 0 2 2 0\n"
    assert traced.run(program) == "0 0 0 0 0 0 0 0 0\n"
    failed = [record for part in traced.parts() for record in read(part).named("FAILED")]
    assert sorted((record["size"], record["result"]) for record in failed) == [
        (3, 2),
        (3, 2),
        (3, 2),
        (4, 2),
        (900, 2),
    ]


def test_python_code_runs_once_in_the_program(traced: Traced) -> None:
    payload = traced.folder / "payload 'é\".py"
    before = "getattr(sys, 'vram_payload', None)"
    payload.write_text(f"import sys\nsys.vram_payload = (__vram_tracer__, {before})\n")
    out = traced.run(
        "context()\nfor _ in range(1000): pass\nsay(sys.vram_payload)\nsay('_vram' in globals())",
        payload=str(payload),
    )
    assert "libvramtracer.so" in out
    assert out.splitlines()[0].endswith("None)")
    assert out.splitlines()[1] == "False"


def test_broken_payloads_are_not_noticed(traced: Traced) -> None:
    payload = traced.folder / "payload.py"
    payload.write_text("raise SystemExit(3)")
    program = "context()\nfor _ in range(1000): pass\nsay('done')"
    assert traced.run(program, payload=str(payload)) == "done\n"
    assert traced.run(program, payload="/nonexistent.py") == "done\n"
