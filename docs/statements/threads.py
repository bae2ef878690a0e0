"""Why memory stays after a thread has ended: what the article says."""

from __future__ import annotations

from statements.judge import affirms, denies, gains, proves, right, runs, statement
from vram.units import MIB

NO_FREE, MEM_FREE, FINALIZER = (
    "threads/1_no_free_as_written",
    "threads/2_mem_free_as_written",
    "threads/3_finalizer_as_written",
)
ALL_THREADS = 5 * 4 * MIB

STATEMENTS = (
    statement(
        "CUDA memory does not follow the life of the Python thread that allocated it.",
        denies("thread-end-frees"),
        pages=["questions/threads.md"],
    ),
    statement(
        "Therefore it has to be freed explicitly.",
        denies("thread-end-frees", when="raw pointers"),
        denies("owner-object", when="memory with an owner object"),
        kind="technique",
        pages=["guides/buffer.md"],
    ),
    statement(
        "The driver knows nothing of Python's interpreter or garbage collector.",
        denies("lost-pointer"),
    ),
    statement(
        "When a thread ends, Python drops its objects and does not tell the driver to free their memory,"
        " since reference counts concern the wrapper alone.",
        denies("owner-object", when="an object whose destructor frees"),
        denies("thread-end-frees", when="a bare pointer"),
        denies("numba-del", when="Numba: freed later"),
        denies("cupy-del", when="CuPy: kept in its pool"),
        affirms("pycuda-thread", when="PyCUDA, dropped after its context was popped"),
        denies("pycuda-inner-function", when="PyCUDA, dropped while its context is current"),
        pages=["questions/threads.md", "guides/trim.md"],
    ),
    statement(
        "The cause is that device memory and Python's memory lie in different address spaces.",
        denies("owner-object", when="an owner object in Python frees it all the same"),
    ),
    statement(
        "Device memory is allocated in the physical address space of the GPU.",
        affirms("addresses-cost", when="addresses would cost memory"),
        affirms("pointer-elsewhere", when="an address would mean the same in every process"),
        pages=["concepts/where-do-my-bytes-go.md"],
    ),
    statement(
        "Device memory remains when the Python object with its pointer is gone.",
        denies("lost-pointer", when="the pointer is a number"),
        denies("owner-object", when="the object owns it"),
        pages=["guides/buffer.md"],
    ),
    statement(
        "That a thread has ended is no reason for the driver to release its memory.",
        denies("thread-end-frees"),
    ),
    statement(
        "To have the memory back, explicit calls of the CUDA API must be made.",
        affirms("thread-frees", when="they work"),
        denies("owner-object", when="they are needed although there is an owner"),
        kind="technique",
        pages=["guides/scopes.md"],
    ),
    statement(
        "PyCUDA and CuPy have methods for it.",
        affirms("pycuda-free", when="DeviceAllocation.free() of PyCUDA"),
        right("free_all_blocks() of the pool", when="CuPy"),
        pages=["guides/trim.md"],
    ),
    statement(
        "Without frees GPU memory becomes fragmented.",
        denies("small-fragments", when="pieces under 2 MiB share blocks"),
        affirms("large-fragments", when="larger pieces"),
        pages=["concepts/pools-and-fragmentation.md"],
    ),
    statement(
        "Many threads that allocate and end use memory up, until allocations elsewhere fail.",
        denies("thread-end-frees", when="raw pointers"),
        denies("owner-object", when="memory with an owner object"),
        pages=["guides/oom.md"],
    ),
    statement(
        "Program 1 (five threads, cuda.mem_alloc of 4 MiB each): the memory is still allocated at its end.",
        gains(NO_FREE, "context", "threads ended", ALL_THREADS, when="as written"),
        affirms(
            "pycuda-thread", when="with its context pushed in the thread, and popped before it is dropped"
        ),
        kind="program",
        pages=["questions/threads.md"],
    ),
    statement(
        "It is still allocated since cuda.mem_free was not called.",
        affirms("pycuda-mem-free", when="there is such a call"),
        affirms("pycuda-autoinit-threads", when="the threads could allocate"),
        pages=["questions/threads.md"],
    ),
    statement(
        "Running program 1 again and again ends in out-of-memory errors.",
        affirms("exception-across-runs", when="three runs"),
        affirms("exit-without-free", when="one run that frees nothing"),
        pages=["questions/out-of-memory.md"],
    ),
    statement(
        "Program 2 (the same, with cuda.mem_free in the thread) frees the memory.",
        affirms("thread-frees", when="a free in the thread"),
        runs(MEM_FREE, when="as written"),
        kind="program",
        pages=["questions/threads.md"],
    ),
    statement(
        "What the programs print when their threads have ended confirms what became of the memory.",
        proves(NO_FREE, "the threads have ended, their memory stays", when="program 1"),
        proves(MEM_FREE, "the threads have ended, their memory is free", when="program 2"),
        proves(FINALIZER, "the threads have ended, their memory is free", when="program 3"),
        kind="program",
        pages=["questions/threads.md"],
    ),
    statement(
        "After an explicit free in the thread, its memory is the driver's again.",
        affirms("thread-frees", when="it is free"),
        denies("freed-for-others", when="for other processes too"),
        kind="technique",
    ),
    statement(
        "Program 3 (a class that frees in `__del__`) frees the memory.",
        affirms("owner-object", when="a destructor that frees"),
        runs(FINALIZER, when="as written"),
        kind="program",
    ),
    statement(
        "The destructor runs when the thread's function returns, without del.",
        affirms("owner-object", when="nothing else refers to the object"),
        denies("exception-in-process", when="an exception keeps its frame"),
        pages=["guides/live.md"],
    ),
    statement(
        "An owner class lets the rest of the program forget about freeing.",
        affirms("owner-object", when="nothing else refers to the object"),
        affirms("torch-cycle", when="it is part of a reference cycle"),
        kind="technique",
        pages=["guides/buffer.md", "guides/scopes.md"],
    ),
    statement(
        "Read the documentation of PyCUDA and CUDA about allocation.",
        right("PyCUDA's says that a context belongs to a thread, which these programs miss"),
        kind="advice",
        pages=["further-reading.md"],
    ),
    statement(
        "Learn about Python's garbage collection, and study the examples of the libraries.",
        right("what keeps an array is a reference; vram.holders() names it"),
        kind="advice",
        pages=["guides/live.md"],
    ),
)
