"""Two workers of multiprocessing: workers.py METHOD FOLDER."""

from __future__ import annotations

import multiprocessing
import sys

from rank import work

if __name__ == "__main__":
    context = multiprocessing.get_context(sys.argv[1])
    processes = [context.Process(target=work, args=(sys.argv[2], str(number))) for number in range(2)]
    for each in processes:
        each.start()
    for each in processes:
        each.join()
