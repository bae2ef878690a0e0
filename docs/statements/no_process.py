"""Why memory is in use when no process is listed: what the article says."""

from __future__ import annotations

from statements.judge import (
    affirms,
    compiles,
    compiles_as_cuda,
    denies,
    leaves,
    refuses,
    right,
    statement,
    takes,
    wrong,
)
from vram.units import MIB

SMALL, SMALL_MANAGED, FREE_NULL = (
    "no-process/1_small_as_written",
    "no-process/2_small_managed_as_written",
    "no-process/3_free_null_as_written",
)

STATEMENTS = (
    statement(
        "GPU memory can be allocated without a process that belongs to it.",
        affirms("exported-handle", when="as far as the driver's lists show"),
        affirms("exit-without-free", when="with no process holding it at all"),
        pages=["questions/no-process.md", "reference/rules/VR103.md"],
    ),
    statement(
        "A process gets GPU memory through CUDA, not from the operating system as it gets host memory.",
        right("yet the kernel's file table decides when it is released"),
        pages=["concepts/who-keeps-memory.md"],
    ),
    statement(
        "Memory is not managed for each GPU thread, since that would cost too much.",
        right("cudaMalloc serves the process", when="allocations"),
        denies("kernel-keeps", when="local memory: set aside for every thread that could run"),
        pages=["concepts/what-a-context-costs.md"],
    ),
    statement(
        "Allocations are made by calls of the host such as cudaMalloc, not by the threads of the GPU.",
        takes("free-keeps", "context", "allocated", 256 * MIB, when="cudaMalloc"),
        denies("kernel-malloc", when="malloc in a kernel"),
        pages=["concepts/where-do-my-bytes-go.md"],
    ),
    statement(
        "cudaMalloc, cudaMallocManaged and cudaMallocPitch all take memory of the device.",
        takes("free-keeps", "context", "allocated", 256 * MIB, when="cudaMalloc"),
        takes("pitched-keeps", "context", "allocated", 256 * MIB, when="cudaMallocPitch"),
        affirms("managed-on-allocation", when="cudaMallocManaged"),
        pages=["concepts/where-do-my-bytes-go.md"],
    ),
    statement(
        "An allocation belongs to no process's address space: every kernel on the GPU can reach it.",
        affirms("contents-stay", when="work of the same process"),
        affirms("pointer-elsewhere", when="another process, by the address"),
        affirms("ipc-contents", when="another process that has opened it by IPC"),
        pages=["questions/no-process.md"],
    ),
    statement(
        "Memory, above all that of cudaMalloc, may stay allocated after its process has ended, since the"
        " driver works on independently.",
        affirms("exit-without-free", when="nobody else holds it"),
        denies("fork-harmless", when="a forked child lives on"),
        affirms("exported-handle", when="it was exported to another process"),
        pages=["questions/after-exit.md", "guides/free.md"],
    ),
    statement(
        "Managed memory is handled by the driver beyond the life of a single process.",
        denies("managed-at-exit", when="no other process uses CUDA"),
        affirms("managed-outlives", when="another process uses CUDA"),
        pages=["reference/rules/VR207.md", "concepts/managed-memory.md"],
    ),
    statement(
        "The driver keeps account of allocations and prevents conflicts between them.",
        refuses("double-free", "answer", when="a second free"),
        denies("pointer-elsewhere", when="another process that copies from an address"),
    ),
    statement(
        "The driver makes room by paging memory out.",
        wrong("NVIDIA documents no paging for it, and more than the GPU has is refused", when="plain memory"),
        right(
            "documented; the lab asks for more than the GPU has and does not fill it, so no paging was seen",
            when="managed memory on Linux",
        ),
        pages=["questions/no-process.md", "concepts/managed-memory.md"],
    ),
    statement(
        "The driver collects garbage: memory that is not used any more.",
        affirms("lost-pointer"),
        pages=["guides/live.md"],
    ),
    statement(
        "Memory is freed by cudaFree, or implicitly by the driver.",
        denies("free-keeps", when="cudaFree"),
        denies("exit-without-free", when="the end of the process"),
        affirms("context-close-frees", when="the end of its context"),
    ),
    statement(
        "Kernels of different processes share memory efficiently.",
        affirms("pointer-elsewhere", when="by pointer"),
        denies("ipc-counted-twice", when="by IPC handle: opening takes no memory again"),
        pages=["guides/keep-memory.md", "reference/rules/VR206.md"],
    ),
    statement(
        "Data stay in memory from one kernel to the next.",
        affirms("contents-stay"),
    ),
    statement(
        "They stay even when the process that wrote them has finished.",
        affirms("old-data-across", when="nobody holds the memory"),
        affirms("ipc-contents", when="another process has opened it"),
        pages=["guides/buffer.md"],
    ),
    statement(
        "Memory can be kept beyond the life of any one process, which some systems need.",
        affirms("exported-handle", when="another process holds a handle"),
        affirms("exit-without-free", when="no process holds anything"),
        pages=["guides/keep-memory.md"],
    ),
    statement(
        "Program 1 (cudaMalloc of 4 KiB, cudaFree): memory stays allocated after main has returned.",
        leaves(SMALL),
        kind="program",
        pages=["questions/after-exit.md"],
    ),
    statement(
        "Without cudaFree there is a memory leak.",
        denies("lost-pointer", when="while the process lives"),
        affirms("exit-without-free", when="after its end"),
        kind="technique",
        pages=["guides/scopes.md"],
    ),
    statement(
        "Program 2 (cudaMallocManaged): CPU and GPU share it without copies, and it outlives the process.",
        affirms("managed-both-sides", when="without copies"),
        denies("managed-at-exit", when="beyond the process, if no other uses CUDA"),
        affirms("managed-outlives", when="beyond the process, while another uses CUDA"),
        kind="program",
    ),
    statement(
        "The runtime handles synchronisation and page faults of managed memory internally.",
        denies("managed-on-allocation", when="page faults: memory comes when it is touched"),
        wrong("the program has to wait for the device before it reads on the host", when="synchronisation"),
        pages=["concepts/managed-memory.md"],
    ),
    statement(
        "Program 3 (cudaFree(0) first): even a harmless call like this one can return an error.",
        affirms("free-null-fails", when="in a healthy context"),
        denies("free-null-never-fails", when="after a failed kernel, or where no context can be made"),
        kind="program",
        pages=["questions/no-process.md"],
    ),
    statement(
        "Contexts have to be managed properly, or memory leaks.",
        denies("second-context", when="while the process lives: each costs as much again"),
        affirms("context-outlives", when="after its end"),
        pages=["guides/contexts.md", "concepts/what-a-context-costs.md"],
    ),
    statement(
        "Whether an allocation succeeds is the driver's decision, not the calling process's alone.",
        denies("larger-than-the-gpu"),
        pages=["guides/oom.md"],
    ),
    statement(
        "The three programs, which include cuda.h alone, compile as they are.",
        compiles(SMALL, when="program 1, as C++"),
        compiles(SMALL_MANAGED, when="program 2, as C++"),
        compiles(FREE_NULL, when="program 3, as C++"),
        compiles_as_cuda(SMALL, when="program 1, by nvcc as a .cu file"),
        compiles_as_cuda(SMALL_MANAGED, when="program 2, by nvcc as a .cu file"),
        compiles_as_cuda(FREE_NULL, when="program 3, by nvcc as a .cu file"),
        kind="program",
        pages=["questions/no-process.md"],
    ),
    statement(
        "Read NVIDIA's guides, and about operating systems, the runtime and the inside of the driver.",
        right("the driver's kernel modules are open source, and say when memory is released"),
        kind="advice",
        pages=["further-reading.md"],
    ),
)
