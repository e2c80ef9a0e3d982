"""Makes the names of temporary files known before a run: strace picks calls by paths, and those hold a random job."""

from __future__ import annotations

import os

_random = os.urandom
JOB_BYTES = 5


def _known(size: int) -> bytes:
    return bytes(size) if size == JOB_BYTES else _random(size)


os.urandom = _known
