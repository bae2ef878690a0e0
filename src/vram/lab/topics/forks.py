"""Claims: forks and children."""

from __future__ import annotations

from vram.lab.claim import OK, CannotTell, Conclusion, Takes, claim, figure, judge
from vram.lab.experiment import Experiment
from vram.units import MIB, size

TOPIC = "Forks and children"


@claim("fork-harmless", TOPIC, takes=Takes(256 * MIB))
def fork_harmless(experiment: Experiment) -> Conclusion:
    """A fork is harmless: the memory goes when the process that allocated it ends

    Source: Folklore: data loaders and servers fork after using CUDA.

    Method:
    A process allocates 256 MiB and forks. The child only sleeps. The parent is killed, and the device
    is read.

    Reading:
    A fork copies the open device files, and these hold the memory. Start workers before CUDA is used,
    or with the spawn method.
    """
    parent, held = experiment.holder()
    parent.fork()
    parent.kill()
    left = experiment.used("parent killed")
    return judge(left, held, "still used while the forked child sleeps", claimed=False)


@claim("list-names-the-dead", TOPIC, takes=Takes(64 * MIB))
def list_names_the_dead(experiment: Experiment) -> Conclusion:
    """The driver's process list names living processes only

    Source: Folklore: a pid that nvidia-smi lists and ps does not know is taken for a driver bug.

    Method:
    A process with a context and 64 MiB forks, and is killed. Its child sleeps. The process list is
    searched for the dead pid.

    Reading:
    The list names the process that made the context, also after its end, as long as its files are open.
    `kill` on that pid can do nothing: end the child.
    """
    parent = experiment.cuda_worker()
    parent.call("alloc", experiment.nbytes)
    if parent.pid not in experiment.read_device("allocated").charges:
        raise CannotTell("the driver's list does not use the pids that are valid here")
    child = parent.fork()
    parent.kill()
    charges = experiment.read_device("parent killed").charges
    listed = charges.get(parent.pid)
    if listed is None:
        return Conclusion(
            True, f"the dead pid is not listed, its child is{'' if child.pid in charges else ' not'}"
        )
    because = f"the dead pid is listed with {size(listed)}, its sleeping child is not"
    return Conclusion(False, because, (figure("charged to the dead pid", listed),))


@claim("forked-child-uses", TOPIC, takes=Takes(2 * MIB))
def forked_child_uses(experiment: Experiment) -> Conclusion:
    """A forked child can go on using its parent's GPU memory

    Source: Folklore: fork shares everything else.

    Method:
    A process makes a context and forks. The child asks the driver for 2 MiB, and its answer is read.

    Reading:
    CUDA does not work in a process that was forked from one that used it (the driver answers 3, not
    initialised). The child keeps the memory alive and cannot use it.
    """
    parent = experiment.cuda_worker()
    child = parent.fork()
    code = child.call("alloc_code", 2 * MIB)
    words = "it was given memory" if code == OK else "its call was refused"
    return Conclusion(
        code == OK, f"{words}: cuMemAlloc in the child returned {code}", (figure("answer", code, "code"),)
    )


@claim("fork-child-closes", TOPIC, takes=Takes(256 * MIB))
def fork_child_closes(experiment: Experiment) -> Conclusion:
    """A forked child that closes the device files releases its parent's memory

    Source: Folklore; what daemons do that close every descriptor after a fork.

    Method:
    A process allocates 256 MiB and forks. The child closes the device files that it inherited and
    keeps their mappings. The parent is killed.

    Reading:
    Memory belongs to the open files. Mappings of device files alone hold nothing.
    """
    parent, held = experiment.holder()
    child = parent.fork()
    closed = child.call("close_device_files")
    parent.kill()
    left = experiment.used("parent killed")
    return judge(left, held, f"still used after the child closed {closed} files", claimed=False)


@claim("subprocess-keeps", TOPIC, takes=Takes(256 * MIB))
def subprocess_keeps(experiment: Experiment) -> Conclusion:
    """A program started from a CUDA program keeps its GPU memory alive

    Source: Folklore: what is true of a fork is said of every child.

    Method:
    A process allocates 256 MiB and starts another program, as subprocess does: fork and exec. The
    first is killed, the other runs on.

    Reading:
    The driver opens its files close-on-exec, so another program inherits none of them. Only children
    that never exec keep memory: see fork-harmless.
    """
    parent, held = experiment.holder()
    parent.spawn()
    parent.kill()
    return judge(experiment.used("parent killed"), held, "still used while the other program runs")
