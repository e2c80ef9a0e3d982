"""MakeLinks: link the further names of an inode to the copy of its first name.

The first name represents the inode. If it cannot be copied, the next name takes its place, and the first one has
failed. Such failures are reported once the other names are copied or linked.
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
    """Links the names of ``item`` to the ``copy`` of the first one.

    Fields:

    - ``more``: these are further names of an inode whose first name is verified by another task.
    - ``item.failed``: if there are any, the first of them is the first name itself, whose metadata could not be set
      completely.
    - ``copied``: the name that counts as the copy, if it is not the first name. It was removed since, and may be among
      the names to be created.
    """

    copy: Copy
    more: bool
    copied: tuple[Place, bytes] | None = None

    def mended(self, task: Task, gone: Gone) -> Iterator[Task]:
        return self.reduced(task, gone) if any(map(gone.has, self.places())) else self._told(task, gone)

    def reduced(self, task: Task, gone: Gone) -> Iterator[Task]:
        """Yield what a resumed job does instead of this task if directories of its names were removed.

        If the copy's own directory was removed, or a half-finished link could be taken for a file of the user, the
        names are copied again. Otherwise the links in the remaining directories are created.
        """
        item = self.item
        first, *further_names = item.names
        is_first_lost = gone.has(first[0])
        # Links that were created but not recorded would be taken for files of the user.
        if gone.keeps and (item.failed or is_first_lost):
            return looked_at(gone, item, self.copy.made, self.copy.known)
        if is_first_lost:  # the copy itself was removed; a note records its other names, if it has any
            return iter(gone.released(item, further_names))
        failed = tuple(each for each in item.failed if not gone.has(each[0]))
        remaining = self._replace(item=item._replace(names=(first, *gone.kept(further_names)), failed=failed))
        return remaining._told(task, gone) if len(remaining.item.names) > 1 or failed or not self.more else iter(())

    def _told(self, task: Task, gone: Gone) -> Iterator[Task]:
        """Yield the task, and a note about the copy for names of the inode that a resumed job will find."""
        yield task._replace(payload=encode(self))
        if not (self.more or self.item.failed):
            yield from gone.copied(self.item._replace(names=self.item.names[:1]), self.copy)

    def run(self, rank: Rank, result: Result) -> Steps:
        """Link each further name to the first one, which is kept open so that it cannot be replaced meanwhile."""
        first, *further_names = self.item.names
        linked, failed = [first], list(self.item.failed)
        copy_fd, problem_met, reason = -1, None, ""
        try:
            copy_fd, is_known = self._hold_any(rank)
            before = status_of(copy_fd)
            if not is_known:
                reason = UNIDENTIFIED
        except Problem as problem:
            if rank.keeps:  # replaced by the user since: that file is kept, and the other names get a second copy
                reason = "has been replaced since it was copied: further names are copied again"
            else:
                problem_met = problem
        if reason and further_names:
            (result.warn_once if reason == UNIDENTIFIED else result.warn)(*first, reason)
            self._copy_again(result, further_names)
            further_names = []
        refused: list[tuple[Place, bytes]] = []
        with nullcontext() if copy_fd < 0 else held_open(copy_fd):
            for index, (place, name) in enumerate(further_names):
                try:
                    if problem_met is not None:
                        raise problem_met
                    if self._link(rank, result, copy_fd, before, place, name):
                        linked.append((place, name))
                except Problem as problem:
                    if problem.operation == "link" and problem.errno in LINK_REFUSALS:
                        refused.append((place, name))
                        if problem.errno == errno.EMLINK:
                            refused += further_names[index + 1 :]
                            reason = _FULL_INODE
                            break
                    elif failed:
                        failed.append((place, name, problem.plain))
                    else:
                        alone = self._replace(item=self.item._replace(names=(first, (place, name))), more=True)
                        result.fail(place, name, problem, retry=alone)
                yield None
            if refused and reason:  # the names are linked to a second copy
                result.warn(*first, reason)
                self._copy_again(result, refused)
            elif refused:
                self._copy_refused(rank, result, copy_fd, refused)
        if failed:
            self._fail_together(rank, result, linked, failed)
            return
        if len(linked) > 1 or not self.more:
            names = tuple(dict.fromkeys((self.copied or first, *linked)))
            result.inode_copied(self.item._replace(names=names), self.copy)
        if rank.options.verify and self.copy.known.digest and len(linked) > self.more:
            self._verify(rank, result, tuple(linked[self.more :]))

    def _verify(self, rank: Rank, result: Result, names: tuple[tuple[Place, bytes], ...]) -> None:
        """Spawn the task that reads the copy back for all of these names."""
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
        """Open the first name as ``hold_copy`` does, or any name of the copy in a resumed job that keeps existing
        files.

        In such a job a name that an earlier run created would otherwise be taken for the user's. Raise ``Problem``.
        """
        for place, name in self.item.names if rank.keeps and rank.job.run > 1 and self.copy.made.mark else ():
            with suppress(Problem):
                return hold_copy(rank, place, name, self.copy.made)
        return hold_copy(rank, *self.item.names[0], self.copy.made)

    def _copy_again(self, result: Result, names: list[tuple[Place, bytes]]) -> None:
        """Copy the first of ``names``, and link the others to that copy."""
        result.copy(self.item._replace(names=tuple(names), failed=()))

    def _copy_refused(self, rank: Rank, result: Result, copy_fd: int, refused: list[tuple[Place, bytes]]) -> None:
        """Copy the names for which link(2) was refused, and warn.

        If further links to the copy can be created in its own directory, the refused names lie in another project,
        subvolume or mount; they are then linked to each other where that is possible. Otherwise each becomes a copy.

        Args:
            copy_fd: descriptor of the copy.
        """
        for place, name in refused:
            result.warn_once(place, name, NOT_LINKED)
        if _can_be_linked(rank, copy_fd, self.item.place):
            self._copy_again(result, refused)
        else:
            for each in refused:
                self._copy_again(result, [each])

    def _is_copied(self, place: Place, name: bytes) -> bool:
        """Return True if this name counts as the copy, not as a link."""
        return self.copied is not None and (place.directory, name) == (self.copied[0].directory, self.copied[1])

    def _fail_together(
        self, rank: Rank, result: Result, linked: list[tuple[Place, bytes]], failed: list[FailedName]
    ) -> None:
        """Report the names that failed together with the first one, whose inode lacks some metadata.

        A resumed job copies and links all names again, including those that count as created.
        """
        item = self.item
        names = (*linked, *((place, name) for place, name, _ in failed[1:]))
        again = item._replace(names=names, attempt=1, failed=())
        retry = anew(rank, again, self.copy.made) if rank.keeps else again
        result.fail_together(failed, item.size, retry, touched=True)
        for place, _ in linked[1:]:
            result.link_again(place)

    def _link(
        self, rank: Rank, result: Result, copy_fd: int, before: os.stat_result, place: Place, source_name: bytes
    ) -> bool:
        """Create and count one link to the copy, or count an existing item as skipped; return True if the link was
        created. Raise ``Problem``.

        Args:
            copy_fd: descriptor of the copy.
            before: status of the copy when the task began. In a resumed job an existing link belongs to the job only if
                the copy had been changed by then; creating a link changes its ctime.
        """
        target, name = rank.open_target(place), rank.new_name(place, source_name)
        present = look(target, name)
        if rank.keeps:
            if not self._link_unasked(rank, result, copy_fd, place, source_name, present):
                skipped(rank, result, place, source_name, self.copy.known)
                return False
        elif present is None:
            _make(copy_fd, target, name)
        else:
            like = status_of(copy_fd)
            linked = (present.st_dev, present.st_ino) == (like.st_dev, like.st_ino)
            existing = Existing(rank, place, target, name, present)
            existing.refuse_anothers()
            if not (linked and rank.job.run > 1 and rank.is_ours(place, before)):
                if linked or not may_relink(existing, like):
                    skipped(rank, result, place, source_name, self.copy.known)
                    return False
                if rank.options.sequential and not _can_be_linked(rank, copy_fd, place):
                    raise Problem("link", errno.EOPNOTSUPP)  # raised before the existing item is removed
                temporary = name_to_make(rank, target, name, present, like)
                _make(copy_fd, target, temporary)
                try:
                    existing.back_up(like)
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
        self, rank: Rank, result: Result, copy_fd: int, place: Place, source_name: bytes, present: os.stat_result | None
    ) -> bool:
        """Create a link without replacing any item that must be kept; return False if such an item exists or appears.
        Raise ``Problem``.
        """
        target, name = rank.open_target(place), rank.new_name(place, source_name)
        if present is None:
            try:
                _make(copy_fd, target, name)
                return True
            except Problem as problem:
                if problem.errno != errno.EEXIST:
                    raise
        item = Unnamed(rank.temporary_names.next(), self.copy.made.inode, self.copy.made.mark)
        _make(copy_fd, target, item.temporary)
        named = False
        try:
            named = Naming(rank, place).give(source_name, item, self.copy.known)
        finally:
            if not named:
                discard(rank, place, item, result)
        return named


def may_relink(existing: Existing, like: os.stat_result) -> bool:
    """Return True if an existing file, which is a separate copy and no hard link, may be replaced by a link.

    That is the case unless the options keep existing files.

    Args:
        existing: the existing file.
        like: status of the file to which the link would lead.
    """
    if existing.rank.options.existing == "changed" and not existing.place.fresh:
        return True
    return existing.may_replace(like)


def _make(copy_fd: int, target: int, name: bytes) -> None:
    """Link the open item ``copy_fd`` to ``name``; raise ``Problem``.

    The link is made through /proc/self/fd, because AT_EMPTY_PATH requires CAP_DAC_READ_SEARCH.
    """
    with failing("link"):
        patiently(lambda: os.link(handle_of(copy_fd), name, dst_dir_fd=target, follow_symlinks=True), INTERRUPTED)


def _can_be_linked(rank: Rank, copy_fd: int, place: Place) -> bool:
    """Return True if a link to the open item ``copy_fd`` can be created in the target directory of ``place``."""
    temporary = rank.temporary_names.next()
    try:
        target = rank.open_target(place)
        _make(copy_fd, target, temporary)
        remove(target, temporary)
    except Problem:
        return False
    return True


def copy_here(rank: Rank, made: Identity, known: Known) -> Copy:
    """Return the ``Copy`` of a file that this host has just written or found."""
    return Copy(made, known, 0, bytes((rank.hosts.here,)))


def representative_failed(rank: Rank, result: Result, item: Item, problem: Problem) -> None:
    """Report that the first name of ``item`` has failed; spawn the tasks for the next name, which takes its place."""
    failed = left_behind(rank, result, item, problem)
    if failed is not None:
        pass_on(result, item, failed)


def left_behind(rank: Rank, result: Result, item: Item, problem: Problem) -> tuple[FailedName, ...] | None:
    """Return the names that have failed if the next name is to take the place of the first one; None if it is not.

    An inode that changes while it is copied is tried again with all of its names: a name that was copied separately
    would not be a link.
    """
    # With ``rank.keeps`` a copy with incomplete metadata has not been named.
    made = problem.made if isinstance(problem, MetadataProblem) and not rank.keeps else None
    present = status_there(rank, *item.names[0]) if made is not None else None
    if made is not None and present is not None:  # the copy exists, without some of its metadata
        known = Known(kind_of(present), item.size, b"", Version(item.inode, item.size, 0, 0))  # without a digest
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
    """Have the next name of ``item`` copied. If there is none, report all names that have ``failed``."""
    if item.links:
        result.copy(item._replace(names=item.links, failed=failed))
    elif failed:
        touched = not all(result.is_untouched(place, Problem.from_plain(problem)) for place, _, problem in failed)
        all_failed(result, item, failed, touched=touched)


def all_failed(result: Result, item: Item, failed: tuple[FailedName, ...], *, touched: bool) -> None:
    """Report that all names have failed. A resumed job tries them together, so that they become links to each other."""
    names = tuple((place, name) for place, name, _ in failed)
    together = item._replace(names=names, attempt=max(1, item.attempt), failed=())
    retry = Tried.BY_NAME if len(names) == 1 else together
    result.fail_together(failed, item.size, retry, touched=touched)


def _still_named(rank: Rank, item: Item) -> bool:
    """Return True if the first name of ``item`` is still its inode in the source."""
    try:
        return rank.source_status(item.place, item.name).st_ino == item.inode
    except Problem:
        return False


def after_representative(
    rank: Rank, result: Result, item: Item, copy: Copy, *, shortcoming: Problem | None = None
) -> None:
    """Spawn the links for the other names after the first name was copied.

    Args:
        shortcoming: the problem with the metadata of the first name, if not all of it could be set.
    """
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
    """Return True if a resumed job may find further names of the inode in the source."""
    if not (rank.job.began and rank.options.preserve.links):
        return False
    try:
        return rank.source_status(item.place, item.name).st_nlink > 1
    except Problem:
        return False
