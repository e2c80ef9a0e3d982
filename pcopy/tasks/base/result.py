"""The result of one task: what it spawns, counts, digests and reports. All of it takes effect together when the task is
done.

This module does not know the kinds of tasks. ``pcopy.tasks.runner`` turns the collected items into tasks when the task
is done.
"""

from __future__ import annotations

import errno
import os
from collections import defaultdict
from collections.abc import Iterable, Iterator
from enum import Enum
from itertools import chain

from pcopy.engine.driver import Outcome
from pcopy.engine.task import ANYBODY, Spawn, TaskId
from pcopy.fsio.attributes import Applied
from pcopy.fsio.problem import Problem
from pcopy.fsio.syncer import unsyncable
from pcopy.named import NamedTuple
from pcopy.tasks.base import counts
from pcopy.tasks.base.actions import AFRESH, NOBODY, How, NobodyAsks
from pcopy.tasks.base.codec import encode
from pcopy.tasks.base.gathered import Gathered
from pcopy.tasks.base.hashing import SOCKET
from pcopy.tasks.base.job import Failure
from pcopy.tasks.base.kind import Kind
from pcopy.tasks.base.phases import Phase
from pcopy.tasks.base.rank import CALL_COST, Rank, Running
from pcopy.tasks.base.values import COPIED_BEFORE, Contents, Copy, FailedName, Item, Known, Place, Retry
from pcopy.text import shown

_LOOKED_AT = ("open", "stat", "readdir", "scan")
"""Operations on an item of the source before anything is created for it in the destination."""

MOST_TOLD_ONCE = 1000
"""Largest number of different notices that a rank sends only once; further ones are only counted. Notices may contain
names, so their number is otherwise unlimited.
"""


_UNSYNCABLE = (
    "a kill loses nothing, but what was written may be lost if this host or the file server stops, "
    "and a checkpoint is not used after a reboot"
)
"""Consequence, for the user, of a file system that cannot bring files to stable storage."""


class Tried(Enum):
    """How a resumed job retries a failed item that has no task of its own for that.

    - BY_NAME: the name is examined again.
    - WITH_ANOTHER: the task of another item that failed together with it retries it.
    - WHEN_FOUND: the phase that finds the item is repeated. Until then the item is not counted as found.
    - NEVER: it is not retried.
    """

    BY_NAME = "its name is looked at again"
    WITH_ANOTHER = "by the task of another item that failed together with it"
    WHEN_FOUND = "by the phase that finds it again: until then it counts as not found, too"
    NEVER = "it stays failed"


class Names(NamedTuple):
    """Names of a directory, joined by slashes, that are examined again. ``attempt`` counts from 0."""

    place: Place
    names: bytes
    attempt: int


Again = Kind | Item | Names | Tried
"""Type of the action that a resumed job takes for a failed item."""


class Result(counts.Counted):
    """Everything that one task spawns, counts and reports."""

    __slots__ = (
        "_held", "_own", "_rank", "_settled", "_spawned", "attempt", "copies", "entries", "failed", "failures", "id",
        "inodes", "items", "large_copies", "looks", "notices", "once", "over", "phase", "running", "unknown",
        "verifications",
    )  # fmt: skip

    def __init__(self, rank: Rank, phase: int, task_id: TaskId, found: tuple[Place, bytes] | None = None) -> None:
        """Create an empty result.

        Args:
            found: the directory that the task is about and a name in it, or None.
        """
        super().__init__(found[0] if found else None, by_directory=bool(rank.job.began))
        self._rank = rank
        self.phase = int(phase)
        self.running = Running(self.phase)
        self.id = task_id
        self.attempt = 0
        """Number of the task's attempt, from 0; 0 for tasks that have none."""
        self._held = False
        self._settled: list[TaskId] = []
        self._own: list[Spawn] = []
        self._spawned: Iterable[Spawn] = self._own
        self.failures: list[Failure] = []
        self.failed: list[tuple[Kind | Item | Names | None, Retry]] = []
        """For each failure, the action of a resumed job: the task or item that ``Retry`` will contain in packed form,
        and the ``Retry`` itself.
        """
        self.notices: list[str] = []
        self.unknown: list[tuple[str, str]] = []
        """Notices that count as one warning and are shown once in the whole job. Each has a key, by which duplicates of
        other ranks are recognised.
        """
        self.once: list[tuple[str, str]] = []
        """Notices that are shown once in the whole job and were counted already. Each has a key, by which duplicates of
        other ranks are recognised.
        """
        self.looks: list[tuple[Names, int]] = []
        """Names that are examined again, each group with the phase in which that happens."""
        self.copies: list[tuple[Item, int]] = []
        """Items that are copied or copied again, each with the phase in which that happens."""
        self.inodes: list[tuple[Item, Copy]] = []
        """Copies of inodes with several names, which are recorded for a resumed job."""
        self.entries: defaultdict[tuple[int, bytes], Gathered] = defaultdict(Gathered)
        """Entries for the signature, by side and path."""
        self.verifications: defaultdict[tuple[Place, int], Gathered] = defaultdict(Gathered)
        """Copies that are read back, by directory and by the number of the host that wrote them."""
        self.large_copies: list[Contents] = []
        """Copies that are read back in chunks."""
        self.over: defaultdict[tuple[Place, bool], list[tuple[bytes, int]]] = defaultdict(list)
        """Existing files that were overwritten (name and inode number), by directory and by whether they failed."""
        self.items = _items_of(rank)
        """Recorder of the outcomes of items."""

    def spawn(
        self, task: Kind, cost: int = 0, *, phase: int | None = None, expands: bool = False, owner: int | None = None
    ) -> None:
        """Spawn a new task.

        Args:
            cost: estimated cost in bytes, in addition to ``CALL_COST``.
            phase: phase of the task; by default that of the spawning task.
            expands: True if the task may find further work.
            owner: the only rank that may run it; by default the task's ``home``, or any rank.
        """
        if owner is None:
            home = task.home(self._rank.size)
            owner = ANYBODY if home is None else home
        at = self.phase if phase is None else int(phase)  # a plain int: only primitives can be packed
        if at > self.phase and (counter := counts.PUT_ASIDE.get(at)) is not None:
            self.count(counter)
        self._own.append(Spawn(at, encode(task), cost + CALL_COST, expands, owner))

    def look_again(self, place: Place, names: bytes, attempt: int, *, phase: int | None = None) -> None:
        """Have names of a directory examined again. Their items are copied according to their type then."""
        self.looks.append((Names(place, names, attempt), self.phase if phase is None else int(phase)))

    def copy(self, item: Item, *, phase: int | None = None) -> None:
        """Have ``item`` copied by a task of its own: the first of its names that can be copied, with the other names as
        hard links to the copy.
        """
        self.copies.append((item, self.phase if phase is None else int(phase)))

    def inode_copied(self, item: Item, copy: Copy) -> None:
        """Record that names of an inode were created, because a resumed job may find more names. The first name of
        ``item`` is the copy.
        """
        if self._rank.job.began and self._rank.options.preserve.links:
            self.inodes.append((item, copy))

    def spawn_elsewhere(self, task: Kind, cost: int, writer: int, *, phase: int | None = None) -> None:
        """Spawn a task that must run on another host than ``writer``, if there are several. The page cache of
        ``writer`` contains the data that the task is to read from storage.
        """
        self.spawn(task, cost, phase=phase, owner=self._rank.hosts.elsewhere(writer))

    def spawn_each(self, tasks: Iterator[Kind], cost: int, *, expands: bool) -> None:
        """Spawn a large number of tasks of this phase. Each is created only when the engine takes it."""
        made = (Spawn(self.phase, encode(task), cost, expands) for task in tasks)
        self._spawned = chain(self._spawned, made)

    def hold(self) -> None:
        """Defer the recording of this task as done, because its effect is in this rank's memory only. Another task
        completes it (``Outcome``).
        """
        self._held = True

    def settle(self, tasks: Iterable[TaskId]) -> None:
        """Complete ``tasks`` whose recording was deferred: this task has used up their effects. Its own recording is
        not deferred.
        """
        self._settled += (task for task in tasks if task != self.id)
        self._held = False

    def copied(
        self,
        place: Place,
        name: bytes,
        known: Known,
        *,
        alone: bool = True,
        chunk: int = 0,
        writers: bytes = b"",
        how: How = AFRESH,
    ) -> None:
        """Count an item that was copied completely.

        Args:
            known: type, size, digest and version of the contents.
            alone: False if the item has further names; it is verified together with them.
            chunk, writers: as in ``pcopy.tasks.base.values.Contents``.
            how: action and duration, which are recorded for the report of each item.
        """
        self.items.did(how.action, place, name, known.kind, known.size, how.nanoseconds)
        self._rank.succeeded()
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
        """Collect the digest of an item that was counted already, for the signature and for verification.

        Args:
            counter: the counter in which the item was counted.
            verify: True if the item is verified now; False if it is verified with its links.

        The other arguments are those of ``copied``.
        """
        rank = self._rank
        if rank.signs and name and known.kind != SOCKET:
            side, path, entry = rank.entry(place, name)
            self.entries[side, path].add(entry, known)
        if not (verify and rank.options.verify):
            return
        self.to_verify(1, known.size, place)
        if chunk:
            self.large_copies.append(Contents(place, name, known, False, 0, counter, chunk, writers))
        else:
            self.verifications[place, writers[0] if writers else rank.hosts.here].add(name, known, counter)

    def digested_files(self, place: Place, files: Gathered, *, verify: bool = True) -> None:
        """Collect the digests of regular files of one directory, as ``digested`` does. Copies among them were written
        by this host.
        """
        rank = self._rank
        if not files:
            return
        if rank.signs:
            side, path, _ = rank.entry(place, b"")
            item = rank.job.roots[place.root].item
            names = [rank.entry(place, name)[2] for name in files.packed_names.split(b"/")] if item else None
            self.entries[side, path].extend(files, names)
        if verify and rank.options.verify:
            self.to_verify(len(files), files.bytes, place)
            self.verifications[place, rank.hosts.here].extend(files)

    def to_verify(self, items: int, size: int, place: Place) -> None:
        """Count ``items`` of a directory, of ``size`` bytes together, that will be read back."""
        self.count(counts.TO_VERIFY, items, place)
        self.count(counts.TO_VERIFY_BYTES, size, place)

    def found_directory(self, place: Place) -> None:
        """Collect the entry of a directory for the signature."""
        if self._rank.signs:
            side, path, _ = self._rank.entry(place, b"")
            self.entries[side, path].add(b"", self._rank.hashing.directory)

    @property
    def verify_phase(self) -> int:
        """The phase in which the copies of this task are read back."""
        return Phase.VERIFY if self.phase < Phase.VERIFY else Phase.REPAIR_VERIFY

    def fail(
        self,
        place: Place,
        name: bytes,
        problem: Problem,
        size: int = 0,
        *,
        retry: Again = Tried.BY_NAME,
        retry_in: int = Phase.COPY,
        touched: bool = False,
    ) -> None:
        """Count an item as failed and report it. In a job that deletes, defer it to AGAIN instead if a directory that
        will be deleted has its name.

        Args:
            place, name: directory and name of the item; the name ``b""`` means the directory itself.
            problem: the error.
            size: size of the item in bytes.
            retry: what a resumed job does: it runs this task, copies this item, or acts as ``Tried`` says.
            retry_in: the phase of the retry.
            touched: True if something may have been created for the item, whatever the ``problem`` is.
        """
        if self._is_to_go(problem):
            self._wait(place, name, retry)
        else:
            self._fail(place, name, problem, size, retry, retry_in, touched=touched)

    def _is_to_go(self, problem: Problem) -> bool:
        """Return True if the item failed because a directory has its name that is going to be deleted, as far as
        deletion is permitted.

        With ``--existing newer`` no directory is deleted to make room for an item, so the item fails.
        """
        options = self._rank.options
        return problem.is_full and options.delete and not options.keeps and self.phase < Phase.DELETE

    def _wait(self, place: Place, name: bytes, retry: Again) -> None:
        """Defer the item to AGAIN, where it is copied or finally fails. Names of one inode are copied together, as in a
        resumed job.
        """
        if isinstance(retry, Item):
            self.copy(retry, phase=Phase.AGAIN)
        elif isinstance(retry, Kind):
            self.spawn(retry, phase=Phase.AGAIN)
        else:
            self.look_again(place, name, max(1, self.attempt), phase=Phase.AGAIN)

    def _fail(
        self, place: Place, name: bytes, problem: Problem, size: int, retry: Again, retry_in: int, *, touched: bool
    ) -> None:
        """Count the item as failed, and record the failure and its retry. The arguments are those of ``fail``."""
        counted = [(counts.FAILED, 1), (counts.FAILED_BYTES, size)]
        if problem.changed:
            counted.append((counts.VANISHED if problem.errno == errno.ENOENT else counts.CHANGED, 1))
        counted += [(counts.FOUND, 1)] if retry is Tried.WHEN_FOUND else []
        for counter, number in counted:
            self.count(counter, number, place)
        message = self._rank.failed(problem, place, name, size)
        text, common = problem.strerror or "", os.strerror(problem.errno or 0)
        if not message or text.startswith(f"{common};"):  # a text that was appended to the system's is kept
            message += text.removeprefix(common) if message else text
        if retry is Tried.NEVER:
            self.failed.append((None, Retry()))
        elif isinstance(retry, Tried) and retry is not Tried.BY_NAME:
            self.failed.append((None, Retry(counted=tuple(counted), place=place)))
        else:
            again = retry if isinstance(retry, tuple) else Names(place, name, max(1, self.attempt))
            untouched = not touched and self.is_untouched(place, problem)
            self.failed.append((again, Retry(b"", int(retry_in), tuple(counted), untouched, place)))
        self.items.failed(place, name, size)
        path = self._rank.shown(place, name, on_source=problem.on_source)
        self.failures.append(Failure(path, problem.operation, problem.errno or 0, message))

    def fail_together(self, failed: Iterable[FailedName], size: int, retry: Again, *, touched: bool) -> None:
        """Count names of one inode as failed. A resumed job retries all of them by the task ``retry``."""
        problems = [(place, name, Problem.from_plain(problem)) for place, name, problem in failed]
        if problems and all(self._is_to_go(problem) for *_, problem in problems):
            self._wait(*problems[0][:2], retry)
            return
        for place, name, problem in problems:
            self._fail(place, name, problem, size, retry, Phase.COPY, touched=touched)
            retry = Tried.WITH_ANOTHER

    def link_again(self, place: Place) -> None:
        """Record that the retry of a failed item creates the hard link in ``place`` once more, which was counted
        already.
        """
        self.failed.append((None, Retry(counted=((counts.HARDLINKS, 1),), place=place)))

    def is_untouched(self, place: Place, problem: Problem) -> bool:
        """Return True if this job certainly created nothing for an item that failed with ``problem``.

        An item that an earlier run may have tried before it was stopped is not certain. If a new file failed with
        EEXIST, the existing item was examined already.
        """
        if (problem.operation, problem.errno) == ("create", errno.EEXIST):
            return True
        job = self._rank.job
        is_first = job.run == 1 or place.since[0] == job.run
        return is_first and not job.options.inplace and problem.on_source and problem.operation in _LOOKED_AT

    def written_over(self, place: Place, name: bytes, inode: int, *, failed: bool) -> None:
        """Record that the existing file ``name`` was overwritten completely and still has its mark
        (``pcopy.fsio.half_written``).

        Args:
            inode: its inode number.
            failed: True if it lacks metadata.
        """
        self.over[place, failed].append((name, inode))

    def report(self, path: bytes, problem: Problem) -> None:
        """Report a failure that concerns no item."""
        self.failed.append((None, Retry()))
        self.failures.append(Failure(path, problem.operation, problem.errno or 0, problem.strerror or ""))

    def applied(self, place: Place, name: bytes, applied: Applied) -> None:
        """Count and report what happened when metadata was set: exceptions that were excused, notices, and unsupported
        features.

        It does nothing if the item was copied before in an earlier attempt, because it was counted then.
        """
        if self.attempt >= COPIED_BEFORE:
            return
        self.count(counts.EXCUSED, applied.excused, place)
        for notice in applied.notices:
            self.warn(place, name, notice)
        if applied.layout:
            self.other_layout(place, name, applied.layout)
        if applied.unknown:
            self.unsupported(self._rank.shown(place, name, on_source=False), applied.unknown)

    def unsupported(self, path: bytes, unknown: frozenset[str]) -> None:
        """Report once the features that the file system of ``path`` does not support (``Applied.unknown``)."""
        new = unknown - self._rank.told
        self._rank.told |= new
        for feature in sorted(new):
            text = f"{shown(path)}: {feature} is left out, here and elsewhere: the file system does not support it"
            self.unknown.append((feature, text))

    def other_layout(self, place: Place, name: bytes, why: str) -> None:
        """Count an item that did not get the wanted layout; report the first one for each reason."""
        self.warn_once(place, name, why)

    def warn_once(self, place: Place, name: bytes, text: str) -> None:
        """Count a warning that may concern many items; report only the first one with this ``text``."""
        self.count(counts.WARNINGS, 1, place)
        if text not in self._rank.told and len(self._rank.told) < MOST_TOLD_ONCE:
            self._rank.told.add(text)
            path = shown(self._rank.shown(place, name, on_source=False))
            self.once.append((text, f"{path}: {text} (others like it are only counted)"))

    def warn_unsyncable(self) -> None:
        """Report, once for each device, that data which this rank wrote there cannot be brought to stable storage."""
        sent = self._rank.told
        for path, number in unsyncable.values():
            where = shown(path or b"a file system")
            text = f"{where}: files cannot be synced here ({os.strerror(number)}): {_UNSYNCABLE}"
            if text not in sent:
                sent.add(text)
                self.unknown.append((text, text))

    def warn(self, place: Place, name: bytes, text: str, *, on_source: bool = False) -> None:
        """Count and report a warning about an item, which is not a failure."""
        self.count(counts.WARNINGS, 1, place)
        self.notices.append(f"{shown(self._rank.shown(place, name, on_source=on_source))}: {text}")

    def outcome(self) -> Outcome:
        """Return the part of the result that the engine needs."""
        return Outcome(self._spawned, self._counts, self._settled, self._held, tuple(self._shares()))


def _items_of(rank: Rank) -> NobodyAsks:
    """Return the recorder of the outcomes of items; one that ignores them if neither the user nor a
    report needs them.
    """
    if not (rank.options.itemize or rank.gathers):
        return NOBODY
    from pcopy.tasks.base.itemized import Itemizer

    return Itemizer(rank)
