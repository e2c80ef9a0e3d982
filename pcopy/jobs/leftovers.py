"""The temporary files of a job that is given up, which are removed from its destination.

The remaining tasks tell where they are. Each was made by such a task, or by a task that came from it after the last
checkpoint: in the directories that the task names, or below one that it would have read. Those of earlier runs lie in
directories that have not been finished yet, or beside a single item. So finished directories are not looked at.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager, suppress
from functools import lru_cache
from typing import Any

import pcopy.tasks.runner  # noqa: F401 (makes all kinds known)
from pcopy.checkpoint.resume import has_begun, load
from pcopy.errors import InvariantBroken, Refused
from pcopy.fsio.close import entries_of, held_open
from pcopy.fsio.directories import Directories
from pcopy.fsio.problem import Problem, failing
from pcopy.fsio.source import status_of
from pcopy.fsio.temporary import had_a_name, remove_leftovers
from pcopy.jobs.directories import StoredJob
from pcopy.jobs.spool import SET_ANOTHER, refusing, spool_in
from pcopy.tasks.base.codec import decode
from pcopy.tasks.base.kind import Kind
from pcopy.text import shown

REMEMBERED = 1 << 16
"""Directories of which it is known that they have been cleared: many tasks may name the same one."""

_NOT_THERE = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP)


Tell = Callable[[str], object]


def remove_temporaries(job: StoredJob, tell: Tell) -> None:
    """Removes the files that were being filled when the job was stopped or killed, and tells of what it can't.

    Raises ``Refused`` if there is no room to find out which.
    """
    for line in remove_unfinished(job.file.options, job.file.name):
        tell(line)
    with refusing(b"", SET_ANOTHER), closing(Clearing(job, tell)) as clearing:
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
        except (InvariantBroken, Refused) as refused:
            tell(f"temporary files (.pcopy-{job.file.name}-*) were left in the destination: {refused}")


def remove_unfinished(options: Mapping[str, Any], job: str, run: int | None = None) -> list[str]:
    """Removes what runs of ``job`` before ``run`` (None: all) left when they were killed while they wrote results.

    It lies beside the files that the job's ``options`` name. Returns what could not be removed.
    """
    told = []
    outputs = [path for path in (options.get("signature"), options.get("manifest")) if path]
    for path in sorted({os.path.dirname(output) or b"." for output in outputs}):
        try:
            with held_open(os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)) as descriptor:
                remove_leftovers(descriptor, job, run)
        except OSError as error:
            told.append(f"temporary files (.pcopy-{job}-*) may be left in {shown(path)}: {error.strerror}")
    return told


class Clearing:
    """``clear`` removes what lies in one directory of a root, by its path in the source."""

    def __init__(self, job: StoredJob, tell: Tell) -> None:
        self._tell = tell
        self._name = job.file.name
        self._roots = [root.plain for root in job.file.roots]
        self._stack = ExitStack()
        self.close = self._stack.close
        self._opened: dict[bytes, Directories] = {}
        self.clear = lru_cache(REMEMBERED)(self._clear)

    def clear_after(self, task: Kind, *, first: bool) -> None:
        """Removes what a task has left, or would have gone on with; ``first``: no run was before the last one."""
        for left in task.leftovers(first=first):
            (self.clear_below if left.below else self.clear)(left.root, left.path)

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
                others = remove_leftovers(directory, self._name)
            if others:
                self._tell(f"{self._shown(root, path)}: {had_a_name(others)}")
        except Problem as problem:
            if problem.errno not in _NOT_THERE:
                place = self._shown(root, path)
                self._tell(f"temporary files may be left in {place}: {problem.operation}: {problem.strerror}")

    def _shown(self, root: int, path: bytes) -> str:
        found = self._roots[root]
        return shown(os.path.join(found.target, found.below_target(path)))

    def _directories_in(self, root: int, path: bytes) -> list[bytes]:
        """Their names; none where they can't be read, which has been told."""
        try:
            with entries_of(self._open(root, path)) as entries:
                return [os.fsencode(entry.name) for entry in entries if entry.is_dir(follow_symlinks=False)]
        except OSError:
            return []

    def _open(self, root: int, path: bytes) -> int:
        """The target directory, reached without following links; raises ``Problem``."""
        found = self._roots[root]
        if found.target not in self._opened:
            with failing("open"):
                base = os.open(found.target, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            self._stack.callback(os.close, base)
            self._opened[found.target] = self._stack.enter_context(closing(Directories(base, 0, on_source=False)))
        return self._opened[found.target].open(found.below_target(path))


@contextmanager
def _keeping_times(directory: int) -> Iterator[None]:
    """It may be finished, by another job."""
    before = status_of(directory)
    yield
    now = status_of(directory)
    if (now.st_atime_ns, now.st_mtime_ns) != (before.st_atime_ns, before.st_mtime_ns):
        with suppress(OSError):
            os.utime(directory, ns=(before.st_atime_ns, before.st_mtime_ns))
