"""vram.flush: what it frees, what it refuses, and how it reports."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest

import vram
from tests.guard.scoping import NUMBA, PREAMBLE, result
from tests.needs import needs
from tests.patience import PATIENCE_S
from vram.errors import NoSuchDevice
from vram.guard.flush import NESTED, CacheChange, FlushReport
from vram.guard.memory import DeviceMemory
from vram.units import MIB
from vram.virtualgpu import VirtualGpu

SOURCE = Path(vram.__file__).parents[1]


def test_a_process_that_uses_no_gpu_has_nothing_to_free(virtual_gpu: VirtualGpu) -> None:
    """And is not made to use one."""
    told = result(
        virtual_gpu,
        """
        text = repr(vram.flush())
        from vram.guard.memory import cuda, device_memory
        tell([text.splitlines()[0], cuda() is None, device_memory(0).used])
        """,
        PREAMBLE.replace("from tests.virtualgpu import libcuda as raw\n", ""),
    )
    assert told == ["nothing to free: this process holds no GPU memory", True, 0]


def test_a_pool_of_the_driver_is_trimmed_and_told(virtual_gpu: VirtualGpu) -> None:
    told = result(
        virtual_gpu,
        """
        from tests.guard.leaks import _free_into_pool
        _free_into_pool(256 * MIB)
        first, second = vram.flush(), vram.flush()
        change = next(each for each in first.frameworks if each.name == "driver pools")
        tell([first.returned, change.before, change.after, second.returned, repr(second).splitlines()[0]])
        """,
    )
    assert told[:4] == [256 * MIB, 256 * MIB, 0, 0]
    assert told[4].startswith("nothing more to free: GPU 0 518.0 MiB held by this process")


@needs("numba")
def test_what_is_still_kept_is_reported_with_its_holder(virtual_gpu: VirtualGpu) -> None:
    text, html, returned = result(
        virtual_gpu,
        """
        history = [array(8 * MIB) for _ in range(16)]
        def fail():
            out = array(64 * MIB)
            raise ValueError
        try:
            fail()
        except ValueError as error:
            sys.last_value = error
        report = vram.flush()
        tell([repr(report), report._repr_html_(), report.returned])
        """,
        NUMBA,
    )
    assert returned == 64 * MIB
    assert "64.0 MiB freed: GPU 0 710.0 MiB → 646.0 MiB held by this process" in text
    assert "dropped: sys.last_value" in text
    assert "16 × uint8 (8388608,)  __main__: history[0…15]" in text
    assert "<code>__main__: history[0…15]</code>" in html


@needs("numba")
def test_what_is_asked_to_stay_stays(virtual_gpu: VirtualGpu) -> None:
    told = result(
        virtual_gpu,
        """
        class Node: pass
        def cycle():
            node = Node()
            node.itself, node.array = node, array(32 * MIB)
        def fail():
            out = array(64 * MIB)
            raise ValueError
        gc.disable()
        cycle()
        try:
            fail()
        except ValueError as error:
            sys.last_value = error
        kept = vram.flush(tracebacks=False, gc=False)
        tell([kept.returned, kept.collected, sys.last_value is not None, vram.flush().returned])
        """,
        NUMBA,
    )
    assert told == [0, 0, True, 96 * MIB]


def test_refused_while_a_graph_is_captured(virtual_gpu: VirtualGpu) -> None:
    """The virtual driver captures nothing; it answers as the real one does while one captures."""
    virtual_gpu.fail("cuStreamIsCapturing", error=906)
    told = result(
        virtual_gpu,
        """
        from tests.guard.leaks import _free_into_pool
        _free_into_pool(64 * MIB)
        sys.last_value = ValueError()
        from vram.guard.memory import device_memory
        before = device_memory(0)
        report = vram.flush()
        tell([report.refused, repr(report), before == device_memory(0), sys.last_value is not None])
        """,
    )
    assert told[0] == told[1] == "a CUDA graph is being captured: nothing was touched"
    assert told[2:] == [True, True]


def test_in_many_threads_and_from_a_finalizer(virtual_gpu: VirtualGpu) -> None:
    told = result(
        virtual_gpu,
        """
        nested = []
        class Ends:
            def __del__(self):
                nested.append(vram.flush().refused)
        gc.disable()
        cycle = Ends(); cycle.itself = cycle; del cycle
        reports = []
        threads = [threading.Thread(target=lambda: reports.append(vram.flush())) for _ in range(8)]
        for thread in threads: thread.start()
        for thread in threads: thread.join()
        tell([nested, [each.refused for each in reports]])
        """,
    )
    assert told == [[NESTED], [""] * 8]


def test_a_framework_that_fails_is_a_note_and_the_rest_goes_on(virtual_gpu: VirtualGpu) -> None:
    virtual_gpu.fail("cuMemPoolTrimTo", error=999)
    told = result(
        virtual_gpu,
        """
        from tests.guard.leaks import _free_into_pool
        _free_into_pool(64 * MIB)
        report = vram.flush()
        tell([report.refused, report.returned, len(report.after)])
        """,
    )
    assert told == ["", 0, 1]


@needs("no-driver")
def test_without_a_driver_it_does_nothing_and_says_so_once() -> None:
    program = """
    import sys, warnings, vram
    sys.last_value = ValueError()
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        reports = [vram.flush(), vram.flush()]
    where = said[0].filename == "<string>"
    print(len(said), where, said[0].message, sys.last_value is not None, *reports, sep="|")
    print(vram.live())
    """
    done = subprocess.run(
        [sys.executable, "-c", dedent(program)],
        env={"PYTHONPATH": str(SOURCE), "PATH": "/usr/bin", "LD_LIBRARY_PATH": ""},
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )
    assert done.returncode == 0, done.stderr
    first, alive = done.stdout.splitlines()
    nothing = "no NVIDIA driver answers here: there is nothing to flush"
    warning = "no NVIDIA driver answers here: vram.flush() does nothing"
    assert first.split("|") == ["1", "True", warning, "True", nothing, nothing]
    assert alive == "no live arrays on a GPU"


@pytest.mark.parametrize("device", [-1, True, "0", 1.0])
def test_a_device_that_cannot_be(device: Any) -> None:
    with pytest.raises(NoSuchDevice) as caught:
        vram.flush(device)
    assert caught.value.hint


@needs("IPython")
@needs("numba")
def test_a_notebooks_cells_outputs_and_tracebacks(virtual_gpu: VirtualGpu) -> None:
    told = result(
        virtual_gpu,
        """
        import io
        from contextlib import redirect_stdout
        from IPython.core.interactiveshell import InteractiveShell
        shell = InteractiveShell.instance()
        shell.user_ns.update(array=array, vram=vram)
        def cell(source):
            with redirect_stdout(io.StringIO()):
                return shell.run_cell(source, store_history=True)
        cell("history = [array(64 << 20)]")
        cell("array(32 << 20)")
        cell("def fail():\\n    out = array(16 << 20)\\n    raise ValueError\\nfail()")
        cell("seen = [each.holder.text for each in vram.live()]")
        cell("one = vram.flush()")
        cell("two = vram.flush(outputs=True)")
        one, two = shell.user_ns["one"], shell.user_ns["two"]
        tell([shell.user_ns["seen"], one.returned, two.returned, [each.holder.text for each in two.live]])
        """,
        NUMBA,
    )
    seen, first, second, stayed = told
    assert seen[0] == "cell 1: history[0]"
    assert seen[1] in ("Out[2]", "the last output (_)")
    assert seen[2].startswith("cell 3 line 3 local 'out' in frame of kept exception")
    assert stayed == ["cell 1: history[0]"]
    assert (first, second) == (16 * MIB, 32 * MIB)


def test_the_report_is_inert() -> None:
    """Notes carry words of other people's libraries."""
    note = "CuPy: RuntimeError: \x1b[2J<script>"
    report = FlushReport(
        before=(DeviceMemory(0, 4 * MIB, 1, 2),),
        after=(DeviceMemory(0, 1 * MIB, 4, 2),),
        frameworks=(CacheChange("CuPy", "pinned host", None, None, 3 * MIB),),
        notes=(note,),
    )
    assert "\x1b" not in repr(report)
    assert "<script>" not in report._repr_html_()
    assert repr(report).startswith("3.0 MiB freed: GPU 0 4.0 MiB → 1.0 MiB held by this process")


def test_a_share_that_the_driver_does_not_tell_is_not_guessed() -> None:
    before, after = DeviceMemory(0, None, 10 * MIB, 20 * MIB), DeviceMemory(0, None, 15 * MIB, 20 * MIB)
    report = FlushReport(before=(before,), after=(after,))
    assert report.outside is None
    assert "GPU 0 has 15.0 MiB free, had 10.0 MiB" in repr(report)
