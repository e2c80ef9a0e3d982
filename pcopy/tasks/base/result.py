"""Gathers what one task spawns, counts, digests and reports, until it is done: all of it becomes known at once.

It knows no kinds of tasks: what it gathers of items becomes tasks when the task is done (``pcopy.tasks.runner``).
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
"""What is done with an item of the source before anything is made of it."""

MOST_TOLD_ONCE = 1000
"""Different reasons that a rank tells; further ones are only counted. (Reasons may hold names, so there is no limit to
them.)"""


_UNSYNCABLE = (
    "a kill loses nothing, but what was written may be lost if this host or the file server stops, "
    "and a checkpoint is not used after a reboot"
)
"""The consequence for the user of a file system that cannot bring files to storage."""


class Tried(Enum):
    """How a resumed job tries a failed item, where no task of its own does."""

    BY_NAME = "its name is looked at again"
    WITH_ANOTHER = "by the task of another item that failed together with it"
    WHEN_FOUND = "by the phase that finds it again: until then it counts as not found, too"
    NEVER = "it stays failed"


class Names(NamedTuple):
    """Names of a directory (joined by slashes) that are looked at again: ``attempt`` counts from 0."""

    place: Place
    names: bytes
    attempt: int


Again = Kind | Item | Names | Tried
"""What a resumed job does about an item that has failed."""


class Result(counts.Counted):
    __slots__ = (
        "_held", "_own", "_rank", "_settled", "_spawned", "attempt", "copies", "entries", "failed", "failures", "id",
        "inodes", "items", "large_copies", "looks", "notices", "once", "over", "phase", "running", "unknown",
        "verifications",
    )  # fmt: skip

    def __init__(self, rank: Rank, phase: int, task_id: TaskId, found: tuple[Place, bytes] | None = None) -> None:
        """``found`` is the directory that the task is about, and a name in it."""
        super().__init__(found[0] if found else None, by_directory=bool(rank.job.began))
        self._rank = rank
        self.phase = int(phase)
        self.running = Running(self.phase)
        self.id = task_id
        self.attempt = 0
        """That of the task, if it has one."""
        self._held = False
        self._settled: list[TaskId] = []
        self._own: list[Spawn] = []
        self._spawned: Iterable[Spawn] = self._own
        self.failures: list[Failure] = []
        self.failed: list[tuple[Kind | Item | Names | None, Retry]] = []
        """What a resumed job does about each failure: ``Retry``, and what that packs."""
        self.notices: list[str] = []
        self.unknown: list[tuple[str, str]] = []
        self.once: list[tuple[str, str]] = []
        """Notices that are told once, however many ranks meet what they tell, each with what it is known by."""
        self.looks: list[tuple[Names, int]] = []
        """Names that are looked at again, and the phase."""
        self.copies: list[tuple[Item, int]] = []
        """Items that are copied, or copied again, and the phase."""
        self.inodes: list[tuple[Item, Copy]] = []
        """Copies of inodes with several names, for a job that is resumed."""
        self.entries: defaultdict[tuple[int, bytes], Gathered] = defaultdict(Gathered)
        """For the signature, by side and path."""
        self.verifications: defaultdict[tuple[Place, int], Gathered] = defaultdict(Gathered)
        """Copies that are read back, by directory and the host that has written them."""
        self.large_copies: list[Contents] = []
        """Copies that are read back in chunks."""
        self.over: defaultdict[tuple[Place, bool], list[tuple[bytes, int]]] = defaultdict(list)
        """Files that were written over, name and inode, by directory and whether they have failed."""
        self.items = _items_of(rank)
        """What has become of items."""

    def spawn(
        self, task: Kind, cost: int = 0, *, phase: int | None = None, expands: bool = False, owner: int | None = None
    ) -> None:
        """A new task, of this phase unless another is named; without an ``owner``, of its home or of anybody."""
        if owner is None:
            home = task.home(self._rank.size)
            owner = ANYBODY if home is None else home
        at = self.phase if phase is None else int(phase)  # primitives only: an enum's member is none
        if at > self.phase and (counter := counts.PUT_ASIDE.get(at)) is not None:
            self.count(counter)
        self._own.append(Spawn(at, encode(task), cost + CALL_COST, expands, owner))

    def look_again(self, place: Place, names: bytes, attempt: int, *, phase: int | None = None) -> None:
        """Names of a directory are statted again, and what they are is copied."""
        self.looks.append((Names(place, names, attempt), self.phase if phase is None else int(phase)))

    def copy(self, item: Item, *, phase: int | None = None) -> None:
        """The first name of ``item`` that can be is copied, by a task of its own, and the others are linked to it."""
        self.copies.append((item, self.phase if phase is None else int(phase)))

    def inode_copied(self, item: Item, copy: Copy) -> None:
        """Names of an inode are there; a job that is resumed may find more. The first of them counts as the copy."""
        if self._rank.job.began and self._rank.options.preserve.links:
            self.inodes.append((item, copy))

    def spawn_elsewhere(self, task: Kind, cost: int, writer: int, *, phase: int | None = None) -> None:
        """A task that with several hosts must not run on the host ``writer``, whose memory holds what is to be read."""
        self.spawn(task, cost, phase=phase, owner=self._rank.hosts.elsewhere(writer))

    def spawn_each(self, tasks: Iterator[Kind], cost: int, *, expands: bool) -> None:
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
        """One item more is there, whole. One that is not ``alone`` is verified with its links.

        ``chunk`` and ``writers``: see ``pcopy.tasks.base.values.Contents``; ``how`` it has come about is told to
        whoever wants to know of each item.
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
        """The item's digest is known, and it has been counted by ``counter``; it is to be verified if ``verify``.
        The rest as for ``copied``."""
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
        """As ``digested``, for regular files of one directory; those that are copied were written by this host."""
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
        """So many items in a directory, with ``size`` bytes together, will be read back."""
        self.count(counts.TO_VERIFY, items, place)
        self.count(counts.TO_VERIFY_BYTES, size, place)

    def found_directory(self, place: Place) -> None:
        if self._rank.signs:
            side, path, _ = self._rank.entry(place, b"")
            self.entries[side, path].add(b"", self._rank.hashing.directory)

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
        retry: Again = Tried.BY_NAME,
        retry_in: int = Phase.COPY,
        touched: bool = False,
    ) -> None:
        """The item ``name`` (``b""``: the directory itself) is not in the target as it should be.

        A job that is resumed runs ``retry``, in the phase ``retry_in``, if that is a task, or copies it, if that is an
        item. ``touched``: the item may be there, whatever the ``problem``. AGAIN copies what deletion makes way for.
        """
        if self._is_to_go(problem):
            self._wait(place, name, retry)
        else:
            self._fail(place, name, problem, size, retry, retry_in, touched=touched)

    def _is_to_go(self, problem: Problem) -> bool:
        """Return True if a directory is in the way that is deleted, if anything may be.

        ``--existing newer`` deletes none for that: such an item has failed.
        """
        options = self._rank.options
        return problem.is_full and options.delete and not options.keeps and self.phase < Phase.DELETE

    def _wait(self, place: Place, name: bytes, retry: Again) -> None:
        """In AGAIN the item is copied, or fails for good: names of an inode together, as in a job that is resumed."""
        if isinstance(retry, Item):
            self.copy(retry, phase=Phase.AGAIN)
        elif isinstance(retry, Kind):
            self.spawn(retry, phase=Phase.AGAIN)
        else:
            self.look_again(place, name, max(1, self.attempt), phase=Phase.AGAIN)

    def _fail(
        self, place: Place, name: bytes, problem: Problem, size: int, retry: Again, retry_in: int, *, touched: bool
    ) -> None:
        counted = [(counts.FAILED, 1), (counts.FAILED_BYTES, size)]
        if problem.changed:
            counted.append((counts.VANISHED if problem.errno == errno.ENOENT else counts.CHANGED, 1))
        counted += [(counts.FOUND, 1)] if retry is Tried.WHEN_FOUND else []
        for counter, number in counted:
            self.count(counter, number, place)
        message = self._rank.failed(problem, place, name, size)
        text, common = problem.strerror or "", os.strerror(problem.errno or 0)
        if not message or text.startswith(f"{common};"):  # what is added to the error is kept
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
        """Names of one inode, which a resumed job tries by one task."""
        problems = [(place, name, Problem.from_plain(problem)) for place, name, problem in failed]
        if problems and all(self._is_to_go(problem) for *_, problem in problems):
            self._wait(*problems[0][:2], retry)
            return
        for place, name, problem in problems:
            self._fail(place, name, problem, size, retry, Phase.COPY, touched=touched)
            retry = Tried.WITH_ANOTHER

    def link_again(self, place: Place) -> None:
        """A hard link in ``place`` that counts is made once more by the retry of an item that has failed."""
        self.failed.append((None, Retry(counted=((counts.HARDLINKS, 1),), place=place)))

    def is_untouched(self, place: Place, problem: Problem) -> bool:
        """Is it certain that this job has made nothing of an item that has met ``problem``?

        What an earlier run may have tried before it was stopped is not. What is in the way of a new file was looked at.
        """
        if (problem.operation, problem.errno) == ("create", errno.EEXIST):
            return True
        job = self._rank.job
        is_first = job.run == 1 or place.since[0] == job.run
        return is_first and not job.options.inplace and problem.on_source and problem.operation in _LOOKED_AT

    def written_over(self, place: Place, name: bytes, inode: int, *, failed: bool) -> None:
        """The existing file ``name`` is whole again, and still marked; it has ``failed`` if it lacks metadata."""
        self.over[place, failed].append((name, inode))

    def report(self, path: bytes, problem: Problem) -> None:
        """A failure that is no item's."""
        self.failed.append((None, Retry()))
        self.failures.append(Failure(path, problem.operation, problem.errno or 0, problem.strerror or ""))

    def applied(self, place: Place, name: bytes, applied: Applied) -> None:
        """What was excused or is worth a notice when metadata was set: told, and counted, the first time."""
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
        """Report once what the file system of ``path`` does not support (``Applied.unknown``)."""
        new = unknown - self._rank.told
        self._rank.told |= new
        for what in sorted(new):
            text = f"{shown(path)}: {what} is left out, here and elsewhere: the file system does not support it"
            self.unknown.append((what, text))

    def other_layout(self, place: Place, name: bytes, why: str) -> None:
        """The item has another layout than the one that was wanted: each counts, and the first is reported."""
        self.warn_once(place, name, why)

    def warn_once(self, place: Place, name: bytes, text: str) -> None:
        """As ``warn``, of what may concern many items: each counts, and the first is told."""
        self.count(counts.WARNINGS, 1, place)
        if text not in self._rank.told and len(self._rank.told) < MOST_TOLD_ONCE:
            self._rank.told.add(text)
            path = shown(self._rank.shown(place, name, on_source=False))
            self.once.append((text, f"{path}: {text} (others like it are only counted)"))

    def warn_unsyncable(self) -> None:
        """Report, once for each device, that what this rank has written there cannot be brought to storage."""
        told = self._rank.told
        for path, number in unsyncable.values():
            where = shown(path or b"a file system")
            text = f"{where}: files cannot be synced here ({os.strerror(number)}): {_UNSYNCABLE}"
            if text not in told:
                told.add(text)
                self.unknown.append((text, text))

    def warn(self, place: Place, name: bytes, text: str, *, on_source: bool = False) -> None:
        """Something that the user should know of an item, and no failure."""
        self.count(counts.WARNINGS, 1, place)
        self.notices.append(f"{shown(self._rank.shown(place, name, on_source=on_source))}: {text}")

    def outcome(self) -> Outcome:
        return Outcome(self._spawned, self._counts, self._settled, self._held, tuple(self._shares()))


def _items_of(rank: Rank) -> NobodyAsks:
    if not (rank.options.itemize or rank.gathers):
        return NOBODY
    from pcopy.tasks.base.itemized import Itemizer

    return Itemizer(rank)
