"""Claims: errors on the device, and which calls report them.

The errors come from kernels that fail on purpose. A fault ends the work of the process that caused it,
and of no other, except under MPS, where the clients of one server share it: there no kernel is made to fail.
On a virtual GPU no kernel runs: a fault line in the worker's own environment breaks the context instead, and
the answer says so.
"""

from __future__ import annotations

from vram.lab.claim import OK, CannotTell, Conclusion, Takes, claim, figure, judge, mostly, of
from vram.lab.experiment import Experiment
from vram.lab.worker import WorkerClient
from vram.units import MIB, size

TOPIC = "Errors on the device"

ILLEGAL_ADDRESS, ASSERT, LAUNCH_FAILED = 700, 710, 719
KINDS = {ILLEGAL_ADDRESS: "illegal address", ASSERT: "assert", LAUNCH_FAILED: "launch failed"}

CODE_OF_A_MODULE = 128 * MIB
"""Loading a kernel that may assert took 92 MiB on an H200."""


# A program that finds no pipe of an MPS daemon there reaches the GPU by itself.
WITHOUT_MPS = {"CUDA_MPS_PIPE_DIRECTORY": "/dev/null"}


def faulty_worker(experiment: Experiment, call: str, code: int) -> WorkerClient:
    """A worker that has done nothing yet; on a virtual GPU its first *call* will break it with *code*."""
    return experiment.worker(VRAM_VIRTUAL_FAULTS=f"{call} nth=1 sticky={code}", **WITHOUT_MPS)


def faulty_program(experiment: Experiment, code: int = ILLEGAL_ADDRESS) -> WorkerClient:
    """A worker with a context; the first wait for its kernel will answer *code*."""
    program = faulty_worker(experiment, "cuCtxSynchronize", code)
    program.call("free_null_code")
    program.call("context")
    return program


def harms_only_itself(experiment: Experiment, program: WorkerClient) -> None:
    """Go on only if a fault of *program* stays in it."""
    if program.pid in experiment.read_device("before the fault").mps_clients:
        raise CannotTell("through MPS a fault would end the work of other clients too")


def break_context(experiment: Experiment, program: WorkerClient, code: int) -> None:
    harms_only_itself(experiment, program)
    answer = program.call("break_context", KINDS[code])
    if answer != code:
        raise CannotTell(f"the kernel that should fail with {code} ended with {answer}")


def cause(experiment: Experiment) -> str:
    return " (broken by a fault line: no kernel runs here)" if experiment.on_virtual_gpu else ""


def freed_after(experiment: Experiment, code: int) -> Conclusion:
    """Whether memory can be freed after a kernel failed with *code*, and what the process's end returns."""
    nbytes = 128 * MIB
    program = faulty_program(experiment, code)
    empty = experiment.read_device("context")
    pointer = program.call("alloc", nbytes)
    experiment.must_show("allocated", nbytes, since=empty)
    break_context(experiment, program, code)
    held = experiment.read_device("a kernel failed").used
    call, answer = program.call("cuda_free_code", pointer)
    kept = nbytes - (held - experiment.read_device("freed").used)
    program.kill()
    left = experiment.used("process ended")
    because = (
        f"{of(kept, nbytes)} still used after {call} returned {answer}, {size(max(0, left))} after the"
        f" process had ended{cause(experiment)}"
    )
    figures = (figure("answer", answer, "code"), figure("still used", kept), figure("process ended", left))
    freed = mostly(kept, nbytes)
    return Conclusion(None if freed is None else not freed, because, figures)


@claim("fault-free", TOPIC, takes=Takes(128 * MIB + CODE_OF_A_MODULE), fails_kernels=True)
def fault_free(experiment: Experiment) -> Conclusion:
    """After an illegal memory access (700) a program can still free its memory

    Source: Questions 2 and 4, which advise to check errors and free what is held.

    Method:
    A process allocates 128 MiB. A kernel of it writes to address 16, which is not allocated, and is waited
    for: error 700. Then the memory is freed; then the process is killed.

    Reading:
    False means that the error is sticky: every call returns it from then on, the free too. Errors like
    out of memory are not sticky, and leave everything usable. See fault-only-end for what returns the
    memory.
    """
    return freed_after(experiment, ILLEGAL_ADDRESS)


@claim("assert-free", TOPIC, takes=Takes(128 * MIB + CODE_OF_A_MODULE), fails_kernels=True)
def assert_free(experiment: Experiment) -> Conclusion:
    """After a failed assert in a kernel (710) a program can still free its memory

    Source: Folklore: PyTorch's "device-side assert triggered" is caught, and the next batch tried.

    Method:
    As fault-free, with a kernel whose assert fails.

    Reading:
    False means that a device-side assert is as final as an illegal access: start the process again.
    """
    return freed_after(experiment, ASSERT)


@claim("launch-failed-free", TOPIC, takes=Takes(128 * MIB + CODE_OF_A_MODULE), fails_kernels=True)
def launch_failed_free(experiment: Experiment) -> Conclusion:
    """After an unspecified launch failure (719) a program can still free its memory

    Source: Folklore.

    Method:
    As fault-free, with a kernel that executes a trap instruction.

    Reading:
    False means that this error is sticky too.
    """
    return freed_after(experiment, LAUNCH_FAILED)


@claim("fault-only-end", TOPIC, takes=Takes(128 * MIB + CODE_OF_A_MODULE), fails_kernels=True)
def fault_only_end(experiment: Experiment) -> Conclusion:
    """After a sticky error only the end of the process returns its memory

    Source: Folklore; NVIDIA's list of error codes says that the process must be terminated and started again.

    Method:
    A process allocates 128 MiB, and a kernel of it fails with an illegal address. It resets the device.

    Reading:
    False means that a reset returns the memory although nothing can be freed. It does not revive the process:
    see fault-reset. Kinds of memory that a reset leaves anyway stay: see reset-not-enough.
    """
    nbytes = 128 * MIB
    program = faulty_program(experiment)
    program.call("alloc", nbytes)
    break_context(experiment, program, ILLEGAL_ADDRESS)
    held = experiment.must_show("a kernel failed", nbytes)
    call, code = program.call("reset_code")
    left = experiment.used("reset")
    text = f"still used after {call} returned {code}{cause(experiment)}"
    return judge(left, experiment.grown(held), text)


@claim("fault-reset", TOPIC, takes=Takes(CODE_OF_A_MODULE), fails_kernels=True)
def fault_reset(experiment: Experiment) -> Conclusion:
    """cudaDeviceReset makes CUDA usable again after an illegal memory access

    Source: Folklore; question 4 takes the reset to be the remedy when all else fails.

    Method:
    A kernel of a process fails with an illegal address. The process resets the device, and asks for a
    context again.

    Reading:
    False means that the process cannot use the GPU any more, whatever it resets: start it again.
    """
    program = faulty_program(experiment)
    break_context(experiment, program, ILLEGAL_ADDRESS)
    call, code = program.call("reset_code")
    experiment.read_device("reset")
    again = program.call("context_code")
    because = f"{call} returned {code}, and the request for a context after it {again}{cause(experiment)}"
    figures = (figure("reset", code, "code"), figure("context afterwards", again, "code"))
    return Conclusion(again == OK, because, figures)


@claim("fault-other-context", TOPIC, takes=Takes(CODE_OF_A_MODULE + 2 * MIB, contexts=2), fails_kernels=True)
def fault_other_context(experiment: Experiment) -> Conclusion:
    """An illegal memory access breaks only the context in which it happened

    Source:
    Folklore; NVIDIA's list of error codes speaks of the context for some errors, and of the process for
    others.

    Method:
    A process has two contexts. A kernel in the first one fails; memory is requested in the second one.

    Reading:
    False means that a second context is no protection: the error is the whole process's.
    """
    program = faulty_program(experiment)
    second = program.call("new_context")
    before = program.call("alloc_code", 2 * MIB)
    program.call("context")
    break_context(experiment, program, ILLEGAL_ADDRESS)
    program.call("use", second)
    after = program.call("alloc_code", 2 * MIB)
    experiment.read_device("a kernel failed")
    if before != OK:
        raise CannotTell(f"cuMemAlloc in the second context returned {before} before the fault")
    because = (
        f"in the second context cuMemAlloc returned {before} before and {after} after{cause(experiment)}"
    )
    return Conclusion(after == OK, because, (figure("answer", after, "code"),))


@claim("fault-other-process", TOPIC, takes=Takes(CODE_OF_A_MODULE + 2 * MIB, contexts=2), fails_kernels=True)
def fault_other_process(experiment: Experiment) -> Conclusion:
    """An illegal memory access of one process breaks the others on the same GPU

    Source: Folklore, from MPS, where clients share a server.

    Method:
    Two processes have a context each. A kernel of one fails; the other one allocates, writes and waits.

    Reading:
    False means that the fault stays in its process.
    """
    other = experiment.cuda_worker()
    program = faulty_program(experiment)
    break_context(experiment, program, ILLEGAL_ADDRESS)
    experiment.read_device("a kernel failed")
    try:
        pointer = other.call("alloc", 2 * MIB)
        other.call("fill", pointer, 0xA5, 2 * MIB)
    except CannotTell as error:
        return Conclusion(True, f"the other process: {error}")
    code = other.call("synchronize_code")
    because = f"the other process allocated, wrote and waited: {code}{cause(experiment)}"
    return Conclusion(code != OK, because, (figure("answer", code, "code"),))


@claim("free-null-never-fails", TOPIC, takes=Takes(CODE_OF_A_MODULE), fails_kernels=True)
def free_null_never_fails(experiment: Experiment) -> Conclusion:
    """cudaFree(0) never fails

    Source: Question 2, which checks its result all the same, and rightly.

    Method:
    A process calls cudaFree(0) first of all, and again after a kernel of it has failed with an illegal
    address. Another process, to which no GPU is visible, calls it first of all.

    Reading:
    False means that the call passes on what went wrong before it, and as a first call what keeps a context
    from being made: no GPU, a GPU that is full (2) or one whose compute mode admits no further process. It
    does not wait for kernels: it reports errors that are already known.
    """
    program = faulty_worker(experiment, "cuCtxSynchronize", ILLEGAL_ADDRESS)
    call, first = program.call("free_null_code")
    program.call("context")
    break_context(experiment, program, ILLEGAL_ADDRESS)
    _, later = program.call("free_null_code")
    experiment.read_device("a kernel failed")
    blind_call, blind = experiment.worker(CUDA_VISIBLE_DEVICES="").call("free_null_code")
    because = (
        f"{call} returned {first} at first and {later} after a kernel had failed; {blind_call} returned"
        f" {blind} where no GPU is visible{cause(experiment)}"
    )
    figures = (
        figure("first call", first, "code"),
        figure("after a kernel failed", later, "code"),
        figure("no GPU visible", blind, "code"),
    )
    return Conclusion((first, later, blind) == (OK, OK, OK), because, figures)


@claim("free-reports-kernel", TOPIC, takes=Takes(64 * MIB + CODE_OF_A_MODULE), fails_kernels=True)
def free_reports_kernel(experiment: Experiment) -> Conclusion:
    """An error of cudaFree says that something is wrong with the pointer

    Source: Questions 2 and 4, whose programs take it so.

    Method:
    A process allocates 64 MiB and launches a kernel that fails with an illegal address. It does not wait
    for the kernel, and frees its memory, whose pointer is right.

    Reading:
    False means that cudaFree returns the error of work that was started before it. The pointer was right,
    and the memory is not freed.
    """
    nbytes = 64 * MIB
    program = faulty_worker(experiment, "cuMemFree", ILLEGAL_ADDRESS)
    pointer = program.call("cuda_alloc", nbytes)
    harms_only_itself(experiment, program)
    program.call("launch_fault", KINDS[ILLEGAL_ADDRESS])
    held = experiment.read_device("a kernel was launched").used
    call, code = program.call("cuda_free_code", pointer)
    kept = nbytes - (held - experiment.read_device("freed").used)
    because = (
        f"{call} of a right pointer returned {code}, and {of(kept, nbytes)} are still used{cause(experiment)}"
    )
    figures = (figure("answer", code, "code"), figure("still used", kept))
    return Conclusion(None if code == OK else code != ILLEGAL_ADDRESS, because, figures)
