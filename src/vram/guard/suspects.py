"""placeholder"""
from __future__ import annotations
class Baseline:
    @classmethod
    def take(cls, name, *, wanted): return None
def named(leak, baseline): return leak
def nbytes_in(value): return 0
