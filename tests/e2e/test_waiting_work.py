"""Where the work waits that a rank's memory can't hold: in a database or in plain files, and from how much on.

A directory of some thousand names makes a task for every 256 of them at once, of some 53 KB each for their length.
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
"""Numbers of names whose tasks 1 MiB in memory holds, with those that are gathered before they are put aside, and does
not."""

DATABASE, PLAIN = r'"/proc/self/fd/[0-9]+/pcopy-spool-[^"/]+/data\.mdb"', r'"/proc/self/fd/[0-9]+", [A-Z_|]*O_TMPFILE'
"""Files in the directory that --spool names, which is held open."""


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
def test_what_memory_cannot_hold_goes_into_a_database_unless_plain_files_are_asked_for(
    trees: dict[int, Path], area: Path, number: int, ranks: int, options: str, in_database: bool
) -> None:
    """``--memory`` is for all ranks of the host; with ``lmdb`` each holds 1 MiB, without much more."""
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
