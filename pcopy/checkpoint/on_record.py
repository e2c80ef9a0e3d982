"""What a job has counted so far, by its records: for people, while others may work on it.

Read are the heads of the records only, whatever they hold: a few hundred bytes for each epoch and rank. No digest is
looked at, and nothing is locked: a record that is just being written, or a run that has just been replaced by the next
one, leaves the answer a little older, or away.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress

from pcopy.checkpoint.base import read_header
from pcopy.checkpoint.files import Path, open_file
from pcopy.checkpoint.framing import heads
from pcopy.checkpoint.layout import facts_name, run_name
from pcopy.checkpoint.record import Head, added, read_head
from pcopy.checkpoint.resume import has_begun, read_current
from pcopy.errors import Refused

_HEAD_BYTES = 4096
"""More than the head of a record takes."""


def counts_on_record(job_dir: Path) -> tuple[int, ...] | None:
    """The sums over all tasks that are on record as done; None where nothing is, or nothing can be read."""
    job = os.fsencode(job_dir)
    try:
        if not has_begun(job):
            return None
        run, size = read_current(job)
        counts = read_header(job, run, 0).counts
        ranks = [list(_epochs(job, run, rank)) for rank in range(size)]
    except (Refused, OSError):
        return None
    for epoch in zip(*ranks, strict=False):  # up to the last one that all ranks have
        for head in epoch:
            counts = added(counts, head.counts)
    return counts


def _epochs(job: bytes, run: int, rank: int) -> Iterator[Head]:
    """The heads of a rank's epochs, from 1 up to the last complete one."""
    path = os.path.join(job, run_name(run), facts_name(rank))
    if not os.path.lexists(path):
        return
    with open_file(path) as file, suppress(ValueError):
        for number, start in enumerate(heads(file, _HEAD_BYTES), 1):
            head = read_head(start)
            if head[:2] != (run, rank) or head.epoch != number:
                return
            yield head
