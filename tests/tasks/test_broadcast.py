"""The tree of hosts along which pbcast sends, the holes that it leaves, and its reaction to damaged data."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from pcopy.fsio.attributes import ItemMetadata
from pcopy.tasks.base.job import BroadcastOptions, JobCounters, Options
from pcopy.tasks.base.result import TaskResult
from pcopy.tasks.broadcast.directory import HostDirectory
from pcopy.tasks.broadcast.send import (
    BEGIN,
    DATA,
    END,
    MAX_CHAIN_LENGTH,
    PAGE_BYTES,
    HostStreamRelay,
    nonzero_ranges,
    tree_neighbours,
)
from tests.support.command import REPOSITORY
from tests.tasks.one_rank import surroundings


@pytest.mark.parametrize("hosts", [1, 2, MAX_CHAIN_LENGTH, MAX_CHAIN_LENGTH + 1, 100, 1000])
def test_each_host_receives_the_stream_once_from_an_earlier_host(hosts: int) -> None:
    above = [tree_neighbours(place, hosts)[0] for place in range(hosts)]
    below = [(place, each) for place in range(hosts) for each in tree_neighbours(place, hosts)[1]]
    assert above[0] == -1
    assert below == [(above[place], place) for place in range(1, hosts)]
    assert all(number < place for place, number in enumerate(above))
    most = 1 if hosts <= MAX_CHAIN_LENGTH else 2
    assert max((above.count(place) for place in range(hosts)), default=0) <= most


@given(
    st.lists(st.sampled_from([b"\0" * PAGE_BYTES, b"x" * PAGE_BYTES, b"\0" * (PAGE_BYTES - 1) + b"y"])),
    st.binary(max_size=PAGE_BYTES - 1),
)
def test_skipped_ranges_are_zeros(pages: list[bytes], rest: bytes) -> None:
    data = b"".join(pages) + rest
    copy = bytearray(len(data))
    written = 0
    for start, end in nonzero_ranges(data):
        copy[start:end] = data[start:end]
        written += end - start
    assert copy == data
    zeros = sum(PAGE_BYTES for page in pages if not page.strip(b"\0")) + (len(rest) if not rest.strip(b"\0") else 0)
    assert written == len(data) - zeros


@pytest.mark.parametrize("damage", [False, True])
def test_damaged_data_leaves_the_existing_file(area: Path, damage: bool) -> None:
    """A bit changed during the transfer: the existing file stays."""
    contents = b"contents" * 1000
    (area / "file").write_bytes(b"old")
    with surroundings([], Options(), program=BroadcastOptions()) as (rank, _):
        rank.shared_instance(HostDirectory).open(bytes(area))
        result = TaskResult(rank, 0, (1, 0, 1))
        sent = contents.replace(b"t", b"T", 1) if damage else contents
        attributes = ItemMetadata(0o100640, os.getuid(), os.getgid(), 10**18, 10**18)
        digest = xxhash.xxh3_128(contents).digest()
        parts = (BEGIN, b"file", 8000, None), (DATA, sent, 0, None), (END, digest, 8000, attributes)
        for _ in rank.shared_instance(HostStreamRelay).process_stream_parts(parts, result):
            continue
        totals = JobCounters(*result.outcome_for_engine().counts)
    assert (totals.found, totals.files, totals.failed) == (1, not damage, damage)
    assert [failure.message for failure in result.failures] == (
        [f"what has arrived is not what was read: its digest differs, on {os.uname().nodename}"] if damage else []
    )
    assert os.listdir(area) == ["file"]
    assert (area / "file").read_bytes() == (b"old" if damage else contents)


FAULTS = """
import resource
from pcopy import libc
{keep}
def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(50):
        bytes(1 << 20).replace(b"x", b"y") + b"z"
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
faults()
print(faults())
"""


def test_freed_memory_is_reused() -> None:
    """The operating system then has no new pages to clear, which it would count as minor faults."""
    counts = []
    for keep in ("", "libc.retain_freed_memory(64 << 20)"):
        command = [sys.executable, "-c", FAULTS.format(keep=keep)]
        counts.append(int(subprocess.run(command, check=True, capture_output=True, cwd=REPOSITORY).stdout))
    given_back, kept = counts
    if given_back < 1000:
        pytest.skip("this C library keeps what is freed by itself")
    assert kept < given_back / 10
