"""Brings the contents of files to stable storage before the files get their final names (``pcopy.fsio.new_file``)."""

from __future__ import annotations

import os
from collections.abc import Callable, Generator
from contextlib import closing
from functools import partial

from pcopy.beside import done_beside
from pcopy.fsio.close import let_go, noted, raise_unless_stored, store_data
from pcopy.fsio.kernel.interface import SMALL_FILE
from pcopy.fsio.new_file import NewFile
from pcopy.fsio.problem import Problem, failing
from pcopy.fsio.source import status_of
from pcopy.fsio.syncer import MOST_FILES
from pcopy.tasks.base.rank import Rank

NAP = 0.005
"""Seconds that a slice waits for the storage."""


def data_stored(rank: Rank, descriptor: int) -> Generator[None, None, None]:
    """Yield until the contents of an open file are on stable storage; raise ``Problem``.

    The process that syncs for the rank makes the call, which hangs if the storage does: the rank must answer messages
    and signals meanwhile, and must be able to end.
    """
    (problem,) = yield from _stored(rank, [descriptor])
    if problem is not None:
        raise problem


def _stored(rank: Rank, descriptors: list[int]) -> Generator[None, None, list[Problem | None]]:
    """Yield until the contents of open files are on stable storage; return what each of them has met."""
    rank.storer.start()
    order, numbers = rank.storer.store(descriptors), None
    if order is not None:
        with closing(order), noted("fdatasync", descriptors[0]):
            while not order.is_over(NAP):
                yield
            try:
                numbers = order.numbers()
            except Problem as problem:
                return [problem] * len(descriptors)
    if numbers is None:
        return (yield from _stored_here(descriptors))
    answers = zip(descriptors, numbers, strict=True)
    return [_problem_of(partial(raise_unless_stored, descriptor, number)) for descriptor, number in answers]


def _stored_here(descriptors: list[int]) -> Generator[None, None, list[Problem | None]]:
    """As ``_stored``, by a thread of this process: the system refuses another process."""
    problems: list[Problem | None] = []
    with failing("dup"):  # the caller may close its descriptors before the thread is done: a job that stops
        own = [os.dup(descriptor) for descriptor in descriptors]

    def store() -> None:
        for descriptor in own:
            problems.append(_problem_of(partial(store_data, descriptor)))
            let_go(descriptor)

    yield from done_beside(store, NAP)
    return problems


def _problem_of(call: Callable[[], None]) -> Problem | None:
    """Return the ``Problem`` that a call raises; None if it raises none."""
    try:
        call()
    except Problem as problem:
        return problem
    return None


class StoredTogether:
    """Small files of one task that wait for stable storage together, each in the generator that has written it."""

    def __init__(self) -> None:
        self._files: list[NewFile] = []
        self._problems: dict[NewFile, Problem | None] = {}

    @property
    def is_full(self) -> bool:
        return len(self._files) >= MOST_FILES

    def __len__(self) -> int:
        return len(self._files)

    def add(self, new: NewFile) -> None:
        """Add a file that is written, and open."""
        self._files.append(new)

    def store(self, rank: Rank) -> Generator[None, None, None]:
        """Yield until the contents of all files are on stable storage; the generator of each may go on then."""
        files, self._files = self._files, []
        if files:
            problems = yield from _stored(rank, [new.descriptor for new in files])
            self._problems = dict(zip(files, problems, strict=True))

    def check(self, new: NewFile) -> None:
        """Raise the ``Problem`` that a file has met, if any."""
        problem = self._problems.pop(new)
        if problem is not None:
            raise problem


def stored(rank: Rank, new: NewFile, together: StoredTogether | None = None) -> Generator[None, None, None]:
    """Yield until the file ``new``, whose contents are written, may get its final name; raise ``Problem``.

    A small file is added to ``together``, whose owner goes on with this generator when it has stored the files.
    """
    if not (rank.options.sync and new.awaits_storage):
        return
    if together is not None and status_of(new.descriptor).st_size <= SMALL_FILE:
        together.add(new)
        yield
        together.check(new)
    else:
        yield from data_stored(rank, new.descriptor)
    new.note_stored()
