"""MakeLinks: an inode's first name is copied; its further names become links to that copy.

The first name represents the others. If it can't be copied, it is left behind, and the next name takes its place. Names
that are left behind have failed. They are told when the others are copied or linked.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import nullcontext, suppress

from pcopy.engine.task import Task
from pcopy.fsio.close import held_open
from pcopy.fsio.identity import Identity
from pcopy.fsio.new_file import give_name
from pcopy.fsio.nodes import handle_of
from pcopy.fsio.patience import INTERRUPTED, patiently
from pcopy.fsio.problem import LINK_REFUSALS, MetadataProblem, Problem, failing
from pcopy.fsio.source import Version, status_of
from pcopy.fsio.temporary import remove
from pcopy.tasks.base import counts
from pcopy.tasks.base.actions import HARD_LINK, How
from pcopy.tasks.base.attempts import failed_or_retried, is_tried_again
from pcopy.tasks.base.codec import encode
from pcopy.tasks.base.hashing import SOCKET, kind_of
from pcopy.tasks.base.kind import Gone, OfItem, Steps
from pcopy.tasks.base.phases import Phase
from pcopy.tasks.base.rank import CALL_COST, Rank
from pcopy.tasks.base.result import Result, Tried
from pcopy.tasks.base.values import Contents, Copy, FailedName, Item, Known, Place, Unnamed
from pcopy.tasks.files.existing import Existing, hold_copy, look, may_be_marked, name_to_make, status_there
from pcopy.tasks.files.naming import Naming, discard
from pcopy.tasks.links.copy_anew import anew, looked_at
from pcopy.tasks.verify.read_items import read_too, skipped

_FULL_INODE = "its inode can take no more links: further names of it are linked to a second copy"
NOT_LINKED = (
    "the file system refuses this hard link: the name is a copy of its own"
    " (--no-preserve links makes such copies without a warning)"
)
UNIDENTIFIED = (
    "its further names become copies: the file system does not identify files for certain, and others may write in"
    " this directory (--no-preserve links makes such copies without a warning)"
)


class MakeLinks(OfItem, code=33, doing="linking", is_note=False):
    """Links the names of ``item`` to the first one's ``copy``.

    ``more``: these are further names, and the first name is verified with others. If any have ``failed`` already, the
    first of them is the first name itself, whose metadata could not all be set. ``copied`` is the name that counts as
    the copy, where that is another than the first: it was removed since, and may be among those to be made.
    """

    copy: Copy
    more: bool
    copied: tuple[Place, bytes] | None = None

    def mended(self, task: Task, gone: Gone) -> Iterator[Task]:
        return self.reduced(task, gone) if any(map(gone.has, self.places())) else self._told(task, gone)

    def reduced(self, task: Task, gone: Gone) -> Iterator[Task]:
        item = self.item
        first, *others = item.names
        is_first_lost = gone.has(first[0])
        if gone.keeps and (item.failed or is_first_lost):  # what is linked and not on record would seem the user's
            return looked_at(gone, item, self.copy.made, self.copy.known)
        if is_first_lost:  # the copy; another name of it, if there is one, is known by a note
            return iter(gone.released(item, others))
        failed = tuple(each for each in item.failed if not gone.has(each[0]))
        left = self._replace(item=item._replace(names=(first, *gone.kept(others)), failed=failed))
        return left._told(task, gone) if len(left.item.names) > 1 or failed or not self.more else iter(())

    def _told(self, task: Task, gone: Gone) -> Iterator[Task]:
        """The links are made; names of the inode that will be found become links of its copy, too."""
        yield task._replace(payload=encode(self))
        if not (self.more or self.item.failed):
            yield from gone.copied(self.item._replace(names=self.item.names[:1]), self.copy)

    def run(self, rank: Rank, result: Result) -> Steps:
        """Links each further name to the first, which is held, so that it can't become another one meanwhile."""
        first, *others = self.item.names
        linked, failed = [first], list(self.item.failed)
        held, lost, why = -1, None, ""
        try:
            held, is_known = self._hold_any(rank)
            before = status_of(held)
            if not is_known:
                why = UNIDENTIFIED
        except Problem as problem:
            if rank.keeps:  # it may well have been replaced since: the user's stays, and the others get a second copy
                why = "has been replaced since it was copied: further names are copied again"
            else:
                lost = problem
        if why and others:
            (result.warn_once if why == UNIDENTIFIED else result.warn)(*first, why)
            self._copy_again(result, others)
            others = []
        refused: list[tuple[Place, bytes]] = []
        with nullcontext() if held < 0 else held_open(held):
            for index, (place, name) in enumerate(others):
                try:
                    if lost is not None:
                        raise lost
                    if self._link(rank, result, held, before, place, name):
                        linked.append((place, name))
                except Problem as problem:
                    if problem.operation == "link" and problem.errno in LINK_REFUSALS:
                        refused.append((place, name))
                        if problem.errno == errno.EMLINK:
                            refused += others[index + 1 :]
                            why = _FULL_INODE
                            break
                    elif failed:
                        failed.append((place, name, problem.plain))
                    else:
                        alone = self._replace(item=self.item._replace(names=(first, (place, name))), more=True)
                        result.fail(place, name, problem, retry=alone)
                yield None
            if refused and why:  # links to the second copy are made again
                result.warn(*first, why)
                self._copy_again(result, refused)
            elif refused:
                self._copy_refused(rank, result, held, refused)
        if failed:
            self._fail_together(rank, result, linked, failed)
            return
        if len(linked) > 1 or not self.more:
            names = tuple(dict.fromkeys((self.copied or first, *linked)))
            result.inode_copied(self.item._replace(names=names), self.copy)
        if rank.options.verify and self.copy.known.digest and len(linked) > self.more:
            self._verify(rank, result, tuple(linked[self.more :]))

    def _verify(self, rank: Rank, result: Result, names: tuple[tuple[Place, bytes], ...]) -> None:
        group, (made, known, chunk, writers) = self.item._replace(names=names), self.copy
        is_link = self.more and not self._is_copied(*names[0])
        counter = counts.HARDLINKS if is_link else counts.of_kind(known.kind)
        contents = Contents(*names[0], known, False, 0, counter, chunk, writers, group)
        from pcopy.tasks.verify.verify_items import VerifyLinks

        verify = VerifyLinks(contents, made.inode)
        for number, (place, _) in enumerate(names):
            result.to_verify(1, 0 if number else known.size, place)
        result.spawn_elsewhere(verify, known.size, writers[0], phase=result.verify_phase)

    def _hold_any(self, rank: Rank) -> tuple[int, bool]:
        """As ``hold_copy`` of the first name, or of one that an earlier run has made: else it would seem the user's."""
        for place, name in self.item.names if rank.keeps and rank.job.run > 1 and self.copy.made.mark else ():
            with suppress(Problem):
                return hold_copy(rank, place, name, self.copy.made)
        return hold_copy(rank, *self.item.names[0], self.copy.made)

    def _copy_again(self, result: Result, names: list[tuple[Place, bytes]]) -> None:
        """Copy the first of ``names`` and link the others to that copy."""
        result.copy(self.item._replace(names=tuple(names), failed=()))

    def _copy_refused(self, rank: Rank, result: Result, held: int, refused: list[tuple[Place, bytes]]) -> None:
        """Copy the names for which link(2) was refused, which is a warning.

        If the copy that is ``held`` can be linked within its own directory, the refused names lie in another project,
        subvolume or mount, and are linked to each other where that is possible. Otherwise each becomes a copy.
        """
        for place, name in refused:
            result.warn_once(place, name, NOT_LINKED)
        if _can_be_linked(rank, held, self.item.place):
            self._copy_again(result, refused)
        else:
            for each in refused:
                self._copy_again(result, [each])

    def _is_copied(self, place: Place, name: bytes) -> bool:
        """Does this name, which is made, count as the copy?"""
        return self.copied is not None and (place.directory, name) == (self.copied[0].directory, self.copied[1])

    def _fail_together(
        self, rank: Rank, result: Result, linked: list[tuple[Place, bytes]], failed: list[FailedName]
    ) -> None:
        """The first name, and with it the inode, lacks some of its metadata; others have failed, too.

        A resumed job copies and links all names anew, also those that count as made.
        """
        item = self.item
        names = (*linked, *((place, name) for place, name, _ in failed[1:]))
        again = item._replace(names=names, attempt=1, failed=())
        retry = anew(rank, again, self.copy.made) if rank.keeps else again
        result.fail_together(failed, item.size, retry, touched=True)
        for place, _ in linked[1:]:
            result.link_again(place)

    def _link(
        self, rank: Rank, result: Result, held: int, before: os.stat_result, place: Place, source_name: bytes
    ) -> bool:
        """Makes and counts one link to what is ``held``, or counts what is there as skipped. Was it made?

        ``before``: its status when the task began. In a resumed job a file that stays has links of the job's own only
        if it had been touched then; making one touches it.
        """
        target, name = rank.open_target(place), rank.new_name(place, source_name)
        present = look(target, name)
        if rank.keeps:
            if not self._link_unasked(rank, result, held, place, source_name, present):
                skipped(rank, result, place, source_name, self.copy.known)
                return False
        elif present is None:
            _make(held, target, name)
        else:
            like = status_of(held)
            linked = (present.st_dev, present.st_ino) == (like.st_dev, like.st_ino)
            there = Existing(rank, place, target, name, present)
            there.refuse_anothers()
            if not (linked and rank.job.run > 1 and rank.is_ours(place, before)):
                if linked or not may_relink(there, like):
                    skipped(rank, result, place, source_name, self.copy.known)
                    return False
                if rank.options.sequential and not _can_be_linked(rank, held, place):
                    raise Problem("link", errno.EOPNOTSUPP)  # before what is present is removed
                temporary = name_to_make(rank, target, name, present, like)
                _make(held, target, temporary)
                try:
                    there.back_up(like)
                    if temporary != name:
                        give_name(target, temporary, name, like.st_ino, present, marked=may_be_marked(rank, present))
                except Problem:
                    remove(target, temporary)
                    raise
        rank.succeeded()
        counter = counts.of_kind(self.copy.known.kind) if self._is_copied(place, source_name) else counts.HARDLINKS
        result.count(counter, 1, place)
        size = self.copy.known.size if counter == counts.FILES else 0
        if counter == counts.FILES:
            result.count(counts.BYTES, size, place)
        kind = HARD_LINK if counter == counts.HARDLINKS else self.copy.known.kind
        result.items.did(How.over(present).action, place, source_name, kind, size)
        if self.copy.known.digest:
            result.digested(place, source_name, self.copy.known, counter, verify=False)
        elif (rank.signs or rank.verifies_skipped) and self.copy.known.kind != SOCKET and not self.item.failed:
            read_too(result, place, source_name, self.copy.known, counter)
        return True

    def _link_unasked(
        self, rank: Rank, result: Result, held: int, place: Place, source_name: bytes, present: os.stat_result | None
    ) -> bool:
        """Makes a link where nothing is replaced unasked; False if what is there, or comes meanwhile, stays."""
        target, name = rank.open_target(place), rank.new_name(place, source_name)
        if present is None:
            try:
                _make(held, target, name)
                return True
            except Problem as problem:
                if problem.errno != errno.EEXIST:
                    raise
        item = Unnamed(rank.temporary_names.next(), self.copy.made.inode, self.copy.made.mark)
        _make(held, target, item.temporary)
        named = False
        try:
            named = Naming(rank, place).give(source_name, item, self.copy.known)
        finally:
            if not named:
                discard(rank, place, item, result)
        return named


def may_relink(there: Existing, like: os.stat_result) -> bool:
    """A name that has its own copy is no hard link: only who wants to keep what exists keeps that."""
    if there.rank.options.existing == "changed" and not there.place.fresh:
        return True
    return there.may_replace(like)


def _make(held: int, target: int, name: bytes) -> None:
    """A further name of the very item that is held. (AT_EMPTY_PATH, which needs no /proc, is for root alone.)"""
    with failing("link"):
        patiently(lambda: os.link(handle_of(held), name, dst_dir_fd=target, follow_symlinks=True), INTERRUPTED)


def _can_be_linked(rank: Rank, held: int, place: Place) -> bool:
    """True if a further name of what is ``held`` can be made in the target directory of ``place``."""
    temporary = rank.temporary_names.next()
    try:
        target = rank.open_target(place)
        _make(held, target, temporary)
        remove(target, temporary)
    except Problem:
        return False
    return True


def copy_here(rank: Rank, made: Identity, known: Known) -> Copy:
    """What this host has just written, or found."""
    return Copy(made, known, 0, bytes((rank.hosts.here,)))


def representative_failed(rank: Rank, result: Result, item: Item, problem: Problem) -> None:
    """The first name has failed, or waits to be tried again; the next takes its place."""
    left = left_behind(rank, result, item, problem)
    if left is not None:
        pass_on(result, item, left)


def left_behind(rank: Rank, result: Result, item: Item, problem: Problem) -> tuple[FailedName, ...] | None:
    """The names that have failed, if the next one takes the first one's place, else None.

    An inode that changes is tried again with all of its names: one that came later alone would be no link any more.
    """
    made = problem.made if isinstance(problem, MetadataProblem) and not rank.keeps else None  # else it has no name
    there = status_there(rank, *item.names[0]) if made is not None else None
    if made is not None and there is not None:  # though not with all of its metadata
        known = Known(kind_of(there), item.size, b"", Version(item.inode, item.size, 0, 0))  # it has no digest
        after_representative(rank, result, item, copy_here(rank, made, known), shortcoming=problem)
        return None
    is_again = is_tried_again(problem, item.attempt)
    if is_again and item.links and _still_named(rank, item):
        result.copy(item._replace(attempt=item.attempt + 1), phase=max(Phase.LINK, result.phase))
        return None
    if is_again or not (item.failed or item.links):
        failed_or_retried(result, item.place, item.name, problem, item.attempt, item.size)
        return item.failed
    return (*item.failed, (item.place, item.name, problem.plain))


def pass_on(result: Result, item: Item, failed: tuple[FailedName, ...]) -> None:
    """The next name takes the first one's place; if there is none, all that have ``failed`` are told of."""
    if item.links:
        result.copy(item._replace(names=item.links, failed=failed))
    elif failed:
        touched = not all(result.is_untouched(place, Problem.from_plain(problem)) for place, _, problem in failed)
        all_failed(result, item, failed, touched=touched)


def all_failed(result: Result, item: Item, failed: tuple[FailedName, ...], *, touched: bool) -> None:
    """A resumed job tries them together, so that they become links of each other."""
    names = tuple((place, name) for place, name, _ in failed)
    together = item._replace(names=names, attempt=max(1, item.attempt), failed=())
    retry = Tried.BY_NAME if len(names) == 1 else together
    result.fail_together(failed, item.size, retry, touched=touched)


def _still_named(rank: Rank, item: Item) -> bool:
    try:
        return rank.source_status(item.place, item.name).st_ino == item.inode
    except Problem:
        return False


def after_representative(
    rank: Rank, result: Result, item: Item, copy: Copy, *, shortcoming: Problem | None = None
) -> None:
    """The first name is there, but for the metadata that had the ``shortcoming``; spawns the making of the others."""
    if shortcoming is not None and not (item.links or item.failed):
        result.fail(item.place, item.name, shortcoming, item.size)
        return
    first = item.names[0]
    failed = () if shortcoming is None else ((*first, shortcoming.plain), *item.failed)
    if item.links or failed:
        links = MakeLinks(item._replace(failed=failed), copy, False)
        result.spawn(links, len(item.names) * CALL_COST)
    if failed:
        return
    alone = item._replace(names=(first,), failed=())
    if not item.links and (item.failed or _has_more_names(rank, item)):
        result.inode_copied(alone, copy)
    for place, name, problem in item.failed:
        retry = MakeLinks(alone._replace(names=(first, (place, name))), copy, True)
        result.fail(place, name, Problem.from_plain(problem), item.size, retry=retry)


def _has_more_names(rank: Rank, item: Item) -> bool:
    if not (rank.job.began and rank.options.preserve.links):
        return False
    try:
        return rank.source_status(item.place, item.name).st_nlink > 1
    except Problem:
        return False
