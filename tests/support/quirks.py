"""A file system of quirks for tests: each switch is one way in which a real file system differs from a local one.

``bench/latencyfs/latencyfs.c`` lists the switches.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from bench.latency import can_mount, mounted_slow


@contextmanager
def quirky(backing: Path, *quirks: str) -> Iterator[Path]:
    """The mount point of ``backing`` with ``quirks``, such as ``"link=EXDEV"``, for as long as the context lasts.

    The test is skipped where it cannot be mounted.
    """
    if not can_mount():
        pytest.skip("it takes root and libfuse3-dev")
    with mounted_slow(backing, quirks=quirks) as mounted:
        yield mounted.path
