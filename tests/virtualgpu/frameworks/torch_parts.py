"""PyTorch."""

from __future__ import annotations

import os
import subprocess
import sys

import torch
from program import MIB, main, part, used

# The allocator is chosen when PyTorch starts: parts that need another one start over with this set.
CONFIGURATION = "PYTORCH_CUDA_ALLOC_CONF"


def restarted(configuration: str) -> bool:
    """Whether this process has *configuration*; where it has not, a new one runs the same part with it."""
    if os.environ.get(CONFIGURATION) == configuration:
        return True
    subprocess.run([sys.executable, *sys.argv], env=os.environ | {CONFIGURATION: configuration}, check=True)
    return False


def started() -> int:
    """Used memory once a context is there."""
    torch.cuda.init()
    torch.cuda.synchronize()
    return used()


@part
def tensors() -> None:
    """`torch.empty(…, device="cuda")`, `.to`, `.cpu`, `copy_`, views: without arithmetic"""
    sent = torch.arange(1024, dtype=torch.float32)
    on_device = sent.to("cuda")
    assert torch.equal(on_device.cpu(), sent)
    other = torch.empty_like(on_device)
    other.copy_(on_device)
    assert torch.equal(other[10:20].cpu(), sent[10:20])


@part
def zeroed_tensors() -> None:
    """`torch.zeros(…, device="cuda")`, `zero_`: filled by the driver, without a kernel"""
    tensor = torch.arange(1024).to("cuda")
    tensor.zero_()
    assert torch.equal(tensor.cpu(), torch.zeros(1024, dtype=torch.int64))


@part
def caching_allocator() -> None:
    """The caching allocator: `memory_allocated`, `memory_reserved`, `memory_stats`, `empty_cache`"""
    before = started()
    tensor = torch.empty(64 * MIB, dtype=torch.uint8, device="cuda")
    assert used() - before == 64 * MIB
    assert torch.cuda.memory_allocated() == torch.cuda.memory_reserved() == 64 * MIB
    assert torch.cuda.memory_stats()["num_device_alloc"] == 1
    del tensor
    assert torch.cuda.memory_allocated() == 0
    assert used() - before == 64 * MIB
    torch.cuda.empty_cache()
    assert used() == before


@part
def memory_info() -> None:
    """`mem_get_info`, `memory_summary`, `memory_snapshot`, `get_device_properties`"""
    started()
    tensor = torch.empty(64 * MIB, dtype=torch.uint8, device="cuda")
    free, total = torch.cuda.mem_get_info()
    assert 0 < free < total
    assert "virtual" in torch.cuda.get_device_properties(0).name
    (segment,) = torch.cuda.memory_snapshot()
    assert segment["total_size"] == tensor.nbytes
    assert "Allocated memory" in torch.cuda.memory_summary()


@part
def out_of_memory() -> None:
    """`torch.cuda.OutOfMemoryError`, and the memory that can be allocated afterwards"""
    started()
    _, total = torch.cuda.mem_get_info()
    try:
        torch.empty(2 * total, dtype=torch.uint8, device="cuda")
    except torch.cuda.OutOfMemoryError:
        assert torch.empty(MIB, device="cuda").is_cuda
    else:
        raise AssertionError("twice the GPU's memory was allocated")


@part
def memory_limit() -> None:
    """`set_per_process_memory_fraction`"""
    started()
    torch.cuda.set_per_process_memory_fraction(0.001)
    try:
        torch.empty(1024 * MIB, dtype=torch.uint8, device="cuda")
    except torch.cuda.OutOfMemoryError:
        return
    raise AssertionError("more than the fraction was allocated")


@part
def pinned_memory() -> None:
    """`pin_memory`, copies with `non_blocking=True`, `torch.accelerator.empty_host_cache`"""
    pinned = torch.full((1024,), 3.0).pin_memory()
    assert pinned.is_pinned()
    received = torch.empty(1024, pin_memory=True)
    received.copy_(pinned.to("cuda", non_blocking=True), non_blocking=True)
    torch.cuda.synchronize()
    assert torch.equal(received, pinned)
    torch.accelerator.empty_host_cache()


@part
def streams() -> None:
    """`Stream`, `Event`, `record_stream`, `wait_stream`, elapsed time"""
    stream = torch.cuda.Stream()
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    with torch.cuda.stream(stream):
        start.record()
        tensor = torch.ones(1024).to("cuda", non_blocking=True)
        end.record()
    tensor.record_stream(torch.cuda.current_stream())
    torch.cuda.current_stream().wait_stream(stream)
    end.synchronize()
    assert start.elapsed_time(end) >= 0
    assert tensor.cpu().sum() == 1024


@part
def expandable_segments() -> None:
    """`expandable_segments:True`: memory mapped piece by piece, and unmapped by `empty_cache`"""
    if restarted("expandable_segments:True"):
        before = started()
        tensor = torch.empty(64 * MIB, dtype=torch.uint8, device="cuda")
        (segment,) = torch.cuda.memory_snapshot()
        assert segment["is_expandable"]
        assert used() - before == segment["total_size"] >= 64 * MIB
        del tensor
        torch.cuda.empty_cache()
        assert used() == before


@part
def async_allocator() -> None:
    """`backend:cudaMallocAsync`: the driver's own pool"""
    if restarted("backend:cudaMallocAsync"):
        started()
        assert torch.cuda.get_allocator_backend() == "cudaMallocAsync"
        torch.empty(1, device="cuda")  # it sets up all streams that PyTorch has: memory of the context
        torch.cuda.empty_cache()
        before = used()
        tensor = torch.empty(64 * MIB, dtype=torch.uint8, device="cuda")
        assert used() - before == 64 * MIB
        del tensor
        torch.cuda.empty_cache()
        assert used() == before


@part
def pluggable_allocator() -> None:
    """`CUDAPluggableAllocator`: functions of another library allocate and free"""
    import shutil
    import tempfile
    from pathlib import Path

    source = """
        #include <stddef.h>
        int cudaMalloc(void **, size_t);
        int cudaFree(void *);
        void *take(ptrdiff_t nbytes, int device, void *stream) {
            void *p = 0;
            cudaMalloc(&p, nbytes);
            return p;
        }
        void give(void *p, ptrdiff_t nbytes, int device, void *stream) { cudaFree(p); }
    """
    folder = Path(tempfile.mkdtemp())
    try:
        (folder / "own.c").write_text(source)
        command = ["cc", "-shared", "-fPIC", "-o", str(folder / "own.so"), str(folder / "own.c")]
        subprocess.run(command, check=True)
        allocator = torch.cuda.memory.CUDAPluggableAllocator(str(folder / "own.so"), "take", "give")
        torch.cuda.memory.change_current_allocator(allocator)
        before = started()
        tensor = torch.empty(64 * MIB, dtype=torch.uint8, device="cuda")
        assert used() - before == 64 * MIB
        del tensor
        assert used() == before
    finally:
        shutil.rmtree(folder)


@part
def private_pools() -> None:
    """`MemPool`, `use_mem_pool`: a pool that is freed as a whole"""
    before = started()
    pool = torch.cuda.MemPool()
    with torch.cuda.use_mem_pool(pool):
        tensor = torch.empty(64 * MIB, dtype=torch.uint8, device="cuda")
    assert used() - before == 64 * MIB
    del tensor, pool
    torch.cuda.empty_cache()
    assert used() == before


@part
def ipc() -> None:
    """Tensors sent to another process by `torch.multiprocessing`"""
    import torch.multiprocessing as processes

    tensor = torch.full((1024,), 5.0).to("cuda")
    context = processes.get_context("spawn")
    sent, answers = context.SimpleQueue(), context.SimpleQueue()
    process = context.Process(target=_sum_of, args=(sent, answers))
    process.start()
    sent.put(tensor)
    assert answers.get() == 5 * 1024
    process.join()
    assert process.exitcode == 0
    torch.cuda.ipc_collect()


def _sum_of(tensors: object, answers: object) -> None:
    tensor = tensors.get()  # type: ignore[attr-defined]
    answers.put(float(tensor.cpu().sum()))  # type: ignore[attr-defined]


@part
def devices() -> None:
    """`is_available`, `device_count`, `set_device`, `torch.cuda.device`"""
    assert torch.cuda.is_available()
    assert torch.cuda.device_count() == 1
    torch.cuda.set_device(0)
    with torch.cuda.device(0):
        assert torch.empty(8, device="cuda").get_device() == 0


@part
def loading() -> None:
    """`torch.save`, `torch.load(…, map_location="cuda")`, `nn.Module.to("cuda")`, `state_dict`"""
    import io

    model = torch.nn.Linear(1024, 1024)
    model.to("cuda")
    file = io.BytesIO()
    torch.save(model.state_dict(), file)
    file.seek(0)
    loaded = torch.load(file, map_location="cuda")
    assert loaded["weight"].is_cuda
    assert torch.equal(loaded["weight"].cpu(), model.weight.detach().cpu())


@part
def kernels() -> None:
    """Arithmetic: launches are counted and not run, and results are whatever the memory held"""
    two = torch.ones(8).to("cuda").add(1)
    assert two.cpu().tolist() == [2.0] * 8, "nothing was computed"


@part
def graphs() -> None:
    """CUDA graphs (`torch.cuda.graph`)"""
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        torch.empty(8, device="cuda").zero_()


@part
def collectives() -> None:
    """Collectives over NCCL (`torch.distributed`)"""
    import tempfile

    import torch.distributed as distributed

    with tempfile.TemporaryDirectory() as folder:
        distributed.init_process_group("nccl", init_method=f"file://{folder}/meet", rank=0, world_size=1)
        distributed.all_reduce(torch.zeros(8, device="cuda"))
        torch.cuda.synchronize()


@part
def matrix_products() -> None:
    """Matrix products: NVIDIA's runtime is linked into cuBLAS"""
    torch.zeros(8, 8, device="cuda") @ torch.zeros(8, 8, device="cuda")
    torch.cuda.synchronize()


if __name__ == "__main__":
    main()
