"""A file system with quirks for tests: each switch is one way in which a real file system differs from a local one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from bench.latency import can_mount, mounted_slow


@contextmanager
def quirky(backing: Path, *quirks: str) -> Iterator[Path]:
    """Yield the mount point of ``backing`` with ``quirks``, such as ``"link=EXDEV"``, which exists within the context.

    Skip the test if it cannot be mounted.
    """
    if not can_mount():
        pytest.skip("it takes root and libfuse3-dev")
    with mounted_slow(backing, quirks=quirks) as mounted:
        yield mounted.path
