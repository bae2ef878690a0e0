"""Why "out of memory" when nothing is running: what the article says."""

from __future__ import annotations

from statements.judge import (
    affirms,
    denies,
    gains,
    goes,
    leaves,
    leaves_nothing,
    less,
    refuses,
    right,
    statement,
    stays,
    wrong,
)
from vram.units import GIB, MIB

EXCEPTION, RESET_ONLY, LIBRARY = (
    "out-of-memory/1_exception_as_written",
    "out-of-memory/2_reset_only_as_written",
    "out-of-memory/3_library_as_written",
)

STATEMENTS = (
    statement(
        "Without visible processes, allocations that persist in the driver's context cause the error.",
        affirms("context-outlives", when="a context of a process that ended"),
        affirms("exported-handle", when="a process that no list names holds it"),
        pages=["questions/out-of-memory.md", "reference/commands/who.md"],
    ),
    statement(
        "The message misleads: it points to a lack of free memory.",
        wrong("memory is what lacks; only who holds it is not said", when="the GPU is full"),
        right("a framework's, a job's or a pool's limit is reached", when="memory is free"),
        pages=["guides/oom.md"],
    ),
    statement(
        "Its cause is often a leak or something unreleased in the driver itself, not a process.",
        affirms("reset-needed", when="memory of dead processes: living ones hold it"),
        denies("managed-pieces", when="managed memory: the driver keeps the rest of its piece"),
        pages=["guides/oom.md", "concepts/managed-memory.md"],
    ),
    statement(
        "Device memory stays allocated until it is freed explicitly.",
        denies("lost-pointer", when="while its process lives"),
        affirms("exit-without-free", when="after its end"),
    ),
    statement(
        "Device memory is what runs out most often.",
        right("other limits exist, and vram oom tells them apart by their messages"),
        pages=["guides/oom.md"],
    ),
    statement(
        "Pinned memory is host memory that cannot be paged out, which makes transfers fast.",
        denies("pinned-counts", when="it is the host's memory"),
        less("managed-slower", "copy from pinned memory", "copy", when="transfers"),
        right("so its call is documented", when="it cannot be paged out"),
    ),
    statement(
        "Pinned memory that is badly managed helps to exhaust memory.",
        affirms("pinned-counts", when="the device's"),
        right("what is pinned cannot be paged out", when="the host's"),
        pages=["guides/oom.md"],
    ),
    statement(
        "Allocations and streams belong to a context.",
        affirms("context-close-frees", when="cudaMalloc"),
        affirms("reset-pools", when="cudaMallocAsync: pools belong to the process"),
        right("a stream is made in the current context, as documented", when="streams"),
        pages=["concepts/what-a-context-costs.md"],
    ),
    statement(
        "A badly managed context can keep memory after its program has ended.",
        affirms("context-outlives", when="no other process has its files"),
        denies("fork-harmless", when="a forked child has them"),
        pages=["questions/out-of-memory.md"],
    ),
    statement(
        "The driver keeps account of what is allocated.",
        refuses("double-free", "answer"),
    ),
    statement(
        "What earlier sessions left allocated can be the reason for an out-of-memory error.",
        affirms("exception-across-runs", when="sessions that are gone"),
        denies("fork-harmless", when="a child of theirs lives on"),
        pages=["reference/rules/VR101.md", "reference/commands/check.md"],
    ),
    statement(
        "So can contexts that were not closed properly.",
        denies("context-free-of-charge", when="their process lives"),
        affirms("context-outlives", when="their process is gone"),
        pages=["concepts/what-a-context-costs.md"],
    ),
    statement(
        "Program 1 (an exception skips cudaFree of 1 GiB): memory stays allocated and adds up over runs.",
        leaves(EXCEPTION, when="this program"),
        affirms("exception-across-runs", when="three runs"),
        kind="program",
        pages=["questions/out-of-memory.md"],
    ),
    statement(
        "In program 1 it is the exception that leaves memory allocated.",
        affirms("failed-alloc-keeps", when="it comes only where cudaMalloc failed"),
        goes(EXCEPTION, "allocated", "after the try block", GIB, when="without one it would be freed"),
        pages=["guides/contexts.md"],
    ),
    statement(
        "Free the pointer also where cudaMalloc failed, although it has no value then.",
        affirms("failed-alloc-keeps", when="there is something to free"),
        affirms("failed-alloc-pointer", when="it does no harm"),
        kind="technique",
        pages=["guides/cpp.md"],
    ),
    statement(
        "Error handling must include cleaning up.",
        affirms("exception-in-process", when="in a process that goes on"),
        affirms("fault-free", when="after a sticky error: frees fail too"),
        affirms("exception-across-runs", when="in one that ends with the error"),
        kind="technique",
        pages=["guides/scopes.md", "guides/contexts.md"],
    ),
    statement(
        "Program 2 (cudaFree(nullptr), then cudaDeviceReset): neither releases what is allocated.",
        denies("free-null-flushes", when="cudaFree(nullptr)"),
        stays(RESET_ONLY, "cudaFree(nullptr)", "reset", when="cudaDeviceReset, of what this program holds"),
        kind="program",
    ),
    statement(
        "cudaDeviceReset does not guarantee that everything is released.",
        denies("reset-primary", when="plain and managed memory, and the context"),
        denies("reset-pools", when="memory of cudaMallocAsync"),
        affirms("reset-not-enough", when="another context, cuMemCreate or an exported handle"),
        denies("reset-reaches-others", when="other processes' memory"),
        pages=["questions/out-of-memory.md"],
    ),
    statement(
        "Libraries can keep memory that the program's own code never allocated.",
        affirms("torch-workspaces"),
        pages=["guides/inside.md"],
    ),
    statement(
        "Program 3 (a library that uses CUDA inside): what it keeps does not show in the program's code.",
        gains(LIBRARY, "used once", "used twice", 64 * MIB, when="while the process lives"),
        leaves_nothing(LIBRARY, when="when it has ended"),
        kind="program",
        pages=["guides/inside.md"],
    ),
    statement(
        "Finding such leaks takes tools for memory analysis.",
        right("vram inside and vram.live() name arrays; compute-sanitizer names the call"),
        pages=["guides/leaks.md", "guides/inside.md"],
    ),
    statement(
        "Free every allocation, also on the paths that exceptions take.",
        denies("lost-pointer", when="a raw pointer in a process that goes on"),
        denies("owner-object", when="memory with an owner object: by hand it is not needed"),
        affirms("exit-without-free", when="a process that ends"),
        kind="technique",
        pages=["guides/buffer.md"],
    ),
    statement(
        "Destroy contexts when the work is done.",
        affirms("context-close-frees", when="the process goes on"),
        affirms("context-outlives", when="the process ends anyway"),
        kind="technique",
        pages=["guides/contexts.md"],
    ),
    statement(
        "Do not rely on implicit cleanup.",
        affirms("exit-without-free", when="of the operating system at exit"),
        denies("lost-pointer", when="of the driver in a live process"),
        kind="technique",
    ),
    statement(
        "Use Nsight Compute to find leaks.",
        wrong("it profiles kernels; compute-sanitizer --leak-check full and Nsight Systems see allocations"),
        kind="advice",
        pages=["guides/leaks.md"],
    ),
    statement(
        "As a last resort, reset the driver to purge what lingers.",
        affirms("reset-needed", when="a process holds it: to end that is enough"),
        right("one that hangs in the driver, or a pending row remap", when="no process can be ended for it"),
        kind="technique",
        pages=["guides/contexts.md", "guides/free.md"],
    ),
    statement(
        "Such a reset interrupts all CUDA programs.",
        affirms("reset-reaches-others", when="cudaDeviceReset: other processes go on"),
        right("it is refused while any process uses the GPU: none may run", when="nvidia-smi --gpu-reset"),
        pages=["guides/contexts.md"],
    ),
    statement(
        "Read how libraries are initialised and shut down.",
        right("each has its own calls, and some keep memory without them", when="in general"),
        affirms("torch-workspaces", when="PyTorch's workspaces"),
        kind="advice",
        pages=["guides/shut-down.md"],
    ),
    statement(
        "An old or damaged driver causes memory problems; update it first.",
        wrong(
            "no memory stayed behind that an update could release; find the holder first",
            when="left-over memory",
        ),
        right("an ended branch gets no fixes", when="driver faults"),
        kind="advice",
        pages=["reference/doctor.md"],
    ),
    statement(
        "Read the documentation of the CUDA toolkit and of Nsight Compute.",
        right("it says what each call promises", when="the toolkit's"),
        wrong("it is about kernels, not allocations", when="Nsight Compute's"),
        kind="advice",
        pages=["further-reading.md"],
    ),
    statement(
        "A small leak adds up silently; the cause is not what is running but what was forgotten.",
        denies("lost-pointer", when="inside a process that goes on"),
        affirms("exception-across-runs", when="from run to run"),
        affirms("reset-needed", when="without any living holder"),
        pages=["guides/watch.md", "guides/scopes.md"],
    ),
)
