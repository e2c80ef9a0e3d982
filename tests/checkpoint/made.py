"""Jobs to store, and processes that hold the locks of one."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pcopy.jobs.directories import StoredJob, create_job
from pcopy.jobs.job_file import JobFile, JobRoot
from tests.support.command import REPOSITORY

XFS = "58465342"
"""As stat(1) writes it."""


def root_of(source: Path, target: Path) -> JobRoot:
    """The root that copies the directory ``source`` into ``target``; what they are comes from stat(1)."""
    sources, targets = _seen(source), _seen(target)
    fields = (bytes(source), bytes(target), b"", b"", bytes(source), bytes(target))
    return JobRoot(*fields, sources[0], targets[0], sources[1], targets[1])


def job_of(*roots: JobRoot, name: str = "0123456789", **fields: Any) -> JobFile:
    values: dict[str, Any] = {
        "name": name,
        "created": 1_700_000_000.5,
        "roots": roots,
        "options": {"existing": "newer", "manifest": b"/m\xff", "preserve": (True, (-1, 7)), "none": None},
        "asked": {"SRC": (b"/a\n",), "DST": b"/\xfe"},
        "t0": 1_700_000_000_123_456_789,
        "umask": 0o027,
        "user": os.geteuid(),
        "nonce": "ab" * 16,
        "totals": {"files": 7, "found": 9, "bytes": 1 << 40},
    }
    return JobFile(**(values | fields))


def some_root() -> JobRoot:
    """A root that is nowhere, with names that are no text."""
    return JobRoot(
        b"/s\xff\n",
        b"/t\\",
        b"item",
        "näme".encode(),
        b"s\xff",
        b"../t",
        (1 << 40, 2),
        (3, 4),
        (0xEF53, 1 << 63),
        (6, 7),
    )


@contextmanager
def child(program: str, *words: str | bytes | Path) -> Iterator[subprocess.Popen[bytes]]:
    """A process that runs ``program``, has said a word on its output by now, and is killed at the end."""
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY), "PYTHONSAFEPATH": "1"}
    process = subprocess.Popen(
        [sys.executable, "-c", program, *words], env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline(), "the child has said nothing"
        yield process
    finally:
        process.kill()
        process.communicate()


def made(directory: Path | None, **fields: Any) -> StoredJob:
    """A job whose lock has been given back, as if its run had died."""
    job, lock = create_job(None if directory is None else bytes(directory), job_of(some_root(), **fields))
    lock.close()
    return job


def tree(directory: Path) -> dict[str, int]:
    """The modes of all that is below ``directory``."""
    return {str(path.relative_to(directory)): stat.S_IMODE(path.lstat().st_mode) for path in directory.rglob("*")}


HOLD = """\
import os, sys
from pcopy.jobs.lock import take_lock
locks = [take_lock(os.fsencode(sys.argv[1]), int(rank)) for rank in sys.argv[2:]]
print("held", flush=True)
sys.stdin.read()
"""
"""Holds the locks of the given ranks until it is killed."""


def _seen(path: Path) -> tuple[tuple[int, int], tuple[int, int]]:
    reported = subprocess.run(["stat", "-c", "%d %i", path], check=True, capture_output=True, text=True).stdout.split()
    kind = subprocess.run(
        ["stat", "-f", "-c", "%t %i", path], check=True, capture_output=True, text=True
    ).stdout.split()
    number = _uuid(path) if kind[0] == XFS else _swapped(int(kind[1], 16))
    return (int(reported[0]), int(reported[1])), (int(kind[0], 16), number)


def _uuid(path: Path) -> int:
    """As xfs_db(8) would tell it of an image; here the kernel's, of the device that is mounted."""
    reported = subprocess.run(["findmnt", "-n", "-o", "UUID", "-T", path], check=True, capture_output=True, text=True)
    return int(reported.stdout.strip().replace("-", ""), 16)


def _swapped(number: int) -> int:
    """stat(1) writes the two words of an fsid in the order in which they are stored."""
    return (number & 0xFFFFFFFF) << 32 | number >> 32
