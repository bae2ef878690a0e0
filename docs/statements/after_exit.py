"""Why memory is not free after a program ended: what the article says."""

from __future__ import annotations

from statements.judge import affirms, denies, goes, leaves, leaves_nothing, right, statement, stays, wrong
from vram.units import GIB

FREE, RESET = "after-exit/1_free_as_written", "after-exit/2_reset_as_written"
MANAGED = "after-exit/3_managed_as_written"

STATEMENTS = (
    statement(
        "GPU memory is not cleared by itself between tasks, nor when a program ends.",
        affirms("exit-without-free", when="the program has ended"),
        denies("lost-pointer", when="the program goes on and has not freed it"),
        pages=["questions/after-exit.md"],
    ),
    statement(
        "The reason is that the GPU works asynchronously, on a schedule of its own.",
        denies("free-waits", when="cudaFree"),
        denies("async-free-at-once", when="cudaFreeAsync"),
        pages=["concepts/who-keeps-memory.md"],
    ),
    statement(
        "The driver buffers allocations, pools and caches them, to hand them out again faster.",
        affirms("free-keeps", when="cudaMalloc"),
        affirms("pool-keeps-by-default", when="cudaMallocAsync, untouched settings"),
        affirms("pool-keeps", when="a pool with a release threshold"),
        pages=["concepts/pools-and-fragmentation.md"],
    ),
    statement(
        "The end of a program does not mean that its memory is released at once.",
        affirms("kill-nine", when="nobody else holds it"),
        denies("fork-harmless", when="a forked child lives on"),
        affirms("ipc-survives", when="another process opened it by IPC"),
        pages=["questions/after-exit.md", "reference/rules/VR101.md"],
    ),
    statement(
        "A dead process's host memory returns quickly, its GPU memory does not.",
        affirms("kill-nine", when="it was killed"),
        affirms("crash", when="it crashed"),
        affirms("zombie", when="it is a zombie"),
        denies("fork-harmless", when="a forked child of it lives on"),
        pages=["questions/after-exit.md"],
    ),
    statement(
        "The driver stands in between, and carries out every allocation and every free.",
        right("every CUDA call about memory ends in an ioctl on the driver's device files"),
        pages=["concepts/who-keeps-memory.md"],
    ),
    statement(
        "Memory that a kernel was given stays allocated when the kernel has finished, for kernels to come.",
        affirms("kernel-keeps", when="local memory of its threads"),
        affirms("contents-stay", when="what the program allocated for it"),
        pages=["concepts/what-a-context-costs.md"],
    ),
    statement(
        "A free that the CPU issues may be carried out by the GPU much later.",
        denies("free-waits", when="cudaFree"),
        denies("async-free-at-once", when="cudaFreeAsync"),
        pages=["questions/flush.md"],
    ),
    statement(
        "It is no leak: such memory is not lost.",
        denies("exit-without-free", when="the program has ended"),
        affirms("lost-pointer", when="the program goes on and has lost the pointer"),
        pages=["questions/threads.md"],
    ),
    statement(
        "Freed memory is reserved, and other processes cannot have it until the driver reclaims it.",
        affirms("freed-for-others", when="256 MiB of cudaMalloc"),
        denies("small-fragments", when="small pieces of cudaMalloc: others in the same 2 MiB live"),
        affirms("pool-keeps", when="freed into a pool that keeps what it gets"),
        denies("async-free-at-once", when="cudaFreeAsync: until the program synchronises"),
        denies("managed-pieces", when="managed memory: the rest of a piece of 128 MiB"),
        pages=["questions/flush.md", "concepts/pools-and-fragmentation.md"],
    ),
    statement(
        "How long memory stays depends on driver, operating system and GPU.",
        right(
            "one GPU under one driver was measured: it cannot refute this. Under WSL2 Windows' driver decides"
        ),
        pages=["guides/lab.md", "guides/wsl2.md"],
    ),
    statement(
        "Launching kernels again and again uses memory up.",
        affirms("launches-grow", when="an empty kernel"),
        affirms("deep-launches-grow", when="a kernel with local memory: each launch after the first"),
        affirms("kernel-keeps", when="its first launch"),
        denies("lost-pointer", when="what the program allocates for each launch and does not free"),
        pages=["concepts/what-a-context-costs.md"],
    ),
    statement(
        "Programs that each handle their memory well can together fill the GPU over time.",
        affirms("exception-across-runs", when="run one after the other"),
        denies("context-free-of-charge", when="all alive: each costs a context"),
        pages=["questions/out-of-memory.md", "reference/rules/VR205.md"],
    ),
    statement(
        "These principles hold for other frameworks of GPU computing too, such as OpenCL and ROCm.",
        right("the kernel closes a dead process's files there too", when="the end of a process"),
        right("its calls are CUDA's: hipFree waits, hipMallocAsync has a pool", when="ROCm"),
        wrong("it has no reset: an object goes with its last reference and last command", when="OpenCL"),
        pages=["guides/amd-intel.md"],
    ),
    statement(
        "Program 1 (cudaMalloc of 1 GiB, cudaFree): after the free the driver may hold the block.",
        stays(FREE, "allocated", "freed", GIB, when="this program"),
        affirms("free-keeps", when="256 MiB"),
        kind="program",
    ),
    statement(
        "After program 1 has ended, tools will likely show memory that is left over.",
        leaves(FREE, when="this program"),
        affirms("context-outlives", when="a context that is not destroyed"),
        pages=["reference/commands/why.md"],
    ),
    statement(
        "Calling cudaDeviceSynchronize before cudaFree releases memory more surely.",
        affirms("sync-before-free"),
        kind="technique",
        pages=["questions/flush.md"],
    ),
    statement(
        "Program 2 (synchronize, free, cudaDeviceReset): the reset clears whatever is left.",
        goes(RESET, "allocated", "reset", when="this program"),
        affirms("reset-primary", when="plain and managed memory, and the context"),
        affirms("reset-pools", when="memory of cudaMallocAsync"),
        denies("reset-not-enough", when="another context, cuMemCreate or an exported handle"),
        kind="program",
        pages=["questions/out-of-memory.md"],
    ),
    statement(
        "Program 3 (cudaMallocManaged): managed memory goes back at the end of the program, or by its free.",
        leaves_nothing(MANAGED, when="this program"),
        affirms("managed-prefetch", when="its free"),
        affirms("managed-at-exit", when="the end of the program, if no other uses CUDA"),
        denies("managed-outlives", when="the end of the program, while another uses CUDA"),
        kind="program",
        pages=["concepts/managed-memory.md"],
    ),
    statement(
        "Managed memory can be used by CPU and GPU alike.",
        affirms("managed-both-sides"),
        pages=["concepts/managed-memory.md"],
    ),
    statement(
        "The driver moves managed data between host and device as they are needed.",
        denies("managed-first-touch", when="they stay on the host while only the host uses them"),
        denies("managed-on-allocation", when="to the device, when it touches them"),
        affirms("managed-both-sides", when="back, when the host uses them"),
        pages=["concepts/managed-memory.md"],
    ),
    statement(
        "With managed memory, memory that stays behind is less likely.",
        affirms("exit-without-free", when="compared with plain memory"),
        kind="technique",
    ),
    statement(
        "Managed memory can be slower, so the choice depends on the program.",
        denies("managed-faults", when="kernels fault pages in"),
        affirms("managed-slower", when="prefetched"),
        pages=["concepts/managed-memory.md"],
    ),
    statement(
        "Read the vendor's documentation, and learn about memory models and operating systems.",
        right("who holds memory is decided by open files, which is the operating system's part of it"),
        kind="advice",
        pages=["further-reading.md", "concepts/who-keeps-memory.md"],
    ),
    statement(
        "Zero-copy transfers and pinned memory are worth knowing.",
        right("for speed", when="transfers"),
        denies("pinned-counts", when="device memory: they take none"),
        kind="advice",
    ),
    statement(
        "To know GPU profilers is crucial for finding patterns of memory use, and bottlenecks.",
        right("Nsight Systems shows them, with --cuda-memory-usage", when="patterns of one program"),
        right("Nsight Compute is made for that", when="bottlenecks of kernels"),
        wrong("a profiler shows its own program, not who else holds memory", when="memory that stays"),
        kind="advice",
        pages=["guides/leaks.md"],
    ),
)
