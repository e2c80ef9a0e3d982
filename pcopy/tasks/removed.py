"""What becomes of the tasks that remain of a job if directories have gone from its destination, or could not be read.

All that is to be done below such a directory becomes one ``ScanDir``, which makes it anew. What was counted below it is
taken back by its label (``pcopy.tasks.values.label_of``), so that everything counts once. Names of one inode that lie
elsewhere are gathered again together with those that will be found: they must become links of each other. If some of
them have been made, ``InodeCopied`` tells of them.

A directory that could not be read is read now, and it may hold such names, too: then all names that are not made yet
are gathered again. Of a large file of theirs that was being copied, the copy begins anew.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import count
from typing import Any, NamedTuple

from pcopy.engine.task import ANYBODY, Task
from pcopy.tasks import counts
from pcopy.tasks.codec import decode, encode
from pcopy.tasks.context import SCAN_COST
from pcopy.tasks.job import Root
from pcopy.tasks.phases import Phase
from pcopy.tasks.read_values import ReadOpened, SplitRead, VerifyLinks
from pcopy.tasks.sign_values import StoredEntries
from pcopy.tasks.values import (
    NOWHERE,
    ChunkDone,
    CopyAnew,
    CopyChunk,
    FileOpened,
    FinishFile,
    InodeCopied,
    Known,
    LinkGroup,
    LinkNote,
    MakeLinks,
    NameGroup,
    Place,
    ReportFailures,
    Retry,
    ScanDir,
    ScanNames,
    SplitFile,
    bucket_of,
    pack_names,
    pack_numbers,
)

NO_RANK = (1 << 32) - 1
"""Stands for the rank in the ids of tasks that a resume makes."""

Names = Sequence[tuple[Place, bytes]]


def places_in(value: Any) -> Iterator[Place]:
    """All that are named in a task, however deep. (Tasks in a ``Retry`` are packed.)"""
    if isinstance(value, Place):
        yield value
    elif isinstance(value, tuple):
        for part in value:
            yield from places_in(part)


class _Opened(NamedTuple):
    """Of a large file that is being copied: where its names are, and whether it was found by them, in LINK."""

    places: tuple[Place, ...] = ()
    in_link: bool = False


class Removed:
    """The directories that have gone: of each the root, the path, and the directory around it."""

    def __init__(self, roots: Sequence[Root], run: int, *, keeps: bool, links: bool) -> None:
        """``run`` is the one that has left the tasks. ``keeps``: nothing that exists is replaced unasked. ``links``:
        names of one inode become links of each other."""
        self._keeps = keeps
        self._links_kept = links
        self._finds = False
        self._roots = roots
        self._run = run
        self._numbers = count(1)
        self._gone: dict[tuple[int, bytes], Place] = {}
        self._entries: set[bytes] = set()
        self._files: dict[bytes, _Opened] = {}

    def add(self, path: bytes, parent: Place) -> None:
        """The directory ``path``, which was in ``parent``, has gone."""
        self._gone[parent.root, path] = parent
        alone = len(self._roots) == 1
        self._entries.add(b"/".join(part for part in (b"" if alone else self._roots[parent.root].name, path) if part))

    def __len__(self) -> int:
        return len(self._gone)

    @property
    def mends(self) -> bool:
        """Has anything to be done in another way than it was left?"""
        return bool(self._gone) or self._finds

    def saw(self, task: Task, value: Any) -> None:
        """Takes what a task tells of others; ``value`` is what is packed in it.

        Notes of a large file that is being copied don't tell where its names are. What is looked at again may be a
        name of any inode.
        """
        if isinstance(value, FileOpened | FinishFile):
            self._files[value.file.temporary] = _Opened(tuple(places_in(value)), task.phase == Phase.LINK)
        elif self._links_kept and not self._finds:
            if isinstance(value, ReportFailures):
                retried = (decode(retry.task) for retry in value.retries if retry.task and retry.phase < Phase.REPAIR)
                self._finds = any(isinstance(each, ScanDir | ScanNames) for each in retried)
            else:
                self._finds = task.phase == Phase.COPY and isinstance(value, ScanDir | ScanNames)

    def is_gone(self, root: int, path: bytes) -> bool:
        """Does a directory lie in one that has gone, or is it one?"""
        return any((root, above) in self._gone for above in _upwards(path))

    def takes_back(self, label: bytes) -> bool:
        """Does what was counted under this label count no more?"""
        root, _, path = label.partition(b"/")
        return self.is_gone(int(root), path)

    def scans(self) -> Iterator[Task]:
        """What makes the directories anew."""
        for (root, path), parent in self._gone.items():
            yield self.new(ScanDir(root, path, NOWHERE, parent), SCAN_COST, expands=True)

    def mended(self, task: Task) -> Iterator[Task]:
        """What is to be done in the place of a task."""
        value = decode(task.payload)
        if isinstance(value, StoredEntries):
            if not any(above in self._entries for above in _upwards(value.entries.path)):
                yield task
        elif isinstance(value, ChunkDone | CopyChunk):
            temporary = value.temporary if isinstance(value, ChunkDone) else value.file.temporary
            opened = self._files.get(temporary, _Opened())
            begins_anew = self._finds and opened.in_link
            if not (begins_anew or any(map(self._has_lost, (*opened.places, *places_in(value))))):
                yield task
        elif isinstance(value, ReportFailures):
            yield from self._failures(task, value)
        elif isinstance(value, ScanDir):
            if not self.is_gone(value.root, value.path):
                yield task
        elif any(map(self._has_lost, places_in(value))):
            yield from self._links(task, value)
        elif isinstance(value, MakeLinks):
            yield from self._told(task, value)
        elif self._finds:
            yield from self._gathered(task, value)
        else:
            yield task

    def _gathered(self, task: Task, value: Any) -> Iterator[Task]:
        """More names of any inode may be found: those that are not made meet with them."""
        if isinstance(value, NameGroup):  # it is copied already
            yield task._replace(phase=int(Phase.COPY), owner=bucket_of(value.split.inode))
        elif isinstance(value, ScanNames):
            yield task._replace(phase=int(Phase.COPY)) if task.phase == Phase.LINK else task
        elif isinstance(value, LinkGroup | SplitFile | FileOpened | FinishFile) and task.phase == Phase.LINK:
            yield from self._links(task, value)
        else:
            yield task

    def _has_lost(self, place: Place) -> bool:
        return self.is_gone(place.root, place.path)

    def _failures(self, task: Task, value: ReportFailures) -> Iterator[Task]:
        """What is tried instead is told by the same note: so the directories that it goes to are finished once more.

        What did not verify is copied anew, in REPAIR: no name may become a link to the copy that is there.
        """
        retries: list[Retry] = []
        for retry in value.retries:
            is_lost = retry.place is not None and self._has_lost(retry.place)
            kept = retry._replace(counted=()) if is_lost else retry
            again = decode(retry.task) if retry.task else None
            lies_in = [again] if isinstance(again, ScanDir) else list(places_in(again))
            gathers = self._finds and retry.phase < Phase.REPAIR and isinstance(again, LinkGroup)
            if gathers or any(self.is_gone(each.root, each.path) for each in lies_in):
                kept = kept._replace(task=b"")
                instead = self._links(task._replace(payload=retry.task, phase=retry.phase), again)
                retries += (Retry(one.payload, one.phase) for one in instead)
            if kept.task or kept.counted:
                retries.append(kept)
        yield task._replace(payload=encode(value._replace(retries=tuple(retries))))

    def _links(self, task: Task, value: Any) -> Iterator[Task]:
        """What remains of a task with directories of which some have gone: only names of one inode lie in several."""
        if isinstance(value, InodeCopied):
            yield from self._noted(task, value)
        elif isinstance(value, LinkGroup):
            yield from self._released(value, value.names)
        elif isinstance(value, MakeLinks):
            yield from self._made(task, value)
        elif isinstance(value, SplitFile):
            yield from self._split(value)
        elif isinstance(value, NameGroup):
            yield from self._named(value)
        elif isinstance(value, CopyAnew):
            if kept := self._kept(value.group.names):
                group = value.group._replace(names=kept, attempt=self._attempt(value.group, value.group.names))
                yield task._replace(payload=encode(value._replace(group=group)))
        elif isinstance(value, FileOpened | FinishFile):
            yield from self._split(value.file.split)
        elif isinstance(value, VerifyLinks):
            yield from self._verified(task, value)
        elif isinstance(value, SplitRead | ReadOpened) and value.contents.group is not None:
            yield from self._read(task, value)

    def _noted(self, task: Task, value: InodeCopied) -> Iterator[Task]:
        """The first name counts as the copy even if it has gone. What takes its directory's place is another one."""
        group = value.links.group
        if self._kept(group.names):
            names = tuple((self._as_lost(place), name) for place, name in group.names)
            links = value.links._replace(group=group._replace(names=names))
            yield task._replace(payload=encode(value._replace(links=links)))

    def _as_lost(self, place: Place) -> Place:
        return place._replace(target_id=NOWHERE) if self._has_lost(place) else place

    def _kept(self, names: Names) -> tuple[tuple[Place, bytes], ...]:
        return tuple((place, name) for place, name in names if not self._has_lost(place))

    def _split(self, value: SplitFile) -> Iterator[Task]:
        names = ((value.place, value.name), *value.links)
        yield from self._released(
            LinkGroup(value.mount, value.inode, value.size, names, value.attempt, value.failed), names
        )

    def _released(self, group: LinkGroup, names: Names) -> Iterator[Task]:
        """Names that are not made yet, and those that could not be, are noted as when they were found."""
        failed = tuple((place, name) for place, name, _ in group.failed)
        attempt = self._attempt(group, (*failed, *group.names))
        found: dict[Place, list[bytes]] = {}
        for place, name in dict.fromkeys((*self._kept(failed), *self._kept(names))):
            found.setdefault(place, []).append(name)
        for place, each in found.items():
            mounts, inodes, sizes = (pack_numbers([one] * len(each)) for one in group[:3])
            bucket = bucket_of(group.inode)
            yield self.new(LinkNote(place, pack_names(each), mounts, inodes, sizes, attempt, bucket), owner=0)

    def _attempt(self, group: LinkGroup, names: Names) -> int:
        """0 if their inode's size counts no more: it was counted with the first of the names."""
        return 0 if self._has_lost(names[0][0]) else max(1, group.attempt)

    def _made(self, task: Task, value: MakeLinks) -> Iterator[Task]:
        group = value.group
        first, *others = group.names
        is_counted = not group.failed and not self._has_lost(first[0])  # then the copy stays as it is
        if self._keeps and not is_counted:  # what has been linked, and is not on record, would be taken for the user's
            yield from self._looked_at(group, group.names, value.made.inode, value.made.mark, value.known)
            return
        if self._has_lost(first[0]):  # the copy; another name of it, if there is one, is known by a note
            yield from self._released(group, others)
            return
        failed = tuple(each for each in group.failed if not self._has_lost(each[0]))
        group = group._replace(names=(first, *self._kept(others)), failed=failed)
        if len(group.names) > 1 or failed or not value.more:
            yield from self._told(task, value._replace(group=group))

    def _told(self, task: Task, value: MakeLinks) -> Iterator[Task]:
        """The links are made; names of the inode that will be found become links of its copy, too."""
        yield task._replace(payload=encode(value))
        if not (value.more or value.group.failed):
            alone = value._replace(group=value.group._replace(names=value.group.names[:1]), more=True)
            yield self.new(InodeCopied(alone, bucket_of(alone.group.inode)), owner=0)

    def _named(self, value: NameGroup) -> Iterator[Task]:
        split, item = value.split, value.unnamed
        group = LinkGroup(split.mount, split.inode, split.size, (), split.attempt, split.failed)
        names = ((split.place, split.name), *split.links)
        yield from self._looked_at(group, names, item.inode, item.mark, value.known)

    def _looked_at(self, group: LinkGroup, names: Names, inode: int, mark: bytes, known: Known) -> Iterator[Task]:
        """Names of which some are an item that the job has made go, and are gathered with those that will be found."""
        failed = tuple((place, name) for place, name, _ in group.failed)
        all_names = (*failed, *names)
        if kept := tuple(dict.fromkeys(self._kept(all_names))):
            again = group._replace(names=kept, failed=(), attempt=self._attempt(group, all_names))
            yield self.new(CopyAnew(again, inode, mark, (known.size, known.version.mtime), is_whole=True))

    def _verified(self, task: Task, value: VerifyLinks) -> Iterator[Task]:
        group = value.group
        if kept := self._kept(group.names):
            counter = value.counter if kept[0] == group.names[0] else counts.HARDLINKS
            value = value._replace(group=group._replace(names=kept), counter=counter)
            yield task._replace(payload=encode(value))

    def _read(self, task: Task, value: SplitRead | ReadOpened) -> Iterator[Task]:
        """Which names are one inode was looked at before; its contents can be read by any of them."""
        contents = value.contents
        assert contents.group is not None
        kept = self._kept(contents.group.names)
        if not kept:
            return
        group = contents.group._replace(names=kept)
        if kept[0] == contents.group.names[0]:
            yield task._replace(payload=encode(value._replace(contents=contents._replace(group=group))))
            return
        place, name = kept[0]
        again = SplitRead(contents._replace(place=place, name=name, counter=counts.HARDLINKS, group=group))
        yield self.new(again, task.cost, phase=task.phase)

    def new(
        self,
        value: tuple[Any, ...],
        cost: int = 0,
        *,
        phase: int = Phase.COPY,
        expands: bool = False,
        owner: int = ANYBODY,
    ) -> Task:
        """A task of the resume's own."""
        return Task((self._run, NO_RANK, next(self._numbers)), int(phase), encode(value), cost, expands, owner)


def _upwards(path: bytes) -> Iterator[bytes]:
    """A path and those of all directories above it; the root's is empty."""
    while path:
        yield path
        path = path.rpartition(b"/")[0]
    yield path
