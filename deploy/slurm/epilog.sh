#!/bin/sh
# Epilog of slurm.conf: frees what the ended job left on its GPUs. slurmd sets no PATH, so every path is whole.
# Any exit code but 0 drains the node: 1, memory of the job is still held.
exec /usr/bin/vram slurm epilog --log /var/log/vram-slurm.jsonl --job-output
