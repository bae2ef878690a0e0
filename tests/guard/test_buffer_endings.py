"""However a buffer ends, its memory goes back once: by a finalizer, in any thread, at exit, after a reset."""

from __future__ import annotations

from tests.guard.owner import run, told
from vram.units import MIB
from vram.virtualgpu import VirtualGpu


def test_the_last_reference_frees_it(virtual_gpu: VirtualGpu) -> None:
    """Also from a cycle, where only the collector finds it."""
    assert told(
        virtual_gpu,
        """
        before = used()
        buffer = Buffer(8 * MIB)
        del buffer
        dropped = used() - before
        gc.disable()  # it would find the cycle whenever its count is full
        cycle = [Buffer(8 * MIB)]
        cycle.append(cycle)
        del cycle
        kept = used() - before
        gc.collect()
        tell(dropped, kept, used() - before)
        """,
    ) == [0, 8 * MIB, 0]


def test_it_ends_in_a_thread_that_has_no_context_or_another_one(two_virtual_gpus: VirtualGpu) -> None:
    assert told(
        two_virtual_gpus,
        """
        def held():
            with driver().on_device(1):
                free, total = driver().free_and_total()
            return total - free
        before = held()
        first, second = [Buffer(8 * MIB, device=1)], [Buffer(8 * MIB, device=1, zero_on_free=True)]
        def elsewhere():
            with driver().on_device(0):
                second.clear()
        in_thread(first.clear)
        after_first = held() - before
        in_thread(elsewhere)
        tell(after_first, held() - before)
        """,
    ) == [8 * MIB, 0]


def test_a_thread_that_ends_leaves_nothing(virtual_gpu: VirtualGpu) -> None:
    """Also when it ends by an exception, once that is dropped."""
    assert (
        told(
            virtual_gpu,
            """
        threading.excepthook = lambda _: None
        before = used()
        def work():
            buffer = Buffer(8 * MIB)
            raise ValueError("as usual")
        for _ in range(4):
            in_thread(work)
        tell(used() - before)
        """,
        )
        == 0
    )


def test_one_of_many_threads_closes_it(virtual_gpu: VirtualGpu) -> None:
    assert told(
        virtual_gpu,
        """
        before, answers = used(), []
        for _ in range(50):
            buffer, gate = Buffer(4096), threading.Barrier(8)
            def race():
                gate.wait()
                answers.append(error_of(buffer.close))
            threads = [threading.Thread(target=race) for _ in range(8)]
            for thread in threads: thread.start()
            for thread in threads: thread.join()
        tell(sorted({str(each) for each in answers}), answers.count(None), used() - before)
        """,
    ) == [["BufferClosed", "None"], 50, 0]


def test_at_exit_what_is_left_goes_back_erased(virtual_gpu: VirtualGpu) -> None:
    """An exit handler that was there before vram runs after it, and looks into the driver's pool."""
    program = """
        def look():
            # Made by hand: vram's own exit handler has been here already.
            word, seen = ctypes.c_uint64(), (ctypes.c_ubyte * 6)()
            lib.cuCtxSetCurrent(context)
            lib.cuMemAllocAsync(ctypes.byref(word), ctypes.c_size_t(32 * MIB), None)
            lib.cuMemcpyDtoH_v2(seen, word, ctypes.c_size_t(6))
            tell(bytes(seen).decode(errors="replace"), used() - before)
        atexit._clear()
        atexit.register(look)
        from vram.guard import allocation
        atexit.register(allocation._release_all)
        lib, pool, context = ctypes.CDLL("libcuda.so.1"), ctypes.c_void_p(), ctypes.c_void_p()
        before = used()
        lib.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0)
        lib.cuDeviceGetDefaultMemPool(ctypes.byref(pool), 0)
        lib.cuMemPoolSetAttribute(pool, 4, ctypes.byref(ctypes.c_uint64(2**64 - 1)))
        pooled = Buffer(32 * MIB, stream=0, zero_on_free=ZERO)
        pooled.write(b"secret")
        plain = Buffer(8 * MIB)
        """
    in_pool = 32 * MIB
    assert told(virtual_gpu, program.replace("ZERO", "False")) == ["secret", in_pool]
    assert told(virtual_gpu, program.replace("ZERO", "True")) == ["\0" * 6, in_pool]


def test_a_forked_child_cannot_touch_its_parents_memory(virtual_gpu: VirtualGpu) -> None:
    """Its finalizers and its exit free nothing; explicit calls say whose the memory is."""
    assert told(
        virtual_gpu,
        """
        buffer = Buffer(8 * MIB, zero_on_free=True)
        buffer.write(b"parent's")
        held = used()
        def child():
            global buffer
            answers = [error_of(buffer.close), error_of(buffer.read), error_of(lambda: buffer.pointer)]
            with_closed = buffer.closed
            del buffer
            gc.collect()
            new = error_of(Buffer, 1)
            return 0 if [*answers, with_closed, new] == ["BufferLost"] * 3 + [True, "DeviceError"] else 1
        status = in_child(child)
        tell(status, buffer.read(8).decode(), used() - held, error_of(buffer.close))
        """,
    ) == [0, "parent's", 0, None]


def test_a_forked_child_may_leave_its_parents_block(virtual_gpu: VirtualGpu) -> None:
    assert told(
        virtual_gpu,
        """
        with Buffer(8 * MIB) as buffer:
            child = os.fork()
        if child == 0:
            os._exit(0)
        tell(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), buffer.closed)
        """,
    ) == [0, True]


def test_after_a_context_reset_it_says_that_its_memory_is_gone(virtual_gpu: VirtualGpu) -> None:
    """Every kind that a context takes along; new buffers come in the context's next life."""
    assert told(
        virtual_gpu,
        """
        rows = lambda nbytes: Buffer.pitched(64, nbytes // 64)
        makers = (Buffer, Buffer.managed, Buffer.pinned, Buffer.zero_copy, rows)
        buffers = [make(MIB) for make in makers]
        reset()
        answers = [error_of(each.read) for each in buffers]
        later = [error_of(each.close) for each in buffers]
        again = [make(MIB) for make in makers]
        tell(answers, later, [each.read(1).hex() for each in again])
        """,
    ) == [["BufferLost"] * 5, ["BufferClosed"] * 5, ["00"] * 5]


def test_an_address_that_came_back_after_a_reset_is_left_to_its_new_owner(virtual_gpu: VirtualGpu) -> None:
    """The old buffer's finalizer and close find another allocation at their address."""
    assert told(
        virtual_gpu,
        """
        first, second = Buffer(8 * MIB), Buffer(8 * MIB)
        addresses = {first.pointer, second.pointer}
        reset()
        third, fourth = Buffer(8 * MIB), Buffer(8 * MIB)
        for each in (third, fourth): each.fill(7)
        del first
        lost = error_of(second.close)
        tell({third.pointer, fourth.pointer} == addresses, lost, third.read(2).hex(), fourth.read(2).hex())
        """,
    ) == [True, "BufferLost", "0707", "0707"]


def test_after_the_programs_own_context_is_destroyed(virtual_gpu: VirtualGpu) -> None:
    assert (
        told(
            virtual_gpu,
            """
        cuda, own = ctypes.CDLL("libcuda.so.1"), ctypes.c_void_p()
        cuda.cuInit(0)
        cuda.cuCtxCreate_v2(ctypes.byref(own), 0, 0)
        closed, dropped = Buffer(MIB, zero_on_free=True), Buffer(MIB, zero_on_free=True)
        cuda.cuCtxDestroy_v2(own)
        answer = error_of(closed.close)
        del dropped
        tell(answer)
        """,
        )
        == "BufferLost"
    )


def test_a_block_that_fails_keeps_its_own_error(virtual_gpu: VirtualGpu) -> None:
    """What the close has to say is added to it; the memory goes with its last user."""
    assert told(
        virtual_gpu,
        """
        before = used()
        def work():
            with Buffer(8 * MIB) as buffer:
                kept.append(buffer.__dlpack__())
                raise ValueError("the block's own")
        kept, notes = [], []
        try:
            work()
        except ValueError as error:
            notes = error.__notes__
        held = used() - before
        kept.clear()
        tell(held, "DLPack consumer" in notes[0], used() - before)
        """,
    ) == [8 * MIB, True, 0]


def test_a_failing_finalizer_is_told_and_hurts_nobody(virtual_gpu: VirtualGpu) -> None:
    done = run(
        virtual_gpu,
        """
        from vram.virtualgpu import VirtualGpu
        buffer = Buffer(MIB)
        VirtualGpu.inside().fail("cuMemFree", error=999)
        del buffer
        VirtualGpu.inside().clear_faults()
        tell("alive")
        """,
    )
    assert done.stdout == '"alive"\n'
    assert "Exception ignored" in done.stderr
    assert "CUDA_ERROR_UNKNOWN" in done.stderr


def test_a_lost_buffer_is_no_live_array(virtual_gpu: VirtualGpu) -> None:
    assert told(
        virtual_gpu,
        """
        lost = Buffer(4 * MIB)
        before = [each.nbytes for each in vram.live()]
        reset()
        kept = Buffer(2 * MIB)
        tell(before, [each.nbytes for each in vram.live()])
        """,
    ) == [[4 * MIB], [2 * MIB]]


def test_a_crowd_of_threads_leaves_nothing(virtual_gpu: VirtualGpu) -> None:
    """Closed, dropped, lent and passed on between threads, with the collector running in between."""
    assert told(
        virtual_gpu,
        """
        import queue, random
        gc.set_threshold(50)
        before, passed, failures = used(), queue.SimpleQueue(), []
        def act(seed):
            chance = random.Random(seed)
            ordered, erased = lambda n: Buffer(n, stream=0), lambda n: Buffer(n, zero_on_free=True)
            kinds = (Buffer, Buffer.pinned, ordered, erased)
            for _ in range(60):
                buffer = chance.choice(kinds)(4096)
                fate = chance.randrange(5)
                if fate == 0: buffer.close()
                elif fate == 1: passed.put([buffer])
                elif fate == 2: cycle = [buffer, Buffer.from_dlpack(buffer)]; cycle.append(cycle); del cycle
                elif fate == 3: capsule = buffer.__dlpack__(); assert error_of(buffer.close) == "BufferLent"
                elif not passed.empty():
                    try: passed.get_nowait()[0].close()
                    except queue.Empty: pass
        def guarded(seed):
            try: act(seed)
            except BaseException as error: failures.append(repr(error))
        threads = [threading.Thread(target=guarded, args=(seed,)) for seed in range(8)]
        for thread in threads: thread.start()
        for thread in threads: thread.join()
        while not passed.empty(): passed.get()
        gc.collect()
        from vram.guard.allocation import living
        tell(failures, len(living), used() - before)
        """,
    ) == [[], 0, 0]


def test_a_finalizer_waits_while_a_graph_is_captured(virtual_gpu: VirtualGpu) -> None:
    """The virtual driver captures nothing; it answers once as the real one does while one captures."""
    virtual_gpu.fail("cuStreamIsCapturing", nth=1, error=906)
    answer = told(
        virtual_gpu,
        """
        before = used()
        dropped = Buffer(64 * MIB, zero_on_free=True)
        del dropped
        waiting = used() - before
        Buffer(1).close()
        tell(waiting, used() - before)
        """,
    )
    assert answer == [64 * MIB, 0]
