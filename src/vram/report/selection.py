"""Which findings people read: all that matter, and of many alike the largest few."""

from __future__ import annotations

from collections import Counter

from vram.model.finding import Finding

# A node with 500 healthy workers has 500 findings that say so. JSON has them all.
MOST_ALIKE = {"problem": 12, "warning": 6, "info": 3}


def select(findings: tuple[Finding, ...]) -> tuple[tuple[Finding, ...], Counter[str]]:
    """Return the findings to show, in their order, and how many of each code are left out."""
    seen: Counter[tuple[str, str]] = Counter()
    left_out: Counter[str] = Counter()
    shown = []
    for finding in findings:
        alike = (finding.code, finding.severity)
        seen[alike] += 1
        if seen[alike] <= MOST_ALIKE[finding.severity]:
            shown.append(finding)
        else:
            left_out[finding.code] += 1
    return tuple(shown), left_out
