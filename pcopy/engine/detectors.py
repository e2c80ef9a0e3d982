"""The termination detectors by their names on the command line."""

from __future__ import annotations

from pcopy.engine.safra import Safra
from pcopy.engine.termination import Detector, DijkstraScholten

DETECTORS = ("tree", "ring")


def make_detector(name: str, rank: int, size: int) -> Detector:
    """``tree``: Dijkstra and Scholten's; ``ring``: Safra's. Both for one rank of ``size``."""
    if name == "tree":
        return DijkstraScholten(rank)
    if name == "ring":
        return Safra(rank, size)
    raise ValueError(f"no termination detector is called {name}")
