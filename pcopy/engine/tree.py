"""The k-ary tree over the ranks: rank r's children are k·r+1 … k·r+k, and rank 0 is the root."""

from __future__ import annotations


def parent(rank: int, fan_out: int) -> int:
    """The rank above ``rank``; the root has none (-1)."""
    return (rank - 1) // fan_out if rank else -1


def children(rank: int, size: int, fan_out: int) -> range:
    """The ranks right below ``rank``."""
    first = fan_out * rank + 1
    return range(min(first, size), min(first + fan_out, size))
