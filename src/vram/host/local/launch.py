"""How a process was launched together with others: by which launcher, for which job, as which rank.

A launcher tells those whom it starts who they are, in their environment or on their command line. The
environment is handed on to whatever they start themselves, so it alone proves nothing. ``direct`` is said
only of a process that shows what no more than the launcher's own child has:

    torchrun, accelerate    TORCHELASTIC_RUN_ID, leads its session, and runs as "python -u ..."
    deepspeed               LOCAL_SIZE, LOCAL_RANK and the same number as --local_rank, and "python -u ..."
    mpirun (Open MPI)       OMPI_COMM_WORLD_RANK, PMIX_RANK, and leads its process group but no session
    mpirun (Hydra)          PMI_RANK, leads its session, and has the socket open that PMI_FD names
    multiprocessing         "... spawn_main(...) --multiprocessing-fork"; a fork of its fork server
    vLLM, SGLang, Ray       the title that they give to their workers, which are Python programs
    Jupyter                 "-m ipykernel_launcher" with a connection file, JPY_PARENT_PID, leads its session
    debugpy                 ".../debugpy --connect ... --adapter-access-token ...", leads its process group

A process can make all of this up, but only for itself: a job is of one user, and being a part of one is no
reason to be ended.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from vram.host.local.workload import variables
from vram.model.process import LaunchClaim, Launcher, ProcessFacts
from vram.payloads.procfs import ProcessFolder

# Read only where one of these words is in the environment: most have none.
CLAIMS = (b"RANK=", b"JPY_PARENT_PID=")
_WANTED = frozenset(
    (
        *(b"RANK", b"LOCAL_RANK", b"WORLD_SIZE", b"LOCAL_WORLD_SIZE", b"MASTER_ADDR", b"MASTER_PORT"),
        *(b"LOCAL_SIZE", b"TORCHELASTIC_RUN_ID", b"TORCHELASTIC_ERROR_FILE"),
        *(b"OMPI_COMM_WORLD_RANK", b"OMPI_COMM_WORLD_SIZE", b"OMPI_COMM_WORLD_LOCAL_SIZE"),
        *(b"PMIX_RANK", b"PMIX_NAMESPACE", b"PMIX_SERVER_TMPDIR", b"PMI_RANK", b"PMI_SIZE", b"PMI_FD"),
        *(b"JPY_PARENT_PID", b"SLURM_PROCID"),
    )
)

_SPAWN = "from multiprocessing.spawn import spawn_main"
_FORK_SERVER = "from multiprocessing.forkserver import main"
# The titles of those that hold memory or start others that do; what users start themselves has none of them.
_TITLES: tuple[tuple[Launcher, str], ...] = (
    ("vLLM", r"VLLM::(?:EngineCore|Worker|DPCoordinator)"),
    ("SGLang", r"sglang::(?:scheduler|detokenizer|data_parallel_controller)"),
    ("Ray", r"ray::"),
)


def launch(folder: ProcessFolder, facts: ProcessFacts, environ: bytes) -> LaunchClaim | None:
    """How the process with these *facts* was launched; None where nothing tells of a launcher."""
    pid = folder.pid
    by_command = _by_title(facts) or _by_multiprocessing(facts) or _by_debugpy(pid, facts)
    # A fork has its parent's command line and environment, which say nothing of itself.
    if by_command or facts.forked or not any(word in environ for word in CLAIMS):
        return by_command
    said = variables(environ, _WANTED)
    return _by_jupyter(pid, facts, said) or _by_mpi(folder, facts, said) or _by_torch(pid, facts, said)


def _by_multiprocessing(facts: ProcessFacts) -> LaunchClaim | None:
    if any(word.startswith(_FORK_SERVER) for word in facts.argv):
        by: Launcher = "multiprocessing" if facts.forked else "fork server"
        return LaunchClaim(by, _together("multiprocessing", facts), direct=True)
    is_spawned = facts.argv[-1:] == ("--multiprocessing-fork",) and not facts.forked
    if is_spawned and any(word.startswith(_SPAWN) for word in facts.argv):
        return LaunchClaim("multiprocessing", _together("multiprocessing", facts), direct=True)
    return None


def _by_title(facts: ProcessFacts) -> LaunchClaim | None:
    title = facts.argv[0] if facts.argv else ""
    if "::" not in title or not is_python(facts.executable):
        return None
    by = next((name for name, pattern in _TITLES if re.match(pattern, title)), None)
    if by == "Ray":  # its workers lead groups of their own; what they fork has their title
        return None if facts.forked else LaunchClaim(by, f"{by}.{facts.session}", direct=True)
    return LaunchClaim(by, _together(by, facts), direct=True) if by else None


def _by_debugpy(pid: int, facts: ProcessFacts) -> LaunchClaim | None:
    """A program that an editor debugs: debugpy's launcher runs debugpy's folder, and hands on a secret.

    Who runs ``python -m debugpy`` has started it alone. One that is run without debugging shows nothing.
    """
    words = facts.argv[1:]
    folder = next((word for at, word in enumerate(words) if not _is_option_of_python(words, at)), "")
    options = words[words.index(folder) + 1 :] if folder else ()
    is_debuggee = options[:1] == ("--connect",) and "--adapter-access-token" in options
    if not (is_debuggee and folder.endswith("/debugpy") and is_python(facts.executable)):
        return None
    is_child = facts.group == pid != facts.session and not facts.forked
    return LaunchClaim("debugpy", _together("debugpy", facts), direct=True) if is_child else None


def _is_option_of_python(words: tuple[str, ...], at: int) -> bool:
    return words[at].startswith("-") or (at > 0 and words[at - 1] in ("-X", "-W"))


def _by_jupyter(pid: int, facts: ProcessFacts, said: Mapping[bytes, str]) -> LaunchClaim | None:
    recorded = _number(said.get(b"JPY_PARENT_PID"))
    modules = [name for word, name in zip(facts.argv, facts.argv[1:], strict=False) if word == "-m"][:1]
    has_file = any(word.endswith(".json") for word in facts.argv)
    is_kernel = has_file and modules in (["ipykernel_launcher"], ["ipykernel"])
    if recorded is None or not is_kernel or facts.session != pid:
        return None
    return LaunchClaim("Jupyter", _together("Jupyter", facts), direct=True, recorded_pid=recorded)


def _by_mpi(folder: ProcessFolder, facts: ProcessFacts, said: Mapping[bytes, str]) -> LaunchClaim | None:
    if b"SLURM_PROCID" in said:
        return None  # srun starts ranks of its own, with the same variables
    return _by_open_mpi(folder.pid, facts, said) or _by_hydra(folder, facts, said)


def _by_open_mpi(pid: int, facts: ProcessFacts, said: Mapping[bytes, str]) -> LaunchClaim | None:
    rank, size = _number(said.get(b"OMPI_COMM_WORLD_RANK")), _number(said.get(b"OMPI_COMM_WORLD_SIZE"))
    if rank is None or size is None:
        return None
    # The folder of its launcher is named by that one's pid.
    recorded = re.search(r"/pid\.(\d{1,8})$", said.get(b"PMIX_SERVER_TMPDIR", ""))
    return LaunchClaim(
        by="mpirun",
        job=_job_name("mpirun", said),
        direct=_number(said.get(b"PMIX_RANK")) == rank and facts.group == pid != facts.session,
        rank=rank,
        size=size,
        local_size=_number(said.get(b"OMPI_COMM_WORLD_LOCAL_SIZE")),
        recorded_pid=int(recorded[1]) if recorded else None,
    )


def _by_hydra(folder: ProcessFolder, facts: ProcessFacts, said: Mapping[bytes, str]) -> LaunchClaim | None:
    rank, size = _number(said.get(b"PMI_RANK")), _number(said.get(b"PMI_SIZE"))
    descriptor = _number(said.get(b"PMI_FD"))
    if rank is None or size is None or descriptor is None:
        return None
    is_connected = (folder.link(f"fd/{descriptor}") or b"").startswith(b"socket:")
    direct = facts.session == folder.pid and is_connected
    return LaunchClaim("mpirun", "hydra", direct=direct, rank=rank, size=size)


def _by_torch(pid: int, facts: ProcessFacts, said: Mapping[bytes, str]) -> LaunchClaim | None:
    """By torchrun, DeepSpeed, or whatever else sets what torch.distributed reads."""
    rank, size = _number(said.get(b"RANK")), _number(said.get(b"WORLD_SIZE"))
    if rank is None or size is None or b"MASTER_PORT" not in said:
        return None
    local = _number(said.get(b"LOCAL_WORLD_SIZE") or said.get(b"LOCAL_SIZE"))
    unbuffered = is_python(facts.executable) and facts.argv[1:2] == ("-u",)
    if b"TORCHELASTIC_RUN_ID" in said:
        direct = unbuffered and facts.session == pid
        key = _job_name("torchrun", said)
        return LaunchClaim("torchrun", key, direct=direct, rank=rank, size=size, local_size=local)
    number = said.get(b"LOCAL_RANK")
    is_deepspeed = b"LOCAL_SIZE" in said and number is not None and f"--local_rank={number}" in facts.argv
    by: Launcher = "deepspeed" if is_deepspeed else "torch.distributed"
    direct = unbuffered and is_deepspeed
    return LaunchClaim(by, _job_name(by, said), direct=direct, rank=rank, size=size, local_size=local)


def rank_in(environ: bytes, by: Launcher, job: str) -> int | None:
    """Which rank of *job* this environment names. A rank's own children have inherited it."""
    said = variables(environ, _WANTED)
    if by not in ("torchrun", "deepspeed", "mpirun") or _job_name(by, said) != job:
        return None
    return _number(said.get(b"OMPI_COMM_WORLD_RANK" if by == "mpirun" else b"RANK"))


def _job_name(by: Launcher, said: Mapping[bytes, str]) -> str:
    where = f"{said.get(b'MASTER_ADDR', '')}:{said.get(b'MASTER_PORT', '')}"
    if by == "mpirun":
        return _name(by, said.get(b"PMIX_NAMESPACE", ""))
    if by == "torchrun":
        # Each agent makes a folder of its own for what its workers say; ports are used again.
        return _name(by, said.get(b"TORCHELASTIC_ERROR_FILE", "").partition("/attempt_")[0] or where)
    return _name(by, where)


def _together(by: str, facts: ProcessFacts) -> str:
    """What those have in common that one process started and that stayed in its process group."""
    return f"{by}.{facts.session}.{facts.group}"


def _name(by: str, said: str) -> str:
    """What names a job, as a few digits: folders and addresses are no business of who reads a snapshot."""
    from zlib import crc32  # few processes need it

    return f"{by}.{crc32(said.encode()):08x}"


def is_python(executable: str | None) -> bool:
    name = (executable or "").rpartition("/")[2]
    return re.match(r"python|pypy", name) is not None


def _number(text: str | None) -> int | None:
    is_number = text is not None and text.isascii() and text.isdigit() and len(text) <= 8
    return int(text) if text is not None and is_number else None
