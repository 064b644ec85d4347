"""False discoveries: of many rows tested at once, which differences remain."""

from __future__ import annotations

from collections.abc import Sequence

LIMIT = 0.05
"""Of the differences that are called so, at most this part is expected to be chance."""


def adjusted(chances: Sequence[float]) -> list[float]:
    """The false-discovery rate at which each row would just be called a difference, in the order given.

    q(i) = min over j >= i of p(j) m / j, rows sorted by p (Benjamini and Hochberg 1995).
    """
    order = sorted(range(len(chances)), key=lambda at: chances[at], reverse=True)
    found = [1.0] * len(chances)
    least = 1.0
    for passed, at in enumerate(order):
        least = min(least, chances[at] * len(chances) / (len(chances) - passed))
        found[at] = least
    return found
