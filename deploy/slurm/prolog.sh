#!/bin/sh
# Prolog of slurm.conf: frees what earlier jobs left on the GPUs of the job that is about to start.
# With --require 70GiB or --require-clean a GPU that is not ready drains the node, and the job is queued again.
exec /usr/bin/vram slurm prolog --log /var/log/vram-slurm.jsonl
