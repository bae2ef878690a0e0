#!/bin/sh
# HealthCheckProgram of slurm.conf: only reads. Without --drain the exit code is all that comes of it.
# A slurm.conf that is not at its usual place must be named here: slurmd does not pass SLURM_CONF on.
exec /usr/bin/vram slurm health --log /var/log/vram-slurm.jsonl --drain
