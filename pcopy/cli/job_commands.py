"""``pcopy --jobs`` and ``pcopy --discard``: what is done with stored jobs by one process, without copying."""

from __future__ import annotations

import os
from collections.abc import Sequence

from pcopy.checkpoint.jobs import StoredJob
from pcopy.checkpoint.resume import load
from pcopy.cli.jobs import discard, listing, to_standard_error
from pcopy.cli.launcher import speaks
from pcopy.cli.options import parse
from pcopy.cli.rank import open_spool
from pcopy.errors import Refused
from pcopy.fsio.directories import Directories
from pcopy.fsio.problem import Problem
from pcopy.fsio.temporary import remove
from pcopy.tasks.codec import decode
from pcopy.tasks.values import FileOpened


def answer(words: Sequence[str]) -> str | None:
    """What ``words`` ask of stored jobs, done; None if they ask for a copy. Raises ``Refused``."""
    arguments = parse(words)
    if not (arguments.asked.jobs or arguments.asked.discard is not None):
        return None
    if not speaks(os.environ):
        return ""
    if arguments.asked.jobs:
        return "\n".join(listing(arguments.json))
    assert arguments.asked.discard is not None
    discard(arguments.asked.discard, _remove_temporaries, to_standard_error)
    return "discarded"


def _remove_temporaries(job: StoredJob) -> None:
    """Removes the files that were being filled when the job was stopped."""
    try:
        _, tasks = load(job.path, open_spool=open_spool)
    except Refused as refused:
        to_standard_error(f"pcopy: temporary files (.pcopy-{job.file.name}-*) were left in the destination: {refused}")
        return
    opened: dict[int, Directories] = {}
    try:
        for task in tasks:
            value = decode(task.payload)
            if isinstance(value, FileOpened) and not value.file.over:
                _remove_one(job, opened, value)
    finally:
        for directories in opened.values():
            directories.close()


def _remove_one(job: StoredJob, opened: dict[int, Directories], value: FileOpened) -> None:
    place = value.file.split.place
    root = job.file.roots[place.root]
    if place.root not in opened:
        base = os.open(root.target, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        opened[place.root] = Directories(base, 0, on_source=False)
    path = b"/".join(part for part in (b"" if root.item else root.name, place.path) if part)
    try:
        remove(opened[place.root].open(path), value.file.temporary)
    except Problem as problem:
        to_standard_error(f"pcopy: a temporary file was left in the destination: {problem}")
