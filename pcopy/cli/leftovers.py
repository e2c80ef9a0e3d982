"""The temporary files of a job that is given up, which are removed from its destination.

They are found by the tasks that remain. Each was made by such a task, or by one that came from it later than the last
checkpoint: in the directories that the task names, or below one that it would have read. What an earlier run left is in
a directory that has not been finished yet, or beside a single item. So what is finished is not looked at.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from functools import lru_cache
from typing import Any

from pcopy.checkpoint.jobs import StoredJob
from pcopy.checkpoint.resume import has_begun, load
from pcopy.cli.outputs import remove_unfinished, written_by
from pcopy.cli.spool import refusing, spool_in
from pcopy.cli.streams import tell
from pcopy.errors import Refused
from pcopy.fsio.directories import Directories
from pcopy.fsio.problem import Problem
from pcopy.fsio.source import status_of
from pcopy.fsio.temporary import had_a_name, remove_leftovers
from pcopy.tasks.codec import decode
from pcopy.tasks.removed import places_in
from pcopy.tasks.values import FinishDir, ReportFailures, ScanDir, ScanNames, SealDir, unpack_names
from pcopy.text import shown

REMEMBERED = 1 << 16
"""Directories of which it is known that they have been cleared: many tasks may name the same one."""

_NOT_THERE = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP)


def remove_temporaries(job: StoredJob) -> None:
    """Removes the files that were being filled when the job was stopped or killed, and tells of what it can't.

    Raises ``Refused`` if there is no room to find out which.
    """
    with refusing(b"", is_option=False), closing(Clearing(job)) as clearing:
        _remove(job, clearing)


def _remove(job: StoredJob, clearing: Clearing) -> None:
    for line in remove_unfinished(written_by(job.file.options), job.file.name):
        tell("pcopy", line)
    try:
        for number, root in enumerate(job.file.roots):
            if root.item:
                clearing.clear(number, b"")
            elif not has_begun(job.path):  # no run has left a record
                clearing.clear_below(number, b"")
        if has_begun(job.path):
            remaining, tasks = load(job.path, open_spool=spool_in(b""))
            for task in tasks:
                clearing.clear_after(decode(task.payload), first=remaining.run == 1)
    except Refused as refused:
        tell("pcopy", f"temporary files (.pcopy-{job.file.name}-*) were left in the destination: {refused}")


class Clearing:
    """``clear`` removes what lies in one directory of a root, by its path in the source."""

    def __init__(self, job: StoredJob) -> None:
        self._job = job.file
        self._bases: list[int] = []
        self._opened: dict[bytes, Directories] = {}
        self.clear = lru_cache(REMEMBERED)(self._clear)

    def clear_after(self, value: Any, *, first: bool) -> None:
        """Removes what a task has left, or would have gone on with; ``first``: no run was before the last one."""
        if isinstance(value, ScanDir):
            self.clear_below(value.root, value.path)
        elif isinstance(value, ReportFailures):
            for retry in value.retries:
                if retry.task:
                    self.clear_after(decode(retry.task), first=first)
        elif not (first and isinstance(value, FinishDir | SealDir)):
            for place in places_in(value):
                self.clear(place.root, place.path)
        if isinstance(value, ScanNames):
            for name in unpack_names(value.names):
                self.clear_below(value.place.root, os.path.join(value.place.path, name))

    def clear_below(self, root: int, path: bytes) -> None:
        """Removes what lies in a directory and in all below it."""
        waiting = [path]
        while waiting:
            path = waiting.pop()
            self.clear(root, path)
            waiting += (os.path.join(path, name) for name in self._directories_in(root, path))

    def _clear(self, root: int, path: bytes) -> None:
        try:
            directory = self._open(root, path)
            with _keeping_times(directory):
                others = remove_leftovers(directory, self._job.name)
            if others:
                tell("pcopy", f"{self._shown(root, path)}: {had_a_name(others)}")
        except Problem as problem:
            if problem.errno not in _NOT_THERE:
                place = self._shown(root, path)
                tell("pcopy", f"temporary files may be left in {place}: {problem.operation}: {problem.strerror}")

    def _shown(self, root: int, path: bytes) -> str:
        return shown(os.path.join(self._job.roots[root].target, self._below_target(root, path)))

    def _directories_in(self, root: int, path: bytes) -> list[bytes]:
        """Their names; none where they can't be read, which has been told."""
        try:
            with os.scandir(self._open(root, path)) as entries:
                return [os.fsencode(entry.name) for entry in entries if entry.is_dir(follow_symlinks=False)]
        except OSError:
            return []

    def _open(self, root: int, path: bytes) -> int:
        """The target directory, reached without following links; raises ``Problem``."""
        target = self._job.roots[root].target
        if target not in self._opened:
            try:
                self._bases.append(os.open(target, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC))
            except OSError as error:
                raise Problem.of("open", error) from error
            self._opened[target] = Directories(self._bases[-1], 0, on_source=False)
        return self._opened[target].open(self._below_target(root, path))

    def _below_target(self, root: int, path: bytes) -> bytes:
        name = b"" if self._job.roots[root].item else self._job.roots[root].name
        return b"/".join(part for part in (name, path) if part)

    def close(self) -> None:
        """Gives back the directories."""
        for directories in self._opened.values():
            directories.close()
        for base in self._bases:
            os.close(base)


@contextmanager
def _keeping_times(directory: int) -> Iterator[None]:
    """It may be finished, by another job."""
    before = status_of(directory)
    yield
    now = status_of(directory)
    if (now.st_atime_ns, now.st_mtime_ns) != (before.st_atime_ns, before.st_mtime_ns):
        with suppress(OSError):
            os.utime(directory, ns=(before.st_atime_ns, before.st_mtime_ns))
