"""Waiting work that exceeds the memory of a rank: it is stored in a database or in simple files.

A directory of some thousand names creates a task for every 256 of them, each of some 53 KB since names are long.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.command import succeed
from tests.support.faults import require_strace
from tests.support.filesystems import scratch
from tests.support.oracle import differences

FEW, MANY = 6700, 12000
"""Numbers of names whose tasks fit, and do not fit, into 1 MiB and the buffer for writing to disk."""

DATABASE, PLAIN = r'"/proc/self/fd/[0-9]+/pcopy-spool-[^"/]+/data\.mdb"', r'"/proc/self/fd/[0-9]+", [A-Z_|]*O_TMPFILE'
"""Patterns of files in the directory of --spool, which is kept open."""


@pytest.fixture(scope="module")
def trees() -> Iterator[dict[int, Path]]:
    with scratch() as place:
        made = {number: place / str(number) for number in (FEW, MANY)}
        for number, path in made.items():
            path.mkdir()
            for name in range(number):
                (path / f"{name:0200}").mkdir()
        yield made


@pytest.mark.in_turn(4)
@pytest.mark.parametrize(
    ("number", "ranks", "options", "in_database"),
    [
        (FEW, 1, "--memory 1K --checkpoint-store auto", True),
        (FEW, 1, "--memory 1K --checkpoint-store pickle", False),
        (MANY, 1, "", False),
        (FEW, 1, "--checkpoint-store lmdb", False),
        (MANY, 1, "--checkpoint-store lmdb", True),
        (MANY, 1, "--memory 4M", False),
        (MANY, 4, "--memory 4M", True),
    ],
)
def test_work_that_exceeds_memory_is_stored_in_a_database_unless_files_are_requested(
    trees: dict[int, Path], area: Path, number: int, ranks: int, options: str, in_database: bool
) -> None:
    """``--memory`` is the limit for all ranks of the host. With ``lmdb`` each rank holds 1 MiB, otherwise much more."""
    require_strace()
    spool, copy, log = area / "spool", area / "copy", area / "log"
    spool.mkdir()
    calls = ["strace", "-f", "-qq", "-s", "4096", "--seccomp-bpf", "-o", str(log), "-e", "trace=openat"]
    succeed(*options.split(), "--spool", spool, "-T", trees[number], copy, ranks=ranks, wrap=calls)
    seen = log.read_text()
    assert bool(re.search(DATABASE, seen)) == in_database
    if "pickle" in options:
        assert re.search(PLAIN, seen), "no spool was written"
    assert list(spool.iterdir()) == []
    assert differences(trees[number], copy) == []
