"""A creation whose last step fails leaves nothing behind: every step of every creation is made to fail once.

A program tries each operation again and again: the first time its first internal step fails
(``step.* nth=1`` in the faults file), then its second one, until it succeeds. After each failure the
process must hold what it held before: memory, descriptors, mappings, files, and its entry in the folder.
"""

from __future__ import annotations

from collections.abc import Iterator
from textwrap import dedent, indent
from typing import Any, NamedTuple

import pytest

from tests.virtualgpu.programs import result, running
from vram.virtualgpu import VirtualGpu

pytestmark = pytest.mark.native

SETUP = '''
    PAGE = 2 * MIB
    FOLDER = os.environ["VRAM_VIRTUAL_GPU"]
    SANITIZED = "libasan" in os.environ.get("LD_PRELOAD", "")  # it reserves addresses of its own
    here = ctypes.byref
    prop = here(cuda.Prop(1, 1, 1, 0))

    def fail(line):
        with open(FOLDER + "/faults.new", "w") as file:
            file.write(line)
        os.rename(FOLDER + "/faults.new", FOLDER + "/faults")

    def headers():
        """What the folder has of this process: contexts, bytes, and allocations that others may keep."""
        for name in sorted(os.listdir(FOLDER + "/dev")):
            if name.startswith(("nvidia0.", "nvidia1.")):
                with open(f"{FOLDER}/dev/{name}", "rb") as file:
                    fields = file.read(112)
                if int.from_bytes(fields[12:16], "little") == os.getpid():
                    yield fields[56:60].hex() + fields[64:].hex()

    def mappings():
        """Those of the folder's files, and the addresses that are only reserved."""
        counts, reserved = {}, 0
        with open("/proc/self/maps") as maps:
            for line in maps:
                span, rights, *_, path = line.split(maxsplit=5) + [""] * (line.count(" ") < 6)
                begin, end = (int(part, 16) for part in span.split("-"))
                if FOLDER + "/dev" in line or FOLDER + "/memory" in line:
                    name = line.split()[5].replace(FOLDER, "")
                    counts[name] = counts.get(name, 0) + end - begin
                elif rights.startswith("---") and end - begin >= PAGE and not SANITIZED:
                    reserved += end - begin
        return [sorted(counts.items()), reserved]

    def state(also):
        used = cuda.used() if cuda.code("cuCtxGetDevice", here(ctypes.c_int())) == 0 else 0
        # Files with a number belong to somebody; those without are there for good.
        files = sorted(name for _, _, names in os.walk(FOLDER) for name in names if "." in name)
        return [used, len(os.listdir("/proc/self/fd")), files, list(headers()), mappings(), also()]

    def steps_of(operation, undo, also=lambda: None):
        """How many steps were made to fail until it worked, and the first difference that one left."""
        clean = state(also)
        for failing in range(1, 100):
            fail(f"step.* nth={failing} error=2")
            code, value = operation()
            fail("")
            if code == 0:
                undo(value)
                return failing - 1, None
            if state(also) != clean:
                return failing, [code, *(pair for pair in zip(clean, state(also)) if pair[0] != pair[1])]
        return 99, "it never worked"

    def written(kind, name, *arguments):
        value = kind()
        return cuda.code(name, here(value), *arguments), value.value if hasattr(value, "value") else value

    def u64(name, *arguments):
        return written(ctypes.c_uint64, name, *arguments)

    free = lambda address: cuda.call("cuMemFree_v2", address)
    nothing = lambda value: None
'''


class Operation(NamedTuple):
    """Lines that prepare it, and the arguments of ``steps_of``."""

    prepare: str
    call: str


OPERATIONS = {
    "a small allocation": Operation("", 'lambda: u64("cuMemAlloc_v2", 1000), free'),
    "a large allocation": Operation("", 'lambda: u64("cuMemAlloc_v2", 3 * PAGE), free'),
    "a small one beside another": Operation("cuda.alloc(1000)", 'lambda: u64("cuMemAlloc_v2", 1000), free'),
    "a pitched allocation": Operation(
        "pitch = here(ctypes.c_uint64())", 'lambda: u64("cuMemAllocPitch_v2", pitch, 1000, 1000, 4), free'
    ),
    "managed memory": Operation("", 'lambda: u64("cuMemAllocManaged", 3 * PAGE, 1), free'),
    "pinned memory": Operation(
        "", 'lambda: u64("cuMemHostAlloc", PAGE, 0), lambda address: cuda.call("cuMemFreeHost", address)'
    ),
    "registered memory": Operation(
        "own = ctypes.create_string_buffer(PAGE)",
        'lambda: (cuda.code("cuMemHostRegister_v2", own, PAGE, 0), own),'
        'lambda own: cuda.call("cuMemHostUnregister", own)',
    ),
    "first of a pool": Operation(
        'fresh = u64("cuMemPoolCreate", here(cuda.PoolProps(1, 1, 1, 0)))[1]',
        'lambda: u64("cuMemAllocFromPoolAsync", 1000, fresh, 0), free',
    ),
    "another of a pool": Operation(
        'u64("cuMemAllocAsync", 1000, 0)', 'lambda: u64("cuMemAllocAsync", 1000, 0), free'
    ),
    "first of a host pool": Operation(
        'host_pool = u64("cuMemPoolCreate", here(cuda.PoolProps(1, 0, 2, 0)))[1]',
        'lambda: u64("cuMemAllocFromPoolAsync", 1000, host_pool, 0), free',
    ),
    "a pool": Operation(
        "",
        'lambda: u64("cuMemPoolCreate", here(cuda.PoolProps(1, 1, 1, 0))),'
        'lambda pool: cuda.call("cuMemPoolDestroy", pool)',
    ),
    "reserved addresses": Operation(
        "",
        'lambda: u64("cuMemAddressReserve", PAGE, 0, 0, 0),'
        'lambda address: cuda.call("cuMemAddressFree", address, PAGE)',
    ),
    "physical memory": Operation(
        "", 'lambda: u64("cuMemCreate", PAGE, prop, 0), lambda handle: cuda.call("cuMemRelease", handle)'
    ),
    "a mapping": Operation(
        "handle, place = cuda.create(PAGE), cuda.reserve(PAGE)",
        'lambda: (cuda.code("cuMemMap", place, PAGE, 0, handle, 0), place),'
        'lambda address: cuda.call("cuMemUnmap", address, PAGE)',
    ),
    "access to two mappings": Operation(
        """
        pair = cuda.reserve(2 * PAGE)
        for place in (pair, pair + PAGE):
            cuda.call("cuMemMap", place, PAGE, 0, cuda.create(PAGE), 0)
        def access_flags():
            flags, where = ctypes.c_uint64(), (ctypes.c_int * 2)(1, 0)
            cuda.call("cuMemGetAccess", here(flags), where, pair)
            return flags.value
        """,
        'lambda: (cuda.code("cuMemSetAccess", pair, 2 * PAGE, (ctypes.c_int * 3)(1, 0, 3), 1), 0),'
        "nothing, access_flags",
    ),
    "an exported descriptor": Operation(
        "handle = cuda.create(PAGE)",
        'lambda: written(ctypes.c_int, "cuMemExportToShareableHandle", handle, 1, 0), os.close',
    ),
    "a dma-buf": Operation(
        "address = cuda.alloc(PAGE)",
        'lambda: written(ctypes.c_int, "cuMemGetHandleForAddressRange", address, PAGE, 1, 0), os.close',
    ),
    "an imported descriptor": Operation(
        "exported = cuda.export(cuda.create(PAGE))",
        'lambda: u64("cuMemImportFromShareableHandle", exported, 1),'
        'lambda handle: cuda.call("cuMemRelease", handle)',
    ),
    "a descriptor of a pool": Operation(
        'pool = u64("cuMemPoolCreate", here(cuda.PoolProps(1, 1, 1, 0)))[1]',
        'lambda: written(ctypes.c_int, "cuMemPoolExportToShareableHandle", pool, 1, 0), os.close',
    ),
    "a pointer of a pool": Operation(
        """
        pool = u64("cuMemPoolCreate", here(cuda.PoolProps(1, 1, 1, 0)))[1]
        piece = u64("cuMemAllocFromPoolAsync", PAGE, pool, 0)[1]
        """,
        'lambda: written(cuda.Opaque64, "cuMemPoolExportPointer", piece), nothing',
    ),
    "an IPC handle": Operation(
        "address = cuda.alloc(PAGE)", 'lambda: written(cuda.Opaque64, "cuIpcGetMemHandle", address), nothing'
    ),
    "an event": Operation(
        "", 'lambda: u64("cuEventCreate", 0), lambda event: cuda.call("cuEventDestroy_v2", event)'
    ),
    "an IPC event": Operation(
        'shared = u64("cuEventCreate", 6)[1]',
        'lambda: written(cuda.Opaque64, "cuIpcGetEventHandle", shared), nothing',
    ),
    "a stream": Operation(
        "", 'lambda: u64("cuStreamCreate", 0), lambda stream: cuda.call("cuStreamDestroy_v2", stream)'
    ),
    "a host function": Operation(
        """
        stream = u64("cuStreamCreate", 0)[1]
        ran = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(nothing)
        """,
        'lambda: (cuda.code("cuLaunchHostFunc", stream, ran, 0), 0),'
        'lambda value: cuda.call("cuStreamSynchronize", stream), lambda: cuda.code("cuStreamQuery", stream)',
    ),
    "a record behind work": Operation(
        """
        busy, event, gate = u64("cuStreamCreate", 0)[1], u64("cuEventCreate", 0)[1], threading.Event()
        blocks = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(lambda data: gate.wait())
        cuda.call("cuLaunchHostFunc", busy, blocks, 0)
        """,
        'lambda: (cuda.code("cuEventRecord", event, busy), 0), nothing,'
        'lambda: cuda.code("cuEventQuery", event)',
    ),
    "a wait for a record": Operation(
        'other = u64("cuStreamCreate", 1)[1]',
        'lambda: (cuda.code("cuStreamWaitEvent", other, event, 0), 0), nothing,'
        'lambda: cuda.code("cuStreamQuery", other)',
    ),
    "a fill behind other streams": Operation(
        "address = cuda.alloc(PAGE)",
        'lambda: (cuda.code("cuMemsetD8Async", address, 1, 16, 0), 0), lambda value: gate.set(),'
        'lambda: cuda.code("cuStreamQuery", 0)',
    ),
    "a context": Operation(
        'gate.set(); cuda.call("cuCtxSynchronize")',
        'lambda: u64("cuCtxCreate_v2", 0, 0), lambda context: cuda.call("cuCtxDestroy_v2", context)',
    ),
    "a primary context": Operation(
        'cuda.code("cuDevicePrimaryCtxGetState", 1, here(ctypes.c_int()), here(ctypes.c_int()))',
        'lambda: u64("cuDevicePrimaryCtxRetain", 1),'
        'lambda context: cuda.call("cuDevicePrimaryCtxRelease_v2", 1)',
    ),
}

# Everything that one process does with another's memory.
IMPORTS = {
    "an IPC handle that is opened": Operation(
        "",
        'lambda: u64("cuIpcOpenMemHandle_v2", handle, 1),'
        'lambda address: cuda.call("cuIpcCloseMemHandle", address)',
    ),
    "an IPC event that is opened": Operation(
        "",
        'lambda: u64("cuIpcOpenEventHandle", event),lambda event: cuda.call("cuEventDestroy_v2", event)',
    ),
    "an imported pool": Operation(
        "",
        'lambda: u64("cuMemPoolImportFromShareableHandle", of_pool, 1, 0),'
        'lambda pool: cuda.call("cuMemPoolDestroy", pool)',
    ),
    "an imported pointer": Operation(
        'pool = u64("cuMemPoolImportFromShareableHandle", of_pool, 1, 0)[1]',
        'lambda: u64("cuMemPoolImportPointer", pool, here(pointer)), free',
    ),
}

START = """
    cuda.start()
    u64("cuMemAllocAsync", 1000, 0)  # the current pool comes to be
"""

MAKER = """
    cuda.start()
    handle, event, pointer = (cuda.Opaque64() for _ in "123")
    cuda.call("cuIpcGetMemHandle", ctypes.byref(handle), cuda.alloc(2 * MIB))
    cuda.call("cuIpcGetEventHandle", ctypes.byref(event), cuda.out(ctypes.c_uint64, "cuEventCreate", 6))
    pool = cuda.out(ctypes.c_uint64, "cuMemPoolCreate", ctypes.byref(cuda.PoolProps(1, 1, 1, 0)))
    piece = cuda.out(ctypes.c_uint64, "cuMemAllocFromPoolAsync", 2 * MIB, pool, 0)
    cuda.call("cuMemPoolExportPointer", ctypes.byref(pointer), piece)
    of_pool = cuda.out(ctypes.c_int, "cuMemPoolExportToShareableHandle", pool, 1, 0)
    cuda.tell([[bytes(each).hex() for each in (handle, event, pointer)], os.getpid(), of_pool])
    cuda.heard()
"""

RECEIVE = """
    texts, maker, number = ARGUMENTS
    handle, event, pointer = (cuda.Opaque64.from_buffer_copy(bytes.fromhex(text)) for text in texts)
    of_pool = os.open(f"/proc/{maker}/fd/{number}", os.O_RDONLY)
    cuda.start()
"""


def program(start: str, operations: dict[str, Operation]) -> str:
    parts = [dedent(SETUP), dedent(start), "answers = {}"]
    for name, operation in operations.items():
        parts += [dedent(operation.prepare), f"answers[{name!r}] = steps_of({operation.call})"]
    return indent("\n".join([*parts, "cuda.tell(answers)"]), "    ")


@pytest.fixture(scope="module")
def answers() -> Iterator[dict[str, Any]]:
    """For each operation: how many steps of it failed, and what the first of them left behind."""
    with (
        VirtualGpu.create(gpus=2) as gpu,
        VirtualGpu.create() as shared,
        pytest.MonkeyPatch.context() as patch,
    ):
        patch.setenv("MALLOC_ARENA_MAX", "1")  # a thread's own arena would look like reserved addresses
        own = result(gpu, program(START, OPERATIONS))
        with running(shared, MAKER) as maker:
            received = RECEIVE.replace("ARGUMENTS", repr(maker.told()))
            yield own | result(shared, program(received, IMPORTS))


@pytest.mark.parametrize("operation", [*OPERATIONS, *IMPORTS])
def test_a_late_failure_leaves_nothing_behind(answers: dict[str, Any], operation: str) -> None:
    steps, left = answers[operation]
    assert left is None
    assert steps > 0, "nothing of it can be made to fail"


INITIALISE = {
    "cuInit": Operation("", 'lambda: (cuda.code("cuInit", 0), 0), nothing'),
    "nvmlInit": Operation(
        'nvml = ctypes.CDLL("libnvidia-ml.so.1")',
        "lambda: (nvml.nvmlInit_v2(), 0), lambda value: nvml.nvmlShutdown()",
    ),
}


@pytest.mark.parametrize("library", INITIALISE)
def test_an_initialisation_that_fails_leaves_nothing_behind(library: str) -> None:
    with VirtualGpu.create(gpus=2) as gpu:
        (answer,) = result(gpu, program("", {library: INITIALISE[library]})).values()
    steps, left = answer
    assert left is None
    assert steps > 5


def test_a_driver_that_could_not_be_initialised_stays_so(virtual_gpu: VirtualGpu) -> None:
    """A failed cuInit is none: other calls say so, and a later one succeeds."""
    virtual_gpu.add_fault("step.client_header nth=1 error=999")
    program = """
        context = ctypes.byref(ctypes.c_uint64())
        codes = [cuda.code("cuInit", 0), cuda.code("cuDevicePrimaryCtxRetain", context, 0)]
        cuda.start()
        cuda.tell([codes, cuda.used() > 0])
    """
    assert result(virtual_gpu, program) == [[2, 3], True]


def test_a_context_beyond_the_stack_is_not_made(virtual_gpu: VirtualGpu) -> None:
    # Each context opens some files, and a user may usually open 1024.
    program = """
        import resource
        most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
        cuda.start()
        context = ctypes.c_uint64()
        codes = [cuda.code("cuCtxCreate_v2", ctypes.byref(context), 0, 0) for _ in range(63)]
        used = cuda.used()
        codes.append(cuda.code("cuCtxCreate_v2", ctypes.byref(context), 0, 0))
        cuda.tell([set(codes[:-1]) == {0}, codes[-1], cuda.used() == used])
    """
    assert result(virtual_gpu, program) == [True, 2, True]
