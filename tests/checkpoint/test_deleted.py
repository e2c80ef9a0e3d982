"""The files in which ranks count deletions: on each file system, also when it is full, and with strange contents."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from pcopy.errors import RequestRefused
from pcopy.jobs.deletion_count import deletion_counters_getter, number_of_deleted_items
from tests.support.filesystems import mounted

SIZES = {"tmpfs": 2 << 20, "ext4": 16 << 20, "btrfs": 120 << 20}

COUNTS = """
import os, sys
from contextlib import suppress
from pcopy.jobs.deletion_count import deletion_counters_getter

place = os.fsencode(sys.argv[1])
numbers = deletion_counters_getter(place + b"/job", 3, print)
numbers()[0] += 5
numbers()
os.sync()  # a page that is mapped and clean
with suppress(OSError), open(place + b"/ballast", "wb", buffering=0) as ballast:
    for size in (1 << 20, 4096):
        with suppress(OSError):
            while ballast.write(os.urandom(size)):
                os.fsync(ballast.fileno())
os.sync()
numbers()[0] += 2
numbers()
os.unlink(place + b"/ballast")
os.sync()
numbers()
"""
"""Counts 5 deletions, then 2 more on a full file system."""


@pytest.mark.parametrize("kind", SIZES)
def test_deletions_are_counted_on_a_file_system_that_becomes_full(tmp_path: Path, kind: str) -> None:
    with mounted(kind, tmp_path, SIZES[kind]) as place:
        job = place / "job"
        job.mkdir(mode=0o700)
        run = subprocess.run([sys.executable, "-c", COUNTS, place], check=False, capture_output=True)
        assert (run.returncode, run.stderr) == (0, b"")
        assert (job / "deleted-3").read_bytes() == (7).to_bytes(8, sys.byteorder) + bytes(8)
        assert number_of_deleted_items(os.fsencode(job)) == 7


def test_count_file_with_a_second_hard_link_is_not_written(tmp_path: Path) -> None:
    other, job = tmp_path / "other", os.fsencode(tmp_path)
    tmp_path.chmod(0o700)
    other.write_bytes(b"precious")
    os.link(other, tmp_path / "deleted-0")
    reported: list[str] = []
    assert deletion_counters_getter(job, 0, reported.append)() is None
    assert [line for line in reported if "another item has the name of the counter file" in line] == reported != []
    assert other.read_bytes() == b"precious"


def test_count_files_of_wrong_size_count_as_zero(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    for rank, size in enumerate((0, 1, 17, 1 << 43)):
        (tmp_path / f"deleted-{rank}").touch(mode=0o600)
        os.truncate(tmp_path / f"deleted-{rank}", size)
    assert number_of_deleted_items(os.fsencode(tmp_path)) == 0
    os.mkfifo(tmp_path / "deleted-9", 0o600)
    with pytest.raises(RequestRefused, match="not a regular file"):
        number_of_deleted_items(os.fsencode(tmp_path))


def test_missing_job_directory_is_reported_and_deletions_go_on(tmp_path: Path) -> None:
    messages: list[str] = []
    numbers = deletion_counters_getter(os.fsencode(tmp_path / "missing"), 3, messages.append)
    assert numbers() is None and numbers() is None
    (message,) = messages
    assert message.startswith("cannot record the number of deletions of rank 3: ") and "missing" in message
