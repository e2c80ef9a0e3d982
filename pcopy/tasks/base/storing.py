"""Brings the contents of files to stable storage before the files get their final names (``pcopy.fsio.new_file``).
Otherwise a power failure could leave an empty file under a final name.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Generator
from contextlib import closing
from functools import partial

from pcopy.background import run_in_background
from pcopy.fsio.backend.interface import MAX_SMALL_FILE_BYTES
from pcopy.fsio.close import close_ignoring_errors, raise_if_data_lost, record_sync_under_way, sync_data
from pcopy.fsio.new_file import NewFile
from pcopy.fsio.problem import Problem, errors_as_problem
from pcopy.fsio.source import status_of_open_item
from pcopy.fsio.syncer import MAX_FILES_PER_REQUEST
from pcopy.tasks.base.rank import Rank

STORAGE_WAIT_SECONDS = 0.005
"""Seconds for which a task waits for the storage before it yields, so that the rank can handle messages."""


def wait_for_data_stored(rank: Rank, descriptor: int) -> Generator[None, None, None]:
    """Yield until the contents of the open file ``descriptor`` are on stable storage. Raise ``Problem`` if that fails.

    A helper process of the rank makes the call, because the call blocks as long as the storage does. Meanwhile the rank
    must answer messages and signals, and must be able to end.
    """
    (problem,) = yield from _sync_all_files(rank, [descriptor])
    if problem is not None:
        raise problem


def _sync_all_files(rank: Rank, descriptors: list[int]) -> Generator[None, None, list[Problem | None]]:
    """Yield until a helper process has brought the contents of the open files ``descriptors`` to stable storage. Return
    for each file the error, or None.
    """
    rank.storer.start()
    order, numbers = rank.storer.request_file_sync(descriptors), None
    if order is not None:
        with closing(order), record_sync_under_way("fdatasync", descriptors[0]):
            while not order.wait_for_answer(STORAGE_WAIT_SECONDS):
                yield
            try:
                numbers = order.results()
            except Problem as problem:
                return [problem] * len(descriptors)
    if numbers is None:
        return (yield from _sync_files_in_thread(descriptors))
    answers = zip(descriptors, numbers, strict=True)
    return [_problem_raised_by(partial(raise_if_data_lost, descriptor, number)) for descriptor, number in answers]


def _sync_files_in_thread(descriptors: list[int]) -> Generator[None, None, list[Problem | None]]:
    """Yield until a thread of this process has brought the contents of the open files ``descriptors`` to stable
    storage. Return for each file the error, or None. It is used if the system permits no helper process.
    """
    problems: list[Problem | None] = []
    with errors_as_problem("dup"):  # when the job stops, the caller may close its descriptors before the thread is done
        own = [os.dup(descriptor) for descriptor in descriptors]

    def store() -> None:
        for descriptor in own:
            problems.append(_problem_raised_by(partial(sync_data, descriptor)))
            close_ignoring_errors(descriptor)

    yield from run_in_background(store, STORAGE_WAIT_SECONDS)
    return problems


def _problem_raised_by(call: Callable[[], None]) -> Problem | None:
    """Return the ``Problem`` that ``call()`` raises; None if it raises none."""
    try:
        call()
    except Problem as problem:
        return problem
    return None


class FileSyncBatch:
    """Small files of one task that are brought to stable storage together, by one request to the helper process.
    Meanwhile the generator that wrote each file waits.
    """

    def __init__(self) -> None:
        self._files: list[NewFile] = []
        self._problems: dict[NewFile, Problem | None] = {}

    @property
    def is_full(self) -> bool:
        """True if the files should be stored before another one is added."""
        return len(self._files) >= MAX_FILES_PER_REQUEST

    def __len__(self) -> int:
        return len(self._files)

    def add(self, new: NewFile) -> None:
        """Add the file ``new``, which is open and whose contents are written."""
        self._files.append(new)

    def sync_added_files(self, rank: Rank) -> Generator[None, None, None]:
        """Yield until the contents of all files that were added are on stable storage. Afterwards the generator of each
        file may continue; it gets its error from ``raise_problem_of_file``.
        """
        files, self._files = self._files, []
        if files:
            problems = yield from _sync_all_files(rank, [new.descriptor for new in files])
            self._problems = dict(zip(files, problems, strict=True))

    def raise_problem_of_file(self, new: NewFile) -> None:
        """Raise the ``Problem`` of the file ``new``, if it could not be stored."""
        problem = self._problems.pop(new)
        if problem is not None:
            raise problem


def wait_until_file_is_stored(
    rank: Rank, new: NewFile, together: FileSyncBatch | None = None
) -> Generator[None, None, None]:
    """Yield until the contents of the file ``new`` are on stable storage, so that it may get its final name. Raise
    ``Problem`` on failure. Nothing is done if the job does not sync, or if the file needs no sync.

    If ``together`` is given, a small file is added to it, and this generator yields once: the owner of ``together``
    stores all of its files and then resumes this generator.
    """
    if not (rank.options.sync and new.needs_sync):
        return
    if together is not None and status_of_open_item(new.descriptor).st_size <= MAX_SMALL_FILE_BYTES:
        together.add(new)
        yield
        together.raise_problem_of_file(new)
    else:
        yield from wait_for_data_stored(rank, new.descriptor)
    new.mark_synced()
