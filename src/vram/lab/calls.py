"""What experiments have processes do: one verb each, and memory is counted before it is asked for."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable

from vram.lab.actor import Process, Puppet
from vram.lab.answer import CannotTell
from vram.units import size


class Budget:
    """What an experiment said that it takes. Asking for more is refused before the driver is asked."""

    def __init__(self, nbytes: int) -> None:
        self._left = nbytes

    def take(self, nbytes: int) -> None:
        if nbytes > self._left:
            raise CannotTell(f"it asked for {size(nbytes)} more than it names: refused")
        self._left -= nbytes

    def give(self, nbytes: int) -> None:
        self._left += nbytes


class Actor:
    """A process that can be told what to do with the GPU. Pointers are numbers, as in C."""

    def __init__(self, puppet: Puppet, budget: Budget, adopt: Callable[[Process], None]) -> None:
        self._puppet, self._budget, self._adopt = puppet, budget, adopt
        self._sizes: dict[int, int] = {}
        self.pid = puppet.pid

    # ---- its life ----

    def kill(self) -> float:
        """End it by SIGKILL; return the seconds until the kernel reported it dead."""
        return self._puppet.kill()

    def leave(self) -> None:
        """Let it end as programs do, freeing nothing itself."""
        self._puppet.tell("leave")

    def crash(self) -> None:
        self._puppet.tell("crash")

    def stop(self) -> None:
        self._puppet.signal(signal.SIGSTOP)
        # One that ended instead must not be waited for; it stays to be reaped.
        os.waitid(os.P_PID, self.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)

    def fork(self) -> Process:
        """Fork a child that sleeps on when this one is gone."""
        return self._named(self._puppet.ask("fork"))

    def spawn(self) -> Process:
        """Start another program from it, as subprocess does."""
        return self._named(self._puppet.ask("spawn"))

    def _named(self, pid: int) -> Process:
        child = Process(pid)
        self._adopt(child)
        return child

    def tell_child(self, child: Process, verb: str, *arguments: int) -> int:
        return int(self._puppet.ask("tell_heir", child.pid, verb, *arguments))

    def hand_over(self, child: Process, descriptor: int) -> None:
        """Pass a descriptor to a child; this process keeps none."""
        self._puppet.ask("hand_over", child.pid, descriptor)

    # ---- contexts ----

    def init(self) -> None:
        self._puppet.ask("init")

    def context(self) -> None:
        self._puppet.ask("context")

    def new_context(self) -> int:
        return int(self._puppet.ask("new_context"))

    def destroy_context(self, handle: int) -> None:
        self._puppet.ask("destroy_context", handle)

    def reset(self) -> None:
        """As cudaDeviceReset: give back all that the primary context holds."""
        self._puppet.ask("reset")

    def synchronize(self) -> None:
        self._puppet.ask("synchronize")

    def free_bytes(self) -> int:
        """What the driver tells this process that it could have."""
        return int(self._puppet.ask("free_and_total")[0])

    def checkpoint_code(self, verb: str, pid: int) -> int:
        return int(self._puppet.ask("checkpoint_code", verb, pid))

    # ---- memory ----

    def _allocated(self, verb: str, nbytes: int) -> int:
        self._budget.take(nbytes)
        pointer = int(self._puppet.ask(verb, nbytes) or 0)
        self._sizes[pointer] = nbytes
        return pointer

    def _freed(self, verb: str, pointer: int) -> None:
        self._puppet.ask(verb, pointer)
        self._budget.give(self._sizes.pop(pointer, 0))

    def alloc(self, nbytes: int) -> int:
        return self._allocated("alloc", nbytes)

    def free(self, pointer: int) -> None:
        self._freed("free", pointer)

    def free_behind_work(self, pointer: int, seconds: float) -> tuple[float, float, float]:
        """Free while a stream works: when the free began, when it returned, when the work was done."""
        moments: dict[str, float] = self._puppet.ask("free_behind_work", pointer, seconds)
        self._budget.give(self._sizes.pop(pointer, 0))
        return moments["began"], moments["freed"], moments["worked"]

    def free_code(self, pointer: int) -> int:
        """The driver's answer to a free, whatever it is."""
        return int(self._puppet.ask("free_code", pointer))

    def alloc_code(self, nbytes: int) -> int:
        """The driver's answer to a request that must be refused."""
        return int(self._puppet.ask("alloc_code", nbytes))

    def read_code(self, pointer: int, nbytes: int) -> int:
        return int(self._puppet.ask("read_code", pointer, nbytes))

    def fill(self, pointer: int, byte: int, nbytes: int) -> None:
        self._puppet.ask("fill", pointer, byte, nbytes)

    def start_fill(self, pointer: int, nbytes: int) -> None:
        """Have the device write, and do not wait for it."""
        self._puppet.ask("start_fill", pointer, nbytes)

    def count_byte(self, pointer: int, byte: int, nbytes: int) -> int:
        return int(self._puppet.ask("count_byte", pointer, byte, nbytes))

    def count_nonzero(self, pointer: int, nbytes: int) -> int:
        return int(self._puppet.ask("count_nonzero", pointer, nbytes))

    def alloc_managed(self, nbytes: int) -> int:
        return self._allocated("alloc_managed", nbytes)

    def host_fill(self, pointer: int, byte: int, nbytes: int) -> None:
        self._puppet.ask("host_fill", pointer, byte, nbytes)

    def pin(self, nbytes: int) -> int:
        """Pinned host memory. It is counted as if it were the device's: the claim may hold."""
        return self._allocated("pin", nbytes)

    # ---- stream-ordered memory ----

    def pool_keeps(self) -> None:
        self._puppet.ask("pool_keeps")

    def pool_trim(self) -> None:
        self._puppet.ask("pool_trim")

    def pool_figures(self) -> tuple[int, int]:
        """What the default pool has reserved, and what of that is used."""
        reserved, used = self._puppet.ask("pool_figures")
        return int(reserved), int(used)

    def alloc_async(self, nbytes: int) -> int:
        return self._allocated("alloc_async", nbytes)

    def free_async(self, pointer: int) -> None:
        """Free in the stream's order, without waiting for the stream."""
        self._freed("free_async", pointer)

    # ---- threads and objects ----

    def thread_alloc(self, nbytes: int) -> int:
        """Allocate in a thread that has ended when this returns."""
        return self._allocated("thread_alloc", nbytes)

    def thread_free(self, pointer: int) -> None:
        self._freed("thread_free", pointer)

    def thread_use(self, nbytes: int) -> None:
        """Allocate and free in a thread that has ended when this returns."""
        self._budget.take(nbytes)
        self._puppet.ask("thread_use", nbytes)

    def thread_own(self, nbytes: int) -> None:
        """An owner object is made in a thread, and both are gone when this returns."""
        self._allocated("thread_own", nbytes)

    def lose(self, nbytes: int) -> None:
        self._allocated("lose", nbytes)

    def fail_with_raw_pointer(self, nbytes: int) -> None:
        self._allocated("fail_with_raw_pointer", nbytes)

    def fail_and_keep(self, nbytes: int) -> None:
        self._allocated("fail_and_keep", nbytes)

    def drop_exception(self) -> None:
        self._puppet.ask("drop_exception")

    # ---- sharing ----

    def ipc_handle(self, pointer: int) -> str:
        return str(self._puppet.ask("ipc_handle", pointer))

    def ipc_open(self, handle: str) -> int:
        return int(self._puppet.ask("ipc_open", handle))

    def create(self, nbytes: int) -> int:
        """Physical memory without an address; the handle is what frees it."""
        return self._allocated("create", nbytes)

    def release(self, handle: int) -> None:
        self._freed("release", handle)

    def reserve(self, nbytes: int) -> int:
        """Addresses without memory behind them."""
        return int(self._puppet.ask("reserve", nbytes))

    def map(self, address: int, nbytes: int, handle: int) -> int:
        return int(self._puppet.ask("map_code", address, nbytes, handle))

    def unmap(self, address: int, nbytes: int) -> None:
        self._puppet.ask("unmap", address, nbytes)

    def export(self, handle: int) -> int:
        return int(self._puppet.ask("export", handle))

    def dmabuf(self, pointer: int, nbytes: int) -> int:
        return int(self._puppet.ask("dmabuf", pointer, nbytes))

    # ---- work ----

    def load_kernels(self) -> None:
        self._puppet.ask("load_kernels")

    def launch_nothing(self, times: int) -> None:
        self._puppet.ask("launch_nothing", times)

    def launch_deep(self, out: int) -> None:
        self._puppet.ask("launch_deep", out)

    def run_graph(self, nbytes: int) -> None:
        self._budget.take(nbytes)
        self._puppet.ask("run_graph", nbytes)

    def destroy_graph(self) -> None:
        self._puppet.ask("destroy_graph")

    def trim_graph_memory(self) -> None:
        self._puppet.ask("trim_graph_memory")

    def python(self, code: str) -> object:
        """Run lines as an interpreter would; what they call ``answer`` comes back."""
        answer: object = self._puppet.ask("python", code)
        return answer
