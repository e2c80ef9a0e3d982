"""Make the names of temporary files predictable: strace selects calls by paths, and these names contain a random job
name."""

from __future__ import annotations

import os

_random = os.urandom
JOB_BYTES = 5


def _known(size: int) -> bytes:
    return bytes(size) if size == JOB_BYTES else _random(size)


os.urandom = _known
