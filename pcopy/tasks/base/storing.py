"""Bringing the contents of files to stable storage before the files get their final names (``pcopy.fsio.new_file``)."""

from __future__ import annotations

import os
from collections.abc import Callable, Generator
from contextlib import closing
from functools import partial

from pcopy.background import run_in_background
from pcopy.fsio.backend.interface import MAX_SMALL_FILE_BYTES
from pcopy.fsio.close import close_ignoring_errors, raise_if_data_lost, recorded_sync, sync_data
from pcopy.fsio.new_file import NewFile
from pcopy.fsio.problem import Problem, as_problem
from pcopy.fsio.source import status_of
from pcopy.fsio.syncer import MAX_FILES
from pcopy.tasks.base.rank import Rank

WAIT_SECONDS = 0.005
"""Seconds that one slice waits for the storage."""


def wait_for_data_stored(rank: Rank, descriptor: int) -> Generator[None, None, None]:
    """Yield until the contents of an open file are on stable storage. Raise ``Problem`` on failure.

    The call is made by the helper process that syncs for the rank, because it blocks if the storage does. The rank must
    answer messages and signals meanwhile, and must be able to end.
    """
    (problem,) = yield from _store_all(rank, [descriptor])
    if problem is not None:
        raise problem


def _store_all(rank: Rank, descriptors: list[int]) -> Generator[None, None, list[Problem | None]]:
    """Yield until the contents of open files are on stable storage; return the problem of each file, or None."""
    rank.storer.start()
    order, numbers = rank.storer.request_file_sync(descriptors), None
    if order is not None:
        with closing(order), recorded_sync("fdatasync", descriptors[0]):
            while not order.is_complete(WAIT_SECONDS):
                yield
            try:
                numbers = order.results()
            except Problem as problem:
                return [problem] * len(descriptors)
    if numbers is None:
        return (yield from _store_in_thread(descriptors))
    answers = zip(descriptors, numbers, strict=True)
    return [_problem_of(partial(raise_if_data_lost, descriptor, number)) for descriptor, number in answers]


def _store_in_thread(descriptors: list[int]) -> Generator[None, None, list[Problem | None]]:
    """Do the same as ``_stored`` in a thread of this process, if the system permits no helper process."""
    problems: list[Problem | None] = []
    with as_problem("dup"):  # when the job stops, the caller may close its descriptors before the thread is done
        own = [os.dup(descriptor) for descriptor in descriptors]

    def store() -> None:
        for descriptor in own:
            problems.append(_problem_of(partial(sync_data, descriptor)))
            close_ignoring_errors(descriptor)

    yield from run_in_background(store, WAIT_SECONDS)
    return problems


def _problem_of(call: Callable[[], None]) -> Problem | None:
    """Return the ``Problem`` that a call raises; None if it raises none."""
    try:
        call()
    except Problem as problem:
        return problem
    return None


class StorageBatch:
    """Small files of one task that are brought to stable storage together. The generator that wrote each of them waits
    meanwhile.
    """

    def __init__(self) -> None:
        self._files: list[NewFile] = []
        self._problems: dict[NewFile, Problem | None] = {}

    @property
    def is_full(self) -> bool:
        """True if no more files should be added."""
        return len(self._files) >= MAX_FILES

    def __len__(self) -> int:
        return len(self._files)

    def add(self, new: NewFile) -> None:
        """Add an open file whose contents are written."""
        self._files.append(new)

    def store(self, rank: Rank) -> Generator[None, None, None]:
        """Yield until the contents of all files are on stable storage; the generator of each file may continue then."""
        files, self._files = self._files, []
        if files:
            problems = yield from _store_all(rank, [new.descriptor for new in files])
            self._problems = dict(zip(files, problems, strict=True))

    def raise_problem(self, new: NewFile) -> None:
        """Raise the ``Problem`` of a file, if there was one."""
        problem = self._problems.pop(new)
        if problem is not None:
            raise problem


def wait_until_stored(rank: Rank, new: NewFile, together: StorageBatch | None = None) -> Generator[None, None, None]:
    """Yield until the file ``new``, whose contents are written, may get its final name. Raise ``Problem`` on failure.

    A small file is added to ``together``; the owner of ``together`` resumes this generator after it has stored the
    files.
    """
    if not (rank.options.sync and new.needs_sync):
        return
    if together is not None and status_of(new.descriptor).st_size <= MAX_SMALL_FILE_BYTES:
        together.add(new)
        yield
        together.raise_problem(new)
    else:
        yield from wait_for_data_stored(rank, new.descriptor)
    new.mark_synced()
