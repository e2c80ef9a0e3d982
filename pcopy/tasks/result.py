"""Gathers what one task spawns, counts, digests and reports, until it is done: all of it becomes known at once."""

from __future__ import annotations

import errno
from collections import defaultdict
from collections.abc import Iterable, Iterator
from enum import Enum
from itertools import chain
from typing import Any

from pcopy.engine.driver import Outcome
from pcopy.engine.task import ANYBODY, Share, Spawn, TaskId
from pcopy.fsio.attributes import Applied
from pcopy.fsio.problem import Problem
from pcopy.tasks import counts
from pcopy.tasks.codec import encode
from pcopy.tasks.context import CALL_COST, Context
from pcopy.tasks.hashing import SOCKET, Gathered
from pcopy.tasks.job import Failure
from pcopy.tasks.phases import Phase
from pcopy.tasks.read_values import Contents, SplitRead
from pcopy.tasks.sign_values import StoredEntries
from pcopy.tasks.values import (
    COPIED_BEFORE,
    Known,
    Place,
    ReportFailures,
    Retry,
    ScanNames,
    Unmark,
    label_of,
    pack_names,
    pack_numbers,
)
from pcopy.text import shown

_DUE = frozenset(counts.PUT_ASIDE.values())

_LOOKED_AT = ("open", "stat", "readdir", "scan")
"""What is done with an item of the source before anything is made of it."""


class Tried(Enum):
    """How a resumed job tries a failed item, where no task of its own does."""

    BY_NAME = "its name is looked at again"
    WITH_ANOTHER = "by the task of another item that failed together with it"
    NEVER = "it stays failed"


class Result:
    """Gathers what one task spawns, counts and reports."""

    __slots__ = (
        "_context", "_counts", "_elsewhere", "_entries", "_failures", "_held", "_notices", "_over", "_own", "_place",
        "_retries", "_settled", "_spawned", "_unknown", "_verifications", "attempt", "id", "phase",
    )  # fmt: skip

    def __init__(self, context: Context, phase: int, task_id: TaskId, found: tuple[Place, bytes] | None = None) -> None:
        """``found`` is the directory that the task is about, and a name in it."""
        self._context = context
        self._place = found[0] if found else None
        self.phase = int(phase)
        self.id = task_id
        self.attempt = 0
        """That of the task, if it has one."""
        self._held = False
        self._settled: list[TaskId] = []
        self._counts = [0] * counts.COUNTERS
        self._elsewhere: dict[bytes, list[int]] = {}
        self._own: list[Spawn] = []
        self._spawned: Iterable[Spawn] = self._own
        self._failures: list[Failure] = []
        self._retries: list[Retry] = []
        self._notices: list[str] = []
        self._unknown: list[tuple[str, str]] = []
        self._entries: defaultdict[tuple[int, bytes], Gathered] = defaultdict(Gathered)
        self._verifications: defaultdict[tuple[Place, int], Gathered] = defaultdict(Gathered)
        self._over: defaultdict[tuple[Place, bool], list[tuple[bytes, int]]] = defaultdict(list)

    def spawn(
        self,
        task: tuple[Any, ...],
        cost: int = 0,
        *,
        phase: int | None = None,
        expands: bool = False,
        owner: int = ANYBODY,
    ) -> None:
        """A new task, of this phase unless another is named."""
        at = self.phase if phase is None else int(phase)  # primitives only: an enum's member is none
        if at > self.phase and (counter := counts.PUT_ASIDE.get(at)) is not None:
            self.count(counter)
        self._own.append(Spawn(at, encode(task), cost + CALL_COST, expands, owner))

    def spawn_elsewhere(self, task: tuple[Any, ...], cost: int, writer: int, *, phase: int | None = None) -> None:
        """A task that with several hosts must not run on the host ``writer``, whose memory holds what is to be read."""
        self.spawn(task, cost, phase=phase, owner=self._context.hosts.elsewhere(writer))

    def spawn_each(self, tasks: Iterator[tuple[Any, ...]], cost: int, *, expands: bool) -> None:
        """Very many tasks of this phase, which are made one by one as they are handed over."""
        made = (Spawn(self.phase, encode(task), cost, expands) for task in tasks)
        self._spawned = chain(self._spawned, made)

    def hold(self) -> None:
        """The task's effect is in this rank's memory only, until another one settles it (``Outcome``)."""
        self._held = True

    def settle(self, tasks: Iterable[TaskId]) -> None:
        """What ``tasks`` had left in memory is used up by this one, which is therefore not held itself."""
        self._settled += (task for task in tasks if task != self.id)
        self._held = False

    def count(self, counter: int, number: int = 1, place: Place | None = None) -> None:
        """``place`` is the directory of the item, where that may be another than the task's."""
        self._counts[counter] += number
        if place is not None and (self._place is None or place[:2] != self._place[:2]):
            self._elsewhere.setdefault(label_of(place), [0] * counts.COUNTERS)[counter] += number

    def _shares(self) -> Iterator[Share]:
        """What was counted in which directory: if that has gone when the job is resumed, it counts no more."""
        here = self._counts
        for label, elsewhere in self._elsewhere.items():
            here = [one - other for one, other in zip(here, elsewhere, strict=True)]
            yield label, _shared(elsewhere)
        if self._place is not None:
            yield label_of(self._place), _shared(here)

    def copied(
        self, place: Place, name: bytes, known: Known, *, alone: bool = True, chunk: int = 0, writers: bytes = b""
    ) -> None:
        """One item more is there, whole. One that is not ``alone`` is verified with its links.

        ``chunk`` and ``writers``: see ``pcopy.tasks.read_values.Contents``.
        """
        self._context.succeeded()
        counter = counts.of_kind(known.kind)
        self.count(counter, 1, place)
        if counter == counts.FILES:
            self.count(counts.BYTES, known.size, place)
        self.digested(place, name, known, counter, verify=alone, chunk=chunk, writers=writers)

    def digested(
        self,
        place: Place,
        name: bytes,
        known: Known,
        counter: int,
        *,
        verify: bool = True,
        chunk: int = 0,
        writers: bytes = b"",
    ) -> None:
        """The item's digest is known, and it has been counted by ``counter``; it is to be verified if ``verify``.

        ``chunk`` and ``writers``: see ``pcopy.tasks.read_values.Contents``.
        """
        context = self._context
        if context.signs and name and known.kind != SOCKET:
            side, path, entry = context.entry(place, name)
            self._entries[side, path].add(entry, known)
        if not (verify and context.options.verify):
            return
        self.to_verify(1, known.size, place)
        if chunk:
            contents = Contents(place, name, known, False, 0, counter, chunk, writers)
            self.spawn_elsewhere(SplitRead(contents), known.size, writers[0], phase=self.verify_phase)
        else:
            self._verifications[place, writers[0] if writers else context.hosts.here].add(name, known, counter)

    def digested_files(self, place: Place, files: Gathered) -> None:
        """As ``digested`` for many ``files`` at once."""
        context = self._context
        if context.signs:
            side, path, _ = context.entry(place, b"")
            item = context.job.roots[place.root].item
            names = [context.entry(place, name)[2] for name in files.names] if item else files.names
            self._entries[side, path].extend(files, names)
        if context.options.verify:
            self.to_verify(len(files.names), files.bytes, place)
            self._verifications[place, context.hosts.here].extend(files, files.names)

    def to_verify(self, items: int, size: int, place: Place) -> None:
        """So many items in a directory, with ``size`` bytes together, will be read back."""
        self.count(counts.TO_VERIFY, items, place)
        self.count(counts.TO_VERIFY_BYTES, size, place)

    def found_directory(self, place: Place) -> None:
        """The directory is one of the dataset's."""
        if self._context.signs:
            side, path, _ = self._context.entry(place, b"")
            self._entries[side, path].add(b"", self._context.hashing.directory)

    @property
    def verify_phase(self) -> int:
        """When what this task has copied is read back."""
        return Phase.VERIFY if self.phase < Phase.VERIFY else Phase.REPAIR_VERIFY

    def fail(
        self,
        place: Place,
        name: bytes,
        problem: Problem,
        size: int = 0,
        *,
        retry: tuple[Any, ...] | Tried = Tried.BY_NAME,
        retry_in: int = Phase.COPY,
        touched: bool = False,
    ) -> None:
        """The item ``name`` (``b""``: the directory itself) is not in the target as it should be.

        A job that is resumed runs ``retry``, in the phase ``retry_in``, if that is a task. ``touched``: the item may be
        there, whatever the ``problem``.
        """
        counted = [(counts.FAILED, 1), (counts.FAILED_BYTES, size)]
        if problem.changed:
            counted.append((counts.VANISHED if problem.errno == errno.ENOENT else counts.CHANGED, 1))
        for counter, number in counted:
            self.count(counter, number, place)
        self._context.failed(problem)
        if retry is Tried.NEVER:
            self._retries.append(Retry())
        elif retry is Tried.WITH_ANOTHER:
            self._retries.append(Retry(counted=tuple(counted), place=place))
        else:
            again = ScanNames(place, name, max(1, self.attempt)) if retry is Tried.BY_NAME else retry
            untouched = not touched and self.is_untouched(place, problem)
            self._retries.append(Retry(encode(again), int(retry_in), tuple(counted), untouched, place))
        path = self._context.shown(place, name, on_source=problem.on_source)
        self._failures.append(Failure(path, problem.operation, problem.errno or 0, problem.strerror or ""))

    def link_again(self, place: Place) -> None:
        """A hard link in ``place`` that counts is made once more by the retry of an item that has failed."""
        self._retries.append(Retry(counted=((counts.HARDLINKS, 1),), place=place))

    def is_untouched(self, place: Place, problem: Problem) -> bool:
        """Is it certain that this job has made nothing of an item that has met ``problem``?

        What an earlier run may have tried before it was stopped is not. What is in the way of a new file was looked at.
        """
        if (problem.operation, problem.errno) == ("create", errno.EEXIST):
            return True
        job = self._context.job
        is_first = job.run == 1 or place.since[0] == job.run
        return is_first and not job.options.inplace and problem.on_source and problem.operation in _LOOKED_AT

    def written_over(self, place: Place, name: bytes, inode: int, *, failed: bool) -> None:
        """The existing file ``name`` is whole again, and still marked; it has ``failed`` if it lacks metadata."""
        self._over[place, failed].append((name, inode))

    def report(self, path: bytes, problem: Problem) -> None:
        """A failure that is no item's."""
        self._retries.append(Retry())
        self._failures.append(Failure(path, problem.operation, problem.errno or 0, problem.strerror or ""))

    def applied(self, place: Place, name: bytes, applied: Applied) -> None:
        """What was excused or is worth a notice when metadata was set: told, and counted, the first time."""
        if self.attempt >= COPIED_BEFORE:
            return
        self.count(counts.EXCUSED, applied.excused, place)
        for notice in applied.notices:
            self.warn(place, name, notice)
        context = self._context
        unknown = applied.unknown - context.unknown
        context.unknown |= unknown
        for attribute in unknown:
            path = shown(context.shown(place, name, on_source=False))
            text = f"{attribute} is left out, here and elsewhere: the file system does not know it"
            self._unknown.append((attribute, f"{path}: {text}"))

    def warn(self, place: Place, name: bytes, text: str, *, on_source: bool = False) -> None:
        """Something that the user should know of an item, and no failure."""
        self.count(counts.WARNINGS, 1, place)
        self._notices.append(f"{shown(self._context.shown(place, name, on_source=on_source))}: {text}")

    def outcome(self) -> Outcome:
        """Everything at once, failures as a note for rank 0."""
        for (side, path), gathered in self._entries.items():
            again = 2 * (self._context.job.run - 1) + (self.phase >= Phase.REPAIR)
            entries = StoredEntries(gathered.entries(side, path, again))
            self.spawn(entries, phase=Phase.SIGN, owner=self._context.rank)
        for (place, failed), files in self._over.items():
            names, inodes = zip(*files, strict=True)
            link = Phase.REPAIR_LINK if self.phase >= Phase.REPAIR else Phase.LINK
            unmark = Unmark(place, pack_names([*names]), pack_numbers([*inodes]), failed)
            self.spawn(unmark, len(files) * CALL_COST, phase=max(link, self.phase))
        for (place, writer), gathered in self._verifications.items():
            self.spawn_elsewhere(gathered.verification(place, writer), gathered.bytes, writer, phase=self.verify_phase)
        if self._failures or self._notices or self._unknown:
            failures = tuple(tuple(failure) for failure in self._failures)
            note = ReportFailures(failures, tuple(self._notices), tuple(self._retries), tuple(self._unknown))  # type: ignore[arg-type]
            self.spawn(note, owner=0)
        self._context.sync_directories()
        shares = tuple(self._shares()) if self._context.job.began else ()
        return Outcome(self._spawned, self._counts, self._settled, self._held, shares)


def _shared(numbers: list[int]) -> tuple[tuple[int, int], ...]:
    """Without what only tells that a phase is due."""
    return tuple((at, number) for at, number in enumerate(numbers) if number and at not in _DUE)
