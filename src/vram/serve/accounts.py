"""Whose share of the service a client uses: each user of this machine has one, and all others one together.

A user with subordinate uids (/etc/subuid) is 65,536 users: in containers, and outside by set-uid programs.
"""

from __future__ import annotations

import os

OTHERS = -1
"""The account of all whom the kernel does not name as a user of this machine."""
_SUBORDINATE = "/etc/subuid"
_MAX_BYTES = 1 << 20


def account_of(uid: int) -> int:
    """The account of *uid* in our user namespace: itself, or OTHERS where it is subordinate to somebody."""
    return OTHERS if uid and any(first <= uid < first + count for first, count in _subordinate()) else uid


def is_privileged(account: int) -> bool:
    """Whether nobody else may use up what this account needs: root's, and that of the service."""
    return account in (0, os.geteuid())


def _subordinate() -> list[tuple[int, int]]:
    try:
        with open(_SUBORDINATE, encoding="utf-8", errors="replace") as file:
            lines = file.read(_MAX_BYTES).splitlines()
    except OSError:
        return []
    fields = [line.strip().split(":")[1:] for line in lines]
    return [
        (int(each[0]), int(each[1])) for each in fields if len(each) == 2 and all(map(str.isdecimal, each))
    ]
