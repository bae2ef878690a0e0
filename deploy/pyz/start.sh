#!/bin/sh
# vram.pyz: vram with all that it needs but Python. This part finds a Python that is new enough, the rest is a zip.
for python in python3 python3.14 python3.13 python3.12 python3.11 python3.10 /opt/python3*/bin/python3; do
    "$python" -I -S -c 'import sys; sys.exit(sys.version_info < (@OLDEST@))' 2>/dev/null && exec "$python" -I "$0" "$@"
done
echo "vram: no Python @OLDEST_NAME@ or newer is on PATH, and vram.pyz brings none" >&2
echo "  hint: install one beside the system's own (dnf install python3.12; apt install python3), or name it: PYTHON vram.pyz" >&2
exit 1
