"""Recorded nodes of a large fleet, as a cluster that trains and serves models has them.

python bench/fleet_nodes.py FOLDER [--nodes 1250] [--gpus 8] [--seed 15]

One snapshot a node. Six of ten nodes train (a rank for each GPU, each with data loaders that inherited
its device files), three serve, one is idle; two in a hundred have memory of a dead owner, one in two
hundred bytes that nothing explains, and a few files are of nodes that lie. The same seed gives the same
fleet. Files and their number for each process are those of real snapshots.
"""

from __future__ import annotations

import argparse
import random
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))

from vram.model.files import DeviceFile, FilesFacts
from vram.model.gpu import ChargeFacts, DriverFacts, GpuFacts, MemoryFacts
from vram.model.observation import HostFacts, Observation, ProbeRun, Survey
from vram.model.process import ProcessFacts, ProcessRef, Workload
from vram.probes import bundle

GIB, MIB, KIB = 1 << 30, 1 << 20, 1 << 10
TOTAL = 80 * GIB - 256 * MIB
RESERVED = 615 * MIB
CONTEXT = 518 * MIB
LOADERS = 4
PROBES = ("files", "nvml", "files.late", "exports", "processes")
USERS = tuple(f"user{number:03}" for number in range(200))


class NodeBuilder:
    """One node's observations, added process by process."""

    def __init__(self, number: int, gpus: int, chance: random.Random) -> None:
        self.number, self.gpus, self.chance = number, gpus, chance
        self.used = dict.fromkeys(range(gpus), 0)
        self.contexts = dict.fromkeys(range(gpus), 0)
        self.found: list[Observation] = []
        self.pid = 2000 + chance.randrange(30000)
        self.open_files = 1

    def process(
        self,
        argv: str,
        user: str,
        *,
        parent: int = 1,
        job: str | None = None,
        pod: str | None = None,
        forked: bool = False,
    ) -> ProcessRef:
        self.pid += self.chance.randrange(1, 40)
        who = ProcessRef(self.pid, 88_000 + self.pid, 4026531836)
        words = tuple(argv.split())
        group = (
            f"/system.slice/slurmstepd.scope/job_{job}/step_0/user/task_0" if job else "/kubepods/burstable"
        )
        facts = ProcessFacts(
            command=words[0][:15],
            argv=words,
            uid=1000 + int(user[-3:]),
            user=user,
            executable="/opt/conda/bin/python3.11",
            kernel_thread=False,
            state="S",
            forked=forked,
            parent=parent,
            group=parent,
            session=parent,
            age_s=float(self.chance.randrange(60, 600_000)),
            namespace_pids=(self.pid,),
            cgroup=group,
            workload=Workload(slurm_job=job, slurm_step="0" if job else None, pod=pod),
        )
        self.found.append(Observation(probe="proc.processes", process=who, facts=facts))
        return who

    def files(self, who: ProcessRef, like: tuple[DeviceFile, ...] | None = None) -> tuple[DeviceFile, ...]:
        """A context's files on every GPU, as CUDA opens them; *like*: the same, inherited by a fork."""
        opened = like or tuple(self._opened())
        facts = FilesFacts(opened, mappings=31, managed_bytes=0)
        self.found.append(Observation(probe="proc.files", process=ProcessRef(who.pid), facts=facts))
        return opened

    def _opened(self) -> list[DeviceFile]:
        files = [DeviceFile(3, "control", "/dev/nvidiactl", None, self._description())]
        files += [DeviceFile(fd, "uvm", "/dev/nvidia-uvm") for fd in (4, 5)]
        for gpu in range(self.gpus):
            paths = [f"/dev/nvidia{gpu}"] * 5
            files += [
                DeviceFile(7 + 6 * gpu + at, "gpu", path, gpu, self._description())
                for at, path in enumerate(paths)
            ]
        return files

    def _description(self) -> int:
        self.open_files += self.chance.randrange(1, 9)
        return self.open_files

    def charge(self, pid: int, gpu: int, nbytes: int, started_at: int | None = None) -> None:
        self.used[gpu] += nbytes
        self.contexts[gpu] += 1
        facts = ChargeFacts(("compute",))
        who = ProcessRef(pid, started_at)
        self.found.append(
            Observation(probe="nvml.processes", gpu=gpu, process=who, nbytes=nbytes, facts=facts)
        )

    def train(self) -> None:
        job, user = str(100_000 + self.number // 16), USERS[(self.number // 16) % len(USERS)]
        launcher = self.process("torchrun --nnodes 16 --nproc-per-node 8 train.py", user, job=job)
        for gpu in range(self.gpus):
            argv = f"/opt/conda/bin/python3.11 -u train.py --config configs/7b.yaml --local-rank {gpu}"
            rank = self.process(argv, user, parent=launcher.pid, job=job)
            opened = self.files(rank)
            for _ in range(LOADERS):
                loader = self.process(argv, user, parent=rank.pid, job=job, forked=True)
                self.files(loader, opened)
            self.charge(rank.pid, gpu, CONTEXT + self.chance.randrange(40, 74) * GIB, rank.started_at)

    def serve(self) -> None:
        pod = f"{self.chance.getrandbits(32):08x}-0000-4000-8000-{self.number:012x}"
        user = USERS[self.number % len(USERS)]
        for gpu in range(self.gpus):
            argv = f"/usr/bin/python3 -m vllm.entrypoints.openai.api_server --tensor-parallel-rank {gpu}"
            server = self.process(argv, user, pod=pod)
            self.files(server)
            self.charge(server.pid, gpu, CONTEXT + self.chance.randrange(60, 72) * GIB, server.started_at)

    def ghost(self) -> None:
        """A data loader whose parent was killed: the driver lists a pid that is gone."""
        gpu, user = self.chance.randrange(self.gpus), USERS[self.chance.randrange(len(USERS))]
        dead = self.pid + 1
        self.pid += 1
        loader = self.process("python3 -u finetune.py --lr 1e-5", user, job="99999", forked=True)
        self.files(loader)
        room = (TOTAL - RESERVED - self.used[gpu]) // MIB - 600
        self.charge(dead, gpu, max(1, min(4096, room)) * MIB)

    def survey(self, unexplained: int = 0) -> Survey:
        self.used[0] += unexplained
        for gpu in range(self.gpus):
            uuid = f"GPU-{self.number:08x}-0000-4000-8000-{gpu:012x}"
            facts = GpuFacts(
                uuid=uuid,
                name="NVIDIA H100 80GB HBM3",
                minor=gpu,
                bus_id=f"00000000:{gpu + 1:02X}:00.0",
                persistence=True,
                compute_mode="default",
                mig_enabled=False,
                ecc_enabled=True,
                utilization=self.chance.randrange(0, 101),
            )
            # What contexts cost beyond their charge, as on an H200.
            overhead = self.contexts[gpu] * 5696 * KIB + (3328 * KIB if self.contexts[gpu] else 0)
            used = min(self.used[gpu] + overhead, TOTAL - RESERVED)
            memory = MemoryFacts(
                total=TOTAL,
                free=TOTAL - RESERVED - used,
                used=used,
                reserved=RESERVED,
                v1_used=used + RESERVED,
            )
            self.found += [
                Observation(probe="nvml.gpu", gpu=gpu, facts=facts),
                Observation(probe="nvml.memory", gpu=gpu, facts=memory),
            ]
        self.found.append(Observation(probe="nvml.driver", facts=DriverFacts("580.159.04", "580.159.04")))
        return Survey(
            program="vram 0.1.0",
            taken_at="2026-01-01T00:00:00Z",
            host=HostFacts(name=node_name(self.number), kernel="6.8.0", user="root", uid=0),
            observations=tuple(self.found),
            probes=tuple(ProbeRun(name, "ok", 0.01) for name in PROBES),
        )


def node_name(number: int) -> str:
    return f"gpu-{number:04}"


def node(number: int, gpus: int, seed: int) -> Survey:
    """One node of the fleet; the same for the same seed."""
    chance = random.Random(f"{seed} {number}")
    made = NodeBuilder(number, gpus, chance)
    what = chance.random()
    if what < 0.6:
        made.train()
    elif what < 0.9:
        made.serve()
    if chance.random() < 0.02:
        made.ghost()
    return made.survey(3 * GIB if chance.random() < 0.005 else 0)


def write(folder: Path, nodes: int, gpus: int = 8, seed: int = 15) -> int:
    """Write the fleet; return how many bytes it is. A few nodes lie, or were cut short."""
    folder.mkdir(parents=True, exist_ok=True)
    nbytes = 0
    for number in range(nodes):
        data = bundle.dumps(node(number, gpus, seed))
        if number % 400 == 199:
            data = data[: len(data) // 2]
        elif number % 400 == 299:
            data = data.replace(b'"schema": 1,', b'"schema": 99,', 1)
        (folder / f"{node_name(number)}.json").write_bytes(data)
        nbytes += len(data)
    return nbytes


def main() -> None:
    parser = argparse.ArgumentParser(description="Recorded nodes of a large fleet.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--nodes", type=int, default=1250)
    parser.add_argument("--gpus", type=int, default=8)
    parser.add_argument("--seed", type=int, default=15)
    args = parser.parse_args()
    nbytes = write(args.folder, args.nodes, args.gpus, args.seed)
    print(f"{args.nodes:,} nodes, {nbytes / MIB:.1f} MiB")


if __name__ == "__main__":
    main()
