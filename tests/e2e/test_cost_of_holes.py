"""The cost of copying a sparse file depends on its data, not on its apparent size."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.support.command import succeed
from tests.support.faults import require_strace

SIZE, EXTENTS = 1 << 40, 50


def extents(path: Path) -> list[tuple[int, bytes]]:
    """Return offset and content of each data extent, as found by lseek(2)."""
    found, at = [], 0
    with open(path, "rb", buffering=0) as file:
        while at < SIZE:
            try:
                first = os.lseek(file.fileno(), at, os.SEEK_DATA)
            except OSError:
                break
            at = os.lseek(file.fileno(), first, os.SEEK_HOLE)
            found.append((first, os.pread(file.fileno(), at - first, first)))
    return found


@pytest.mark.parametrize("ranks", [1, 2])
def test_large_sparse_file_is_opened_few_times(area: Path, ranks: int) -> None:
    """Copied in chunks of 1 GiB it would be opened 1,024 times."""
    require_strace()
    with open(area / "sparse", "wb") as file:
        os.truncate(file.fileno(), SIZE)
        for number in range(EXTENTS):
            os.pwrite(file.fileno(), b"%d" % number * 100, number * (SIZE // EXTENTS) // 4096 * 4096)
    trace = area / "trace"
    wrap = ["strace", "-f", "-qq", "-o", trace, "-e", "trace=openat"]
    succeed("--checkpoint", "none", area / "sparse", area / "copy", ranks=ranks, wrap=wrap)
    assert (area / "copy").stat().st_size == SIZE and extents(area / "copy") == extents(area / "sparse")
    assert trace.read_text().count('"sparse"') < 50 * ranks
