"""State machines as tables: what is not in the table can't happen, and raises."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import TypeVar

from pcopy.errors import InvariantBroken

S = TypeVar("S", bound=Enum)

Table = Mapping[S, frozenset[S]]
"""For each state those that may follow it."""


def follow(table: Table[S], state: S, following: S, rank: int) -> S:
    """``following``, if it may follow ``state``; raises ``InvariantBroken``."""
    if following not in table[state]:
        raise InvariantBroken(f"rank {rank} can't go from {state.value} to {following.value}")
    return following
