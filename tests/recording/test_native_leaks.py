"""What C++ programs do not free is found at its line, and nothing else is called a leak."""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from tests.examples.leaks import CPP, EXAMPLES, UNFREED, Unfreed, source_of
from tests.needs import needs
from tests.patience import until
from tests.recording.conftest import Workplace
from vram.cli.tracing import read_view
from vram.model.trace import TraceView, stack_of
from vram.top.sites import FollowedTrace
from vram.trace.places import caller, place
from vram.units import MIB

sys.path.insert(0, str(EXAMPLES))
import compiling

pytestmark = needs("gcc")

CHECK_FAILED = 90

# A wrapper, called from two lines; each kind of memory; what a reset frees; what is freed as it should be.
KINDS = """\
#include <cuda_runtime.h>
#include <cstdlib>
#include <cstring>
extern "C" cudaError_t cudaMallocHost(void **pointer, size_t nbytes);
extern "C" cudaError_t cudaMallocAsync(void **pointer, size_t nbytes, cudaStream_t stream);
template <class T> struct Owner {
    T *data = nullptr;
    explicit Owner(size_t count) {
        cudaMalloc((void **)&data, count * sizeof(T));
    }
};
static void first() { Owner<float> values(1 << 20); }
static void second() { Owner<int> values(1 << 19); }
int main(int argc, char **argv) {
    void *kept = nullptr, *pinned = nullptr, *managed = nullptr, *pooled = nullptr, *freed = nullptr;
    const char *what = argv[1];
    cudaMalloc(&freed, 1 << 20);
    cudaFree(freed);
    if (!strcmp(what, "wrapper")) { first(); second(); }
    if (!strcmp(what, "managed")) cudaMallocManaged(&managed, 3 << 20, cudaMemAttachGlobal);
    if (!strcmp(what, "pinned")) cudaMallocHost(&pinned, 5 << 20);
    if (!strcmp(what, "pooled")) cudaMallocAsync(&pooled, 7 << 20, 0);
    if (!strcmp(what, "reset")) {
        cudaMalloc(&kept, 9 << 20);
        cudaDeviceReset();
        cudaMalloc(&kept, 1 << 20);
        cudaFree(kept);
    }
    if (!strcmp(what, "exit")) { cudaMalloc(&kept, 11 << 20); exit(0); }
    if (!strcmp(what, "killed")) { cudaMalloc(&kept, 13 << 20); abort(); }
    return 0;
}
"""


def build(source: Path) -> Path:
    found = compiling.with_declarations()
    return replace(found, command=(*found.command, "-g", "-O2")).build(source).path


def unfreed(view: TraceView) -> list[Unfreed]:
    found = []
    for leak in view.leaks:
        assert leak.verdict == "not freed"
        at = place(stack_of(view, leak.site.stack))
        assert at is not None
        found.append(Unfreed(at.function, Path(at.file).name, at.line, leak.site.nbytes, leak.site.count))
    return found


@pytest.mark.parametrize("name", CPP)
def test_the_articles_programs(work: Workplace, name: str) -> None:
    program = build(source_of(name))
    done = work.vram("run", "-o", "t.vram", "--check", "leaks=0", "--check", "unfreed=0", "--", program)
    found = unfreed(read_view([str(work.folder / "t.vram")]))
    expected = UNFREED.get(name)
    if expected is None:
        assert (done.returncode, found) == (0, []), done.stderr
        return
    assert done.returncode == CHECK_FAILED
    assert {each[:3] for each in found} == {expected[:3]}
    assert sum(each.nbytes for each in found) == expected.nbytes
    assert sum(each.count for each in found) == expected.count
    where = f"{expected.file}:{expected.line}"
    assert done.stderr.count(where) >= 2, done.stderr  # each check names it
    said = work.vram("report", "t.vram").stdout
    assert "not freed" in said
    assert where in said


@pytest.fixture(scope="module")
def kinds(tmp_path_factory: pytest.TempPathFactory) -> Path:
    source = tmp_path_factory.mktemp("kinds") / "kinds.cpp"
    source.write_text(KINDS)
    return build(source)


def line_of(text: str) -> int:
    (number,) = [number for number, each in enumerate(KINDS.splitlines(), 1) if text in each]
    return number


@pytest.mark.parametrize(
    ("what", "nbytes"), [("managed", 3 * MIB), ("pinned", 5 * MIB), ("pooled", 7 * MIB), ("exit", 11 * MIB)]
)
def test_every_kind_of_memory(work: Workplace, kinds: Path, what: str, nbytes: int) -> None:
    done = work.vram("run", "-o", "t.vram", "--check", "leaks=0", "--", kinds, what)
    assert done.returncode == CHECK_FAILED, done.stderr
    found = unfreed(read_view([str(work.folder / "t.vram")]))
    assert found == [Unfreed("main", "kinds.cpp", line_of(f'"{what}"'), nbytes, 1)]


def test_a_wrapper_is_shown_with_the_lines_that_call_it(work: Workplace, kinds: Path) -> None:
    work.vram("run", "-o", "t.vram", "--", kinds, "wrapper")
    view = read_view([str(work.folder / "t.vram")])
    assert {each[1:3] for each in unfreed(view)} == {("kinds.cpp", line_of("cudaMalloc((void"))}
    callers = {caller(stack_of(view, leak.site.stack)) for leak in view.leaks}
    assert {(each.function, each.line) for each in callers if each} == {
        ("first", line_of("void first()")),
        ("second", line_of("void second()")),
    }
    said = work.vram("report", "t.vram").stdout
    leaks = said[said.index("Never freed") :]
    assert re.search(rf"4\.0 MiB from first  \S*kinds\.cpp:{line_of('void first()')}\n", leaks)
    assert re.search(rf"2\.0 MiB from second  \S*kinds\.cpp:{line_of('void second()')}\n", leaks)


def test_what_a_reset_freed_is_no_leak(work: Workplace, kinds: Path) -> None:
    done = work.vram(
        "run", "-o", "t.vram", "--check", "leaks=0", "--check", "unfreed=0", "--", kinds, "reset"
    )
    assert done.returncode == 0, done.stderr
    assert read_view([str(work.folder / "t.vram")]).leaks == ()


def test_a_program_that_did_not_end_by_itself_has_not_left_anything_unfreed(
    work: Workplace, kinds: Path
) -> None:
    """It was killed: nobody knows what it would have freed."""
    work.vram("run", "-o", "t.vram", "--", kinds, "killed")
    (leak,) = read_view([str(work.folder / "t.vram")]).leaks
    assert leak.verdict == "in use at exit"


def test_pythons_rule_stays(work: Workplace) -> None:
    """Live at the end and not growing: no leak, unless everything is asked for."""
    program = "context()\nkept = alloc(5 << 20)"
    assert work.record("-o", "t", "--check", "leaks=0", program=program).returncode == 0
    done = work.record("-o", "t2", "--check", "unfreed=0", program=program)
    assert done.returncode == CHECK_FAILED
    assert "check unfreed=0 failed: 1 allocation not freed" in done.stderr


STEPS = """\
#include <cuda_runtime.h>
#include <cstdio>
__attribute__((noinline)) static void allocate(size_t nbytes) {
    void *kept = nullptr;
    cudaMalloc(&kept, nbytes);
    puts("allocated");
    fflush(stdout);
    getchar();
}
int main() {
    allocate(4 << 20);
    allocate(8 << 20);
    return puts("end") < 0;
}
"""


def test_lines_are_shown_while_it_runs(work: Workplace) -> None:
    """Also of what is allocated after the first lines were read."""
    source = work.folder / "steps.cpp"
    source.write_text(STEPS)
    command = [build(source)]
    environment = work.recorder_environment("trace")
    running = subprocess.Popen(command, env=environment, stdin=-1, stdout=-1, text=True, bufsize=0)
    followed = FollowedTrace(prefix=str(work.folder / "trace"))
    assert running.stdin is not None
    assert running.stdout is not None

    def shown() -> set[tuple[int, int]]:
        """Bytes, and the line in main()."""
        now = followed.read()
        frames = {site.nbytes: stack_of(now, site.stack).frames for site in now.sites if site.nbytes}
        return {
            (nbytes, each.line)
            for nbytes, stack in frames.items()
            for each in stack
            if (each.function, Path(each.file).name) == ("main", "steps.cpp")
        }

    expected = set[tuple[int, int]]()
    try:
        for nbytes, line in ((4 * MIB, 11), (8 * MIB, 12)):
            assert running.stdout.readline() == "allocated\n"
            expected.add((nbytes, line))
            until(lambda: shown() == expected, shown)
            running.stdin.write("\n")
    finally:
        followed.close()
        running.kill()
        running.communicate()
