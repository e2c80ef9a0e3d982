"""Removal of the temporary files of a discarded job from its destination.

The remaining tasks show where the files can be. Each file was created by such a task, or by a task that one of them
spawned after the last checkpoint. So it lies in a directory that the task names, or below a directory that the task
would have read. Files of earlier runs lie in directories that are not finished, or next to a single item. Therefore
finished directories are not examined.
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
"""Number of directories that are remembered as cleared, since many tasks may name the same one."""

_NOT_THERE = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP)


Tell = Callable[[str], object]


def remove_temporaries(job: StoredJob, report: Tell) -> None:
    """Remove the temporary files of a stopped or killed job; report what cannot be removed.

    Raise ``Refused`` if a temporary file for the search itself cannot be written.
    """
    for line in remove_unfinished(job.file.options, job.file.name):
        report(line)
    with refusing(b"", SET_ANOTHER), closing(Clearing(job, report)) as clearing:
        try:
            for number, root in enumerate(job.file.roots):
                if root.item:
                    clearing.clear(number, b"")
                elif not has_begun(job.path):  # Without records any directory may contain such files.
                    clearing.clear_below(number, b"")
            if has_begun(job.path):
                remaining, tasks = load(job.path, open_spool=spool_in(b""))
                for task in tasks:
                    clearing.clear_after(decode(task.payload), first=remaining.run == 1)
        except (InvariantBroken, Refused) as refused:
            report(f"temporary files (.pcopy-{job.file.name}-*) were not removed from the destination: {refused}")


def remove_unfinished(options: Mapping[str, Any], job: str, run: int | None = None) -> list[str]:
    """Remove temporary files of results (signature and manifest) that killed runs left; return messages about errors.

    Args:
        options: the job's options; the temporary files lie in the directories of the results that these name.
        job: the name of the job.
        run: only files of runs before this one are removed; None: files of all runs.
    """
    messages = []
    outputs = [path for path in (options.get("signature"), options.get("manifest")) if path]
    for path in sorted({os.path.dirname(output) or b"." for output in outputs}):
        try:
            with held_open(os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)) as descriptor:
                remove_leftovers(descriptor, job, run)
        except OSError as error:
            messages.append(f"temporary files (.pcopy-{job}-*) may be left in {shown(path)}: {error.strerror}")
    return messages


class Clearing:
    """Removes the temporary files of one job; each directory is cleared once.

    ``clear`` takes the number of a root, and the path of a directory in its source.
    """

    def __init__(self, job: StoredJob, tell: Tell) -> None:
        self._tell = tell
        self._name = job.file.name
        self._roots = [root.plain for root in job.file.roots]
        self._stack = ExitStack()
        self.close = self._stack.close
        self._opened: dict[bytes, Directories] = {}
        self.clear = lru_cache(REMEMBERED)(self._clear)

    def clear_after(self, task: Kind, *, first: bool) -> None:
        """Remove the files that ``task`` left, or that tasks spawned by it left; ``first``: the last run was the
        first one.
        """
        for place in task.leftovers(first=first):
            (self.clear_below if place.below else self.clear)(place.root, place.path)

    def clear_below(self, root: int, path: bytes) -> None:
        """Remove the files in a directory and in all directories below it."""
        waiting = [path]
        while waiting:
            path = waiting.pop()
            self.clear(root, path)
            waiting += (os.path.join(path, name) for name in self._directories_in(root, path))

    def _clear(self, root: int, path: bytes) -> None:
        """Remove the files in one directory; report errors, and ignore a missing directory."""
        try:
            directory = self._open(root, path)
            with _keeping_times(directory):
                still_named = remove_leftovers(directory, self._name)
            if still_named:
                self._tell(f"{self._shown(root, path)}: {had_a_name(still_named)}")
        except Problem as problem:
            if problem.errno not in _NOT_THERE:
                place = self._shown(root, path)
                self._tell(f"temporary files may be left in {place}: {problem.operation}: {problem.strerror}")

    def _shown(self, root: int, path: bytes) -> str:
        """Return the path in the destination, for messages."""
        found = self._roots[root]
        return shown(os.path.join(found.target, found.below_target(path)))

    def _directories_in(self, root: int, path: bytes) -> list[bytes]:
        """Return the names of the directories in a directory; empty if it cannot be read, which ``clear`` has
        reported.
        """
        try:
            with entries_of(self._open(root, path)) as entries:
                return [os.fsencode(entry.name) for entry in entries if entry.is_dir(follow_symlinks=False)]
        except OSError:
            return []

    def _open(self, root: int, path: bytes) -> int:
        """Return a descriptor of the target directory, opened without following links; raise ``Problem``."""
        found = self._roots[root]
        if found.target not in self._opened:
            with failing("open"):
                base = os.open(found.target, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            self._stack.callback(os.close, base)
            self._opened[found.target] = self._stack.enter_context(closing(Directories(base, 0, on_source=False)))
        return self._opened[found.target].open(found.below_target(path))


@contextmanager
def _keeping_times(directory: int) -> Iterator[None]:
    """Restore the access and modification times of ``directory`` after the block: another job may have finished it."""
    before = status_of(directory)
    yield
    now = status_of(directory)
    if (now.st_atime_ns, now.st_mtime_ns) != (before.st_atime_ns, before.st_mtime_ns):
        with suppress(OSError):
            os.utime(directory, ns=(before.st_atime_ns, before.st_mtime_ns))
