"""Jobs come, die and leave workers behind while ``vram free --yes`` runs again and again; who works lives on.

    churn.py ROUNDS SEED      on a virtual GPU; prints one JSON line of counts

Healthy are programs, and workers that were forked before CUDA and made contexts of their own. They
begin at random moments, also while vram looks. Trainers are killed at random moments and leave forked
workers. vram itself is killed at a random moment in a part of the rounds.
"""

from __future__ import annotations

import json
import os
import random
import select
import signal
import subprocess
import sys
import time

from shared_machine import Job, used_bytes

VRAM = [sys.executable, "-m", "vram", "free", "--yes", "--up-to", "kill", "--json"]


def main() -> None:
    rounds, seed = int(sys.argv[1]), int(sys.argv[2])
    chance = random.Random(seed)
    healthy: list[Job] = []
    dead: list[Job] = []
    told = {
        "rounds": 0,
        "ghosts": 0,
        "freed": 0,
        "healthy_started": 0,
        "healthy_died": 0,
        "vram_killed": 0,
    }
    for _ in range(rounds):
        group = chance.random() < 0.5
        if chance.random() < 0.7:
            dead.append(Job(0, "trainer", 512, chance.randint(1, 3), group=group))
            dead[-1].die(reaped=chance.random() < 0.8)
            told["ghosts"] += 1
        free = subprocess.Popen(VRAM, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        if len(healthy) < 6:
            # It begins while vram looks, perhaps between the reading of lists and of files.
            time.sleep(chance.uniform(0, 0.3))
            healthy.append(Job(0, chance.choice(("server", "prefork")), 256, 1, group=group))
            told["healthy_started"] += 1
        if chance.random() < 0.2:
            time.sleep(chance.uniform(0, 0.5))
            free.kill()
            told["vram_killed"] += 1
        free.communicate()
        told["rounds"] += 1
        told["healthy_died"] += sum(job.gone(pid) for job in healthy for pid in job.pidfds)
        healthy = [job for job in healthy if not any(job.gone(pid) for pid in job.pidfds)]
        gone = [job for job in dead if all(job.gone(pid) for pid in job.workers)]
        told["freed"] += len(gone)
        for job in gone:
            finish(job)
        dead = [job for job in dead if job not in gone]
        if len(healthy) >= 6:
            assert all(job.answers() for job in healthy)
            for job in healthy[:3]:
                finish(job)
            healthy = healthy[3:]
    subprocess.run(VRAM, stdout=subprocess.DEVNULL, check=True)
    told["freed"] += sum(all(job.gone(pid) for pid in job.workers) for job in dead)
    for job in (*healthy, *dead):
        finish(job)
    told["used_at_the_end"] = sum(used_bytes())
    print(json.dumps(told), flush=True)


def finish(job: Job) -> None:
    for pid, pidfd in job.pidfds.items():
        if not job.gone(pid):
            signal.pidfd_send_signal(pidfd, signal.SIGKILL)
            select.select([pidfd], [], [], 60)
        os.close(pidfd)
    job.pidfds.clear()
    job.stdin.close()
    job.stdout.close()
    job.process.wait()


if __name__ == "__main__":
    main()
