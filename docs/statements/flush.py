"""How to flush GPU memory, under WSL2 or anywhere: what the article says."""

from __future__ import annotations

from statements.judge import affirms, denies, frees_at_most, goes, right, statement, stays, wrong
from vram.units import MIB

FREE, ZERO, TWO = "flush/1_free_as_written", "flush/2_zero_as_written", "flush/3_two_as_written"
ARRAY = 4 * MIB

STATEMENTS = (
    statement(
        "No single function of CUDA flushes all of the GPU's memory.",
        denies("free-null-flushes", when="cudaFree(nullptr)"),
        denies("reset-reaches-others", when="cudaDeviceReset: not what other processes hold"),
        right("the runtime's and the driver's documentation have none", when="any other function"),
        pages=["questions/flush.md"],
    ),
    statement(
        "Clearing it takes care of allocation, transfer and freeing, host buffers included.",
        denies("free-keeps", when="freeing"),
        affirms("pinned-counts", when="host buffers"),
        pages=["questions/flush.md"],
    ),
    statement(
        "WSL2 adds a layer of virtualisation between CUDA and Windows' driver.",
        right("one device, /dev/dxg, leads to Windows' driver"),
        pages=["guides/wsl2.md"],
    ),
    statement(
        "That does not change the principles of CUDA's memory management.",
        right("allocating and freeing are the same calls", when="inside one process"),
        wrong(
            "no figures per process, limited pinned memory, IPC reported to fail, memory may go to the host",
            when="limits",
        ),
        pages=["guides/wsl2.md"],
    ),
    statement(
        "Badly managed memory makes streams and programs compete for it.",
        right("what one process holds, no other can have", when="before the free"),
        denies("freed-for-others", when="after the free"),
        pages=["guides/shared-machines.md"],
    ),
    statement(
        "Under WSL2, moving data between its file system and the driver can be the bottleneck.",
        right("files of Windows, /mnt/c, are slow to read", when="/mnt/c"),
        wrong(
            "its own file system is Linux's, and the GPU is not involved in reading files",
            when="ext4 of WSL2",
        ),
        pages=["guides/wsl2.md"],
    ),
    statement(
        "Free memory explicitly with cudaFree when it is not needed any more.",
        denies("free-keeps"),
        kind="technique",
        pages=["questions/flush.md"],
    ),
    statement(
        "It is not enough that a variable goes out of scope.",
        denies("lost-pointer", when="a raw pointer"),
        denies("owner-object", when="an owner object"),
        pages=["guides/buffer.md"],
    ),
    statement(
        "The operating system can be late in taking GPU memory back.",
        affirms("kill-nine", when="the process is gone"),
        affirms("stopped", when="the process is only stopped"),
        denies("fork-harmless", when="the process is gone, and a forked child lives on"),
        pages=["questions/after-exit.md"],
    ),
    statement(
        "cudaFree tells the driver that the memory can be used again.",
        denies("freed-for-others"),
    ),
    statement(
        "Check every call for errors.",
        denies("fault-free", when="a free that fails says so only in its answer"),
        denies("free-reports-kernel", when="and it may report an earlier kernel's error"),
        kind="technique",
        pages=["guides/contexts.md"],
    ),
    statement(
        "Program 1 (cudaMalloc, cudaFree): the memory is available again after the free.",
        goes(FREE, "allocated", "freed", ARRAY, when="this program"),
        denies("freed-for-others", when="for other processes too"),
        kind="program",
    ),
    statement(
        "Program 1 allocates 1 MB of data, says its comment.",
        frees_at_most(FREE, "allocated", "freed", MIB),
        kind="program",
    ),
    statement(
        "A free concerns the memory of its own pointer alone.",
        stays(TWO, "first allocated", "first freed", ARRAY, when="the other array"),
        goes(TWO, "first freed", "second freed", ARRAY, when="after its own free"),
        pages=["questions/flush.md"],
    ),
    statement(
        "Program 2 (cudaMemset to zero, cudaFree): all bytes are zero before they are released.",
        goes(ZERO, "allocated", "freed", ARRAY, when="released"),
        affirms("zero-before-free", when="zero"),
        kind="program",
        pages=["guides/buffer.md"],
    ),
    statement(
        "Zeroing is not needed to free memory.",
        denies("free-keeps"),
    ),
    statement(
        "Zeroing protects sensitive data from the next owner of the memory.",
        affirms("old-data-pool", when="a pool, same process"),
        affirms("torch-old-data", when="PyTorch's cache, same process"),
        affirms("old-data-small", when="small pieces of plain memory, same process"),
        affirms("old-data-plain", when="64 MiB of plain memory, same process"),
        affirms("old-data-across", when="128 MiB of plain memory, another process"),
        affirms("zero-before-free", when="what was zeroed shows nothing"),
        kind="technique",
        pages=["guides/buffer.md"],
    ),
    statement(
        "Zeroing gives later allocations from the same pool a known beginning.",
        affirms("zero-before-free", when="with it"),
        affirms("old-data-pool", when="without it the beginning is the old bytes"),
        kind="technique",
        pages=["guides/buffer.md"],
    ),
    statement(
        "Program 3 (two arrays, several streams): each allocation needs its own free, or memory leaks.",
        goes(TWO, "second allocated", "second freed", 2 * ARRAY, when="with both frees"),
        denies("lost-pointer", when="without, while the process lives"),
        kind="program",
    ),
    statement(
        "cudaFree is synchronous: what follows runs when the memory is free.",
        affirms("free-waits"),
        pages=["questions/flush.md"],
    ),
    statement(
        "It is so with several streams too.",
        affirms("free-waits-for-streams"),
    ),
    statement(
        "Read the CUDA programming guide, the best practices guide and the WSL2 documentation.",
        right("NVIDIA's page on WSL lists what does not work there"),
        kind="advice",
        pages=["further-reading.md", "guides/wsl2.md"],
    ),
)
