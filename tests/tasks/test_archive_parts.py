"""Parts of large files in an archive: a sparse file is divided by its data, whatever its size."""

from __future__ import annotations

import os
import random
import subprocess
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pcopy.archive.member import ArchiveMember, Extents
from pcopy.tasks.archive.write_chunks import part_ranges, stored_extents
from tests.support.archives import ptar
from tests.support.command import show

CHUNK = 1000
RANK: Any = SimpleNamespace(
    computes_digests=False, is_processed_in_chunks=lambda size: size >= 2 * CHUNK, chunk_size_of_file=lambda size: CHUNK
)


def sparse(seed: int) -> ArchiveMember:
    chosen = random.Random(seed)
    points = sorted(chosen.sample(range(10**9), 2 * chosen.randint(1, 40)))
    longest = chosen.choice((1, 300, 5000))
    pairs = [(first, min(after - first, longest)) for first, after in zip(points[::2], points[1::2], strict=True)]
    return ArchiveMember(b"f", b"0", 0o644, 0, 0, 0, 10**12, extents=Extents.from_pairs(pairs))


@pytest.mark.parametrize("seed", range(50))
def test_sparse_file_is_divided_by_its_data(seed: int) -> None:
    member = sparse(seed)
    extents = member.extents
    assert extents is not None
    parts = part_ranges(RANK, member, is_framed=False)
    assert (parts[0][0], parts[-1][1]) == (0, member.size)
    assert all(one[1] == other[0] for one, other in pairwise(parts))
    assert len(parts) <= extents.data_size // CHUNK + 1

    expected = [(first + at, number) for number, (first, at) in enumerate(
        (first, at) for first, length in extents for at in range(length)
    )]  # fmt: skip
    found: list[tuple[int, int]] = []
    for start, end in parts:
        stored = 0
        for first, after, at in stored_extents(member, start, end):
            found += zip(range(first, after), range(at, at + after - first), strict=True)
            stored += after - first
        assert stored <= CHUNK or len(parts) == 1
    assert found == expected


@pytest.mark.alone
@pytest.mark.parametrize("way", [(), ("--zstd",)])
def test_holes_of_a_sparse_file_take_no_time(tmp_path: Path, way: tuple[str, ...]) -> None:
    """Division by size took a minute and produced half a million frames."""
    places = [number * ((1 << 42) // 3000) // 4096 * 4096 for number in range(3000)]
    with (tmp_path / "f").open("wb") as file:
        file.truncate(1 << 42)
        for place in places:
            file.seek(place)
            file.write(b"x" * 4096)
    done = ptar("-c", "-q", *way, "-f", tmp_path / "a.tar", "f", ranks=2, cwd=tmp_path, timeout=20)
    assert (done.returncode, done.stderr) == (0, b""), show(done)
    (tmp_path / "by_tar").mkdir()
    subprocess.run(["tar", "-xf", "a.tar", "-C", "by_tar"], cwd=tmp_path, check=True)
    with (tmp_path / "f").open("rb") as file, (tmp_path / "by_tar/f").open("rb") as unpacked:
        assert os.fstat(file.fileno()).st_blocks == os.fstat(unpacked.fileno()).st_blocks
        assert os.fstat(file.fileno()).st_size == os.fstat(unpacked.fileno()).st_size
        for place in places:
            assert os.pread(unpacked.fileno(), 4096, place) == b"x" * 4096
