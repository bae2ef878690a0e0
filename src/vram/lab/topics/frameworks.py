"""Claims: what PyTorch, CuPy and JAX hold, and how it is freed."""

from __future__ import annotations

from functools import partial

from vram.lab.claim import NEAR, WITH_FRAMEWORK_S, Conclusion, Takes, claim, figure, judge, of
from vram.lab.experiment import DeviceReading, Experiment
from vram.lab.worker import WorkerClient
from vram.units import GIB, MIB, size

TOPIC = "Frameworks"

MIB_64, MIB_128, MIB_256 = 64 * MIB, 128 * MIB, 256 * MIB

framework_claim = partial(claim, topic=TOPIC, deadline_s=WITH_FRAMEWORK_S)
torch_claim = partial(framework_claim, library="torch")


def start(
    experiment: Experiment, lines: str, stage: str, library: str = ""
) -> tuple[WorkerClient, DeviceReading]:
    """A worker that ran *lines*, and the device as it was read then."""
    program = experiment.worker(library)
    program.call("run_python", lines)
    return program, experiment.read_device(stage)


def run_and_read(
    experiment: Experiment, program: WorkerClient, lines: str, stage: str, since: DeviceReading
) -> int:
    """Run *lines* in *program*: bytes that are in use afterwards beyond those of *since*."""
    program.call("run_python", lines)
    return experiment.used(stage, since=since)


TORCH_DEL_START = "import gc, torch; first = torch.empty(1, device='cuda')"
TORCH_DEL_MAKE = f"x = torch.empty({MIB_256}, dtype=torch.uint8, device='cuda')"


@torch_claim("torch-del", takes=Takes(MIB_256 + MIB_256))
def torch_del(experiment: Experiment) -> Conclusion:
    """PyTorch returns a tensor's memory to the device as soon as it is deleted

    Source: Folklore; question 1 asks why memory is not free after the work is done.

    Method:
    A tensor of 256 MiB is made and deleted, and garbage is collected. The device is read before and
    after.

    Reading:
    PyTorch's allocator keeps what tensors free, for the next ones. torch.cuda.empty_cache()
    returns it to the device, from outside `vram trim` does.
    """
    program, empty = start(experiment, TORCH_DEL_START, "first tensor", "torch")
    program.call("run_python", TORCH_DEL_MAKE)
    experiment.must_show("tensor", MIB_256, since=empty)
    kept = run_and_read(experiment, program, "del x; gc.collect()", "deleted", empty)
    return judge(kept, MIB_256, "still used after the tensor was deleted", claimed=False)


TORCH_EMPTY_CACHE_MAKE = f"""
import gc, torch
kept = torch.empty({MIB_128}, dtype=torch.uint8, device='cuda')
gone = torch.empty({MIB_128}, dtype=torch.uint8, device='cuda')
"""


@torch_claim("torch-empty-cache", takes=Takes(2 * MIB_128 + MIB_256))
def torch_empty_cache(experiment: Experiment) -> Conclusion:
    """torch.cuda.empty_cache() frees all of a process's GPU memory

    Source: Folklore.

    Method:
    Two tensors of 128 MiB are made, one is deleted, and empty_cache() is called. What is left is
    compared with what was in use before the process began.

    Reading:
    It returns what no tensor uses any more. Live tensors stay, and so do the context and the
    workspaces of libraries: see torch-workspaces.
    """
    program = experiment.worker("torch")
    program.call("run_python", TORCH_EMPTY_CACHE_MAKE)
    held = experiment.must_show("two tensors", 2 * MIB_128)
    program.call("run_python", "del gone; gc.collect(); torch.cuda.empty_cache()")
    left = experiment.used("emptied")
    back = experiment.grown(held) - left
    because = f"{of(left, experiment.grown(held))} still used; {size(back)} came back"
    return Conclusion(left <= NEAR, because, (figure("still used", left), figure("came back", back)))


TORCH_CYCLE_START = """
import gc, torch
gc.disable()
class Model: pass
first = torch.empty(1, device='cuda')
"""
TORCH_CYCLE_MAKE = f"""
model = Model()
model.itself = model
model.weights = torch.empty({MIB_128}, dtype=torch.uint8, device='cuda')
"""


@torch_claim("torch-cycle", takes=Takes(MIB_128 + MIB_256))
def torch_cycle(experiment: Experiment) -> Conclusion:
    """Deleting the last name of a tensor frees it, whatever refers to it

    Source: Folklore; question 3 doubts that garbage collection helps.

    Method:
    An object that refers to itself holds a tensor of 128 MiB. Its name is deleted and the cache
    emptied; the device is read. Then garbage is collected and the cache emptied again.

    Reading:
    Reference counting does not see cycles; the collector does, some time later. `vram.flush()`
    collects first.
    """
    program, empty = start(experiment, TORCH_CYCLE_START, "first tensor", "torch")
    program.call("run_python", TORCH_CYCLE_MAKE)
    experiment.must_show("model", MIB_128, since=empty)
    kept = run_and_read(experiment, program, "del model; torch.cuda.empty_cache()", "deleted", empty)
    left = run_and_read(experiment, program, "gc.collect(); torch.cuda.empty_cache()", "collected", empty)
    answer = judge(kept, MIB_128, "still used after the delete", claimed=False)
    return answer.and_later(left, "after a collection", deleted=kept, collected=left)


TORCH_EXCEPTION_START = f"""
import gc, sys, torch
first = torch.empty(1, device='cuda')
def step():
    x = torch.empty({MIB_128}, dtype=torch.uint8, device='cuda')
    raise ValueError('the step failed')
"""
TORCH_EXCEPTION_FAIL = """
try:
    step()
except ValueError as error:
    sys.last_value = error
gc.collect()
torch.cuda.empty_cache()
"""


@torch_claim("torch-exception", takes=Takes(MIB_128 + MIB_256))
def torch_exception(experiment: Experiment) -> Conclusion:
    """After a failed step, empty_cache() releases the step's memory

    Source: Question 4, of exceptions that skip a free; what notebooks do after every error.

    Method:
    A function fails with a tensor of 128 MiB in its frame, and the exception is kept as an
    interactive interpreter keeps it. Garbage is collected, the cache emptied, and the device read.

    Reading:
    The kept exception holds the frame, and the frame the tensor: neither a collection nor
    empty_cache() can help until it is dropped. `vram.flush()` drops it.
    """
    program, empty = start(experiment, TORCH_EXCEPTION_START, "first tensor", "torch")
    kept = run_and_read(experiment, program, TORCH_EXCEPTION_FAIL, "failed, emptied", empty)
    left = run_and_read(
        experiment, program, "sys.last_value = None; gc.collect(); torch.cuda.empty_cache()", "dropped", empty
    )
    answer = judge(kept, MIB_128, "still used after empty_cache()", claimed=False)
    return answer.and_later(left, "after the exception was dropped", emptied=kept, dropped=left)


TORCH_WORKSPACES_START = "import gc, torch; first = torch.empty(1, device='cuda'); torch.cuda.empty_cache()"
TORCH_WORKSPACES_WORK = """
a = torch.ones(1024, 1024, device='cuda')
b = a @ a
torch.cuda.synchronize()
del a, b
gc.collect()
torch.cuda.empty_cache()
"""


@torch_claim("torch-workspaces", takes=Takes(768 * MIB))
def torch_workspaces(experiment: Experiment) -> Conclusion:
    """Libraries keep GPU memory that the program never allocated

    Source: Question 4: libraries of others are said to leak easily.

    Method:
    A matrix product of PyTorch runs once; all tensors are deleted and the cache emptied. What is in
    use is compared with what was before the product.

    Reading:
    cuBLAS keeps a workspace for each of its handles, and loaded kernels stay. It is no leak: it does
    not grow with the work. `vram.flush()` clears the workspaces.
    """
    program, empty = start(experiment, TORCH_WORKSPACES_START, "first tensor", "torch")
    kept = run_and_read(experiment, program, TORCH_WORKSPACES_WORK, "one product, all deleted", empty)
    because = f"{size(max(0, kept))} more in use than before the product"
    return Conclusion(kept > NEAR, because, (figure("more in use", kept),))


TORCH_OLD_DATA_WORK = f"""
import torch
x = torch.full(({MIB_64},), 0xA5, dtype=torch.uint8, device='cuda')
torch.cuda.synchronize()
del x
y = torch.empty({MIB_64}, dtype=torch.uint8, device='cuda').cpu()
answer = int((y == 0xA5).sum())
"""


@torch_claim("torch-old-data", takes=Takes(3 * MIB_64 + 512 * MIB))
def torch_old_data(experiment: Experiment) -> Conclusion:
    """A new PyTorch tensor can show the bytes of a deleted one

    Source: Question 5 (zero before you free), applied to PyTorch's cache.

    Method:
    A tensor of 64 MiB is filled with a pattern and deleted; torch.empty makes another one of that
    size, and bytes of the pattern are counted.

    Reading:
    True means that the cache reuses memory without erasing it. Use torch.zeros, or overwrite what is secret
    before it goes.
    """
    program = experiment.worker("torch")
    found = program.call("run_python", TORCH_OLD_DATA_WORK)
    experiment.read_device("read")
    because = f"{found} of {MIB_64} old bytes were handed over"
    return Conclusion(found > 0, because, (figure("old bytes", found, "count"),))


CUPY_DEL_START = "import gc, cupy; first = cupy.empty(1)"
CUPY_DEL_FREE = "cupy.get_default_memory_pool().free_all_blocks()"


@framework_claim("cupy-del", takes=Takes(MIB_256 + MIB_256))
def cupy_del(experiment: Experiment) -> Conclusion:
    """CuPy returns an array's memory to the device as soon as it is deleted

    Source: Folklore; question 3 names CuPy.

    Method:
    An array of 256 MiB is made and deleted. The device is read, then the pool is told to free all
    blocks.

    Reading:
    CuPy keeps a pool as PyTorch does. get_default_memory_pool().free_all_blocks() returns what no
    array uses.
    """
    nbytes = 256 * MIB
    program, empty = start(experiment, CUPY_DEL_START, "first array")
    program.call("run_python", f"x = cupy.empty({nbytes}, dtype=cupy.uint8)")
    experiment.must_show("array", nbytes, since=empty)
    kept = run_and_read(experiment, program, "del x; gc.collect()", "deleted", empty)
    left = run_and_read(experiment, program, CUPY_DEL_FREE, "blocks freed", empty)
    answer = judge(kept, nbytes, "still used after the array was deleted", claimed=False)
    return answer.and_later(left, "after free_all_blocks()", deleted=kept, blocks_freed=left)


JAX_PREALLOCATES_WORK = "import jax.numpy as jnp; x = jnp.zeros(1).block_until_ready()"


@framework_claim("jax-preallocates", takes=Takes(3 * GIB // 2 + 512 * MIB))
def jax_preallocates(experiment: Experiment) -> Conclusion:
    """JAX takes a fixed share of the GPU at its first array, however small that is

    Source: Folklore.

    Method:
    The share is set to 1.5 GiB (XLA_PYTHON_CLIENT_MEM_FRACTION) so that the experiment takes no more;
    by itself it is three quarters of the GPU. Then an array of one number is made.

    Reading:
    True means that what tools show for a JAX process says nothing about what it needs.
    XLA_PYTHON_CLIENT_PREALLOCATE=false turns it off.
    """
    nbytes = 3 * GIB // 2
    fraction = nbytes / experiment.read_device("nothing").memory.total
    program = experiment.worker(
        XLA_PYTHON_CLIENT_MEM_FRACTION=f"{fraction:.6f}",
        XLA_PYTHON_CLIENT_PREALLOCATE="true",
        JAX_PLATFORMS="cuda",
    )
    program.call("run_python", JAX_PREALLOCATES_WORK)
    taken = experiment.used("an array of one number")
    because = f"{size(taken)} taken for one number, with the share set to {size(nbytes)}"
    return Conclusion(taken > 0.9 * nbytes, because, (figure("taken", taken), figure("share", nbytes)))


NUMBA_DEL_START = "import gc; from numba import cuda; context = cuda.current_context()"
NUMBA_DEL_MAKE = f"x = cuda.device_array({MIB_128}, dtype='u1')"


@framework_claim("numba-del", takes=Takes(MIB_128))
def numba_del(experiment: Experiment) -> Conclusion:
    """Numba returns an array's memory to the device as soon as it is deleted

    Source: Folklore; question 3, of libraries that manage memory for Python.

    Method:
    A device array of 128 MiB is made and deleted. The device is read, then Numba is told to carry out
    its pending deallocations.

    Reading:
    Numba collects deallocations and carries them out some at a time, because a free waits for the
    device. Until then the memory stays used.
    """
    program, empty = start(experiment, NUMBA_DEL_START, "context")
    program.call("run_python", NUMBA_DEL_MAKE)
    experiment.must_show("array", MIB_128, since=empty)
    kept = run_and_read(experiment, program, "del x; gc.collect()", "deleted", empty)
    left = run_and_read(
        experiment, program, "context.memory_manager.deallocations.clear()", "pending frees done", empty
    )
    answer = judge(kept, MIB_128, "still used after the array was deleted", claimed=False)
    return answer.and_later(left, "after its pending deallocations", deleted=kept, pending_frees_done=left)


NUMBA_CLOSE_MAKE = f"from numba import cuda; x = cuda.device_array({MIB_128}, dtype='u1')"


@framework_claim("numba-close", takes=Takes(MIB_128))
def numba_close(experiment: Experiment) -> Conclusion:
    """numba.cuda.close() releases all of a process's GPU memory

    Source: Folklore.

    Method:
    A device array of 128 MiB is made and kept, and cuda.close() is called. The process lives on while
    the device is read.

    Reading:
    It destroys the contexts, and with them everything that was allocated in them: arrays that are
    kept are dead from then on.
    """
    program = experiment.worker()
    program.call("run_python", NUMBA_CLOSE_MAKE)
    held = experiment.must_show("array", MIB_128)
    program.call("run_python", "cuda.close()")
    left = experiment.used("closed")
    return judge(left, experiment.grown(held), "still used after close()", claimed=False)
