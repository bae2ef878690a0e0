"""Claims: when a process ends."""

from __future__ import annotations

from vram.lab.claim import NEAR, CannotTell, Conclusion, Takes, claim, figure, judge
from vram.lab.experiment import Experiment
from vram.units import MIB

TOPIC = "When a process ends"


@claim("kill-nine", TOPIC, takes=Takes(256 * MIB))
def kill_nine(experiment: Experiment) -> Conclusion:
    """kill -9 leaves GPU memory behind that stays used

    Source: Folklore; and question 1, where memory is said to stay after the program has ended.

    Method:
    A process allocates 256 MiB and never frees them. It is ended by SIGKILL, and the device is read
    again the moment the kernel reports it dead.

    Reading:
    Whatever kills a process, the kernel closes its files, and the driver frees what belonged to
    them. Where this is true, another process still has those files open: `vram why` names who.
    """
    holder, held = experiment.holder()
    gone_s = holder.kill()
    left = experiment.used("killed")
    answer = judge(left, held, f"still used {gone_s * 1000:.0f} ms after the signal")
    figures = (figure("still used", left), figure("until it was gone", round(gone_s, 4), "seconds"))
    return Conclusion(answer.holds, answer.because, figures)


@claim("exit-without-free", TOPIC, takes=Takes(256 * MIB))
def exit_without_free(experiment: Experiment) -> Conclusion:
    """Memory that a program does not free stays allocated after the program has ended

    Source: Questions 1, 2 and 4: memory is said to stay allocated beyond its process until somebody frees it.

    Method:
    A process allocates 256 MiB, never frees them, and ends as programs do.

    Reading:
    False means that a missing free costs nothing once the process is gone. It still costs while the
    process lives.
    """
    program, held = experiment.holder()
    program.end_by("leave")
    return judge(experiment.used("ended"), held, "still used after the program ended")


@claim("crash", TOPIC, takes=Takes(256 * MIB))
def crash(experiment: Experiment) -> Conclusion:
    """A crash leaves GPU memory behind

    Source: Folklore.

    Method:
    A process allocates 256 MiB and aborts, as a failed assertion or a wild pointer would make it do.
    It writes no core file.

    Reading:
    The kernel closes the files of a crashed process as it does for any other. A crash handler or a
    large core file can keep it alive for a while: until it is gone, it holds what it held.
    """
    program, held = experiment.holder()
    program.end_by("abort")
    return judge(experiment.used("crashed"), held, "still used after the crash")


@claim("zombie", TOPIC, takes=Takes(256 * MIB))
def zombie(experiment: Experiment) -> Conclusion:
    """A zombie process holds GPU memory until it is reaped

    Source: Folklore.

    Method:
    A process allocates 256 MiB and is killed. Nobody reaps it: the kernel shows it in state Z while
    the device is read.

    Reading:
    A zombie is an entry in a table: its files were closed when it died. What looks like a zombie's
    memory is kept by a living process.
    """
    holder, held = experiment.holder()
    holder.kill()
    if experiment.state_of(holder.pid) != "Z":
        raise CannotTell("the kernel does not show the killed process as a zombie")
    return judge(experiment.used("zombie"), held, "used while it is a zombie")


@claim("stopped", TOPIC, takes=Takes(256 * MIB))
def stopped(experiment: Experiment) -> Conclusion:
    """A stopped process (Ctrl-Z) keeps all of its GPU memory

    Source: Folklore: a job in the background is often taken for gone.

    Method:
    A process allocates 256 MiB and is stopped by SIGSTOP. The device is read while the kernel shows
    it in state T.

    Reading:
    Stopping a process stops its threads and nothing else. `kill -CONT` resumes it, `vram kill`
    ends it, `vram park` needs it running.
    """
    holder, empty, _ = experiment.allocator()
    holder.stop()
    if experiment.state_of(holder.pid) != "T":
        raise CannotTell("the kernel does not show the process as stopped")
    kept = experiment.used("stopped", since=empty)
    return judge(kept, experiment.nbytes, "still used while it is stopped")


@claim("context-outlives", TOPIC, takes=Takes())
def context_outlives(experiment: Experiment) -> Conclusion:
    """A CUDA context holds memory after its process has ended

    Source: Question 4: a context that is badly managed is said to keep memory when its program has ended.

    Method:
    A process makes a context, allocates nothing, destroys nothing, and ends. What the context took is
    compared with what is left.

    Reading:
    A context belongs to its process like any allocation. A destroyed context costs nothing, and one
    that was never destroyed costs nothing either once its process is gone.
    """
    program = experiment.cuda_worker()
    cost = experiment.used("context")
    if cost <= NEAR:
        raise CannotTell("a context is too small here to be measured")
    program.end_by("leave")
    return judge(experiment.used("ended"), cost, "still used by the context after its process ended")


@claim("exception-across-runs", TOPIC, takes=Takes(3 * 128 * MIB, contexts=3))
def exception_across_runs(experiment: Experiment) -> Conclusion:
    """An exception that skips cudaFree leaks memory from run to run

    Source: Questions 3 and 4: a step that fails before its free is said to use the memory up from run to run.

    Method:
    Three runs, one after the other: each allocates 128 MiB, an exception skips the free, and the
    program ends. The device is read after the last.

    Reading:
    What a run leaves unfreed goes with its process. The same mistake inside one long-lived process
    adds up: see exception-in-process.
    """
    runs = 3
    nbytes = 128 * MIB
    for number in range(runs):
        program = experiment.worker()
        program.call("context")
        before = experiment.read_device(f"run {number + 1}")
        program.call("alloc_and_fail", nbytes)
        experiment.must_show(f"run {number + 1}, leaked", nbytes, since=before)
        program.end_by("leave")
    return judge(experiment.used("all runs ended"), runs * nbytes, f"still used after {runs} runs")


@claim("managed-at-exit", TOPIC, takes=Takes(256 * MIB))
def managed_at_exit(experiment: Experiment) -> Conclusion:
    """Managed memory is released by itself when the program ends

    Source:
    Question 1: managed memory is said to be released with its program; question 2 says that its lifetime
    is decoupled from any process.

    Method:
    A process allocates 256 MiB of managed memory, has the device write to them so that they lie
    there, and ends without freeing.

    Reading:
    True, and nothing special: plain memory is released in the same way. See exit-without-free.
    """
    nbytes = experiment.nbytes
    program = experiment.cuda_worker()
    pointer = program.call("alloc_managed", nbytes)
    program.call("fill", pointer, 0xA5, nbytes)
    experiment.must_show("written by the device")
    program.end_by("leave")
    return judge(experiment.used("ended"), nbytes, "still used after the program ended", claimed=False)


@claim("reset-needed", TOPIC, takes=Takes(2 * 128 * MIB, contexts=2))
def reset_needed(experiment: Experiment) -> Conclusion:
    """Memory that a dead process left behind needs a reset of the GPU or its driver

    Source:
    Question 4, which calls a reset of the driver the last resort; and folklore (nvidia-smi --gpu-reset,
    reboot).

    Method:
    The two ways in which memory outlives the process that allocated it are set up at once: a forked
    child inherits 128 MiB, and a process that never used CUDA holds an exported handle to 128 MiB more.
    The allocating processes are killed, the memory is measured to stay, then its two holders are ended.
    Nothing is reset.

    Reading:
    False means that ending the process that holds the memory frees all of it. `vram why` names the
    holder; `vram kill` ends it.
    """
    nbytes = 128 * MIB
    parent, allocator = experiment.worker(), experiment.worker()
    holder = allocator.fork()
    parent.call("context")
    parent.call("alloc", nbytes)
    child = parent.fork()
    allocator.call("context")
    holder.receive(allocator.call("export", allocator.call("create", nbytes)))
    parent.kill()
    allocator.kill()
    experiment.must_show("allocators killed", 2 * nbytes)
    child.kill()
    holder.kill()
    left = experiment.used("holders ended")
    return judge(left, 2 * nbytes, "still used after the holders ended, without a reset")
