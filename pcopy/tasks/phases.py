"""The phases of a copy, in their order. Each begins when the one before is over on every rank."""

from __future__ import annotations

from enum import IntEnum


class Phase(IntEnum):
    """COPY scans and copies; LINK makes hard links and tries again what changed while it was copied; FINISH gives
    directories their metadata; SEAL does so for those that their owner could not enter afterwards; SYNC brings
    everything to stable storage."""

    COPY = 0
    LINK = 1
    FINISH = 2
    SEAL = 3
    SYNC = 4
