"""Directories that have gone from the destination while a job was stopped: they are made anew when it goes on.

Before the remaining tasks are dealt out, each directory that they name is looked up once, in the order of the tree. So
each is opened from the directory around it, and below one that has gone nothing is looked up. A directory is made anew
only if the directory around it is still the same, on the same file system. Else a mount may be missing, and the tasks
there fail. If there are none, and only a note on an inode names the directory, the directory itself fails.

All that is to be done below a directory that has gone becomes one ``ScanDir``, and what was counted below it is taken
back by its label (``values.label_of``). Names of one inode that lie elsewhere are gathered again with those that will
be found: they must become links of each other. What becomes of a task of each kind, the kind says (``Kind.mended``).
"""

from __future__ import annotations

import errno
import os
import struct
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from itertools import count, groupby
from operator import itemgetter

import pcopy.tasks.runner  # noqa: F401 (makes all kinds known)
from pcopy.engine.backlog import SpoolBacklog, SpoolFactory
from pcopy.engine.task import ANYBODY, Task
from pcopy.errors import Refused
from pcopy.fsio.close import held_open
from pcopy.fsio.directories import Directories, OpenDirectories, affordable
from pcopy.fsio.kernel.columns import pack_names
from pcopy.fsio.patience import open_patiently
from pcopy.fsio.problem import Problem
from pcopy.signature.sorting import ExternalSorter
from pcopy.tasks.base.both_sides import mounted_below
from pcopy.tasks.base.codec import decode, encode
from pcopy.tasks.base.job import Mount, Options, Root, mount_codes
from pcopy.tasks.base.kind import Kind, places_in
from pcopy.tasks.base.phases import Phase
from pcopy.tasks.base.rank import SCAN_COST
from pcopy.tasks.base.values import NOWHERE, Copy, Item, Place, bucket_of, pack_numbers
from pcopy.tasks.directories.finish_dir import FinishDir
from pcopy.tasks.directories.scan_dir import ScanDir
from pcopy.tasks.directories.sync_files import SyncFiles
from pcopy.tasks.links.group_links import InodeCopied, LinkNote
from pcopy.text import counted, shown

REMEMBERED = 1 << 14
"""Directories that are not sorted again when another task names them."""

NO_RANK = (1 << 32) - 1
"""Stands for the rank in the ids of tasks that a resume makes."""

Names = Sequence[tuple[Place, bytes]]

_ANOTHER = (errno.ESTALE, errno.ENOTDIR, errno.ELOOP)
_ROOT = struct.Struct(">I")


class Gone:
    """The directories that have gone: of each the root, the path, and the directory around it."""

    def __init__(self, roots: Sequence[Root], *, keeps: bool, links: bool) -> None:
        """``keeps``: nothing that exists is replaced unasked. ``links``: names of one inode become links of each
        other."""
        self.run = 0
        """The one that has left the tasks."""
        self.keeps = keeps
        self.finds = False
        """May more names of any inode be found?"""
        self.around: dict[tuple[int, bytes], Place] = {}
        self._links = links
        self._roots = roots
        self._numbers = count(1)
        self._entries: set[bytes] = set()
        self._files: dict[bytes, tuple[tuple[Place, ...], bool]] = {}

    def add(self, path: bytes, parent: Place) -> None:
        self.around[parent.root, path] = parent
        alone = len(self._roots) == 1
        self._entries.add(b"/".join(part for part in (b"" if alone else self._roots[parent.root].name, path) if part))

    def scans(self) -> None:
        """A directory, or names of any inode, will be looked at."""
        self.finds = self._links

    def copies(self, temporary: bytes, places: Iterator[Place], phase: int) -> None:
        """A large file with names in ``places`` is being copied; its chunks don't tell where those are."""
        self._files[temporary] = tuple(places), phase == Phase.LINK

    def is_below(self, root: int, path: bytes) -> bool:
        """Does a directory lie in one that has gone, or is it one?"""
        return any((root, above) in self.around for above in _upwards(path))

    def has(self, place: Place) -> bool:
        return self.is_below(place.root, place.path)

    def has_entries(self, path: bytes) -> bool:
        """As ``is_below``, by the path of a directory in the dataset."""
        return any(above in self._entries for above in _upwards(path))

    def has_chunk(self, temporary: bytes) -> bool:
        """Is a large file, of which this is a chunk, lost, or copied anew?"""
        places, in_link = self._files.get(temporary, ((), False))
        return (self.finds and in_link) or any(map(self.has, places))

    def takes_back(self, label: bytes) -> bool:
        """Does what was counted under this label count no more?"""
        root, _, path = label.partition(b"/")
        return self.is_below(int(root), path)

    def kept(self, names: Names) -> tuple[tuple[Place, bytes], ...]:
        """Those that lie elsewhere."""
        return tuple((place, name) for place, name in names if not self.has(place))

    def attempt(self, item: Item, names: Names) -> int:
        """0 if their inode's size counts no more: it was counted with the first of the names."""
        return 0 if self.has(names[0][0]) else max(1, item.attempt)

    def released(self, item: Item, names: Names) -> Iterator[Task]:
        """Names that are not made yet, and those that could not be, are noted as when they were found."""
        failed = tuple((place, name) for place, name, _ in item.failed)
        attempt = self.attempt(item, (*failed, *item.names))
        found: dict[Place, list[bytes]] = {}
        for place, name in dict.fromkeys((*self.kept(failed), *self.kept(names))):
            found.setdefault(place, []).append(name)
        for place, each in found.items():
            mounts, inodes, sizes = (pack_numbers([one] * len(each)) for one in (item.mount, item.inode, item.size))
            note = LinkNote(place, pack_names(each), mounts, inodes, sizes, attempt, bucket_of(item.inode))
            yield self.new(note, owner=0)

    def copied(self, item: Item, made: Copy) -> Iterator[Task]:
        """Names of an inode are there; more may be found."""
        yield self.new(InodeCopied(item, made), owner=0)

    def new(
        self, value: Kind, cost: int = 0, *, phase: int = Phase.COPY, expands: bool = False, owner: int = ANYBODY
    ) -> Task:
        return Task((self.run, NO_RANK, next(self._numbers)), int(phase), encode(value), cost, expands, owner)


def _upwards(path: bytes) -> Iterator[bytes]:
    """A path and those of all directories above it; the root's is empty."""
    while path:
        yield path
        path = path.rpartition(b"/")[0]
    yield path


class Missing:
    """Fills ``pcopy.checkpoint.resume.Mending``. ``notices`` tell what was found."""

    def __init__(
        self, roots: Sequence[Root], mounts: Sequence[Mount], open_spool: SpoolFactory, options: Options
    ) -> None:
        """``mounts`` as in ``Job``."""
        self._roots = roots
        self._mounts = mounts
        self._open_spool = open_spool
        self._tasks = SpoolBacklog(open_spool)
        self._lost = Gone(roots, keeps=options.keeps, links=options.preserve.links)
        self._is_listed = bool(options.files_from)
        self._first: dict[str, bytes] = {}
        self._others = 0
        self._idle: list[Place] = []

    def look(self, run: int, tasks: Iterable[Task]) -> None:
        """Raises ``OSError`` from spools, and ``Refused`` for a destination that cannot be opened."""
        self._lost.run = run
        places = ExternalSorter(self._open_spool)
        known: set[tuple[int, bytes, bool]] = set()
        for task in tasks:
            self._tasks.append(task)
            value = decode(task.payload)
            value.tell(task, self._lost)
            is_idle = value.waits_for_others
            for place in _places(value):
                named = (place.root, place.path, is_idle)
                if place.target_id != NOWHERE and named not in known:
                    if len(known) >= REMEMBERED:
                        known.clear()
                    known.add(named)
                    key = _ROOT.pack(place.root) + place.path.replace(b"/", b"\0")
                    places.add(key, bytes((is_idle,)) + encode(SyncFiles(place)))
        target = self._roots[0].target  # of all roots
        with closing(places), closing(OpenDirectories(affordable())) as kept:
            try:
                base = open_patiently(target, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
            except OSError as error:
                raise Refused(f"{shown(target)}: cannot be opened: {error.strerror}") from None
            with held_open(base):
                mounted, codes = mounted_below(target, self._mounts), mount_codes(self._roots)
                for number, of_root in groupby(_sorted(places), key=lambda found: found[0].root):
                    code = codes[number][1]
                    below = Directories(base, code, on_source=False, kept=kept, number=number, mounted=mounted)
                    self._look_below(below, of_root)
        if self._is_listed and self._lost.around:
            what = "gone from the destination since the job was interrupted, and with --files-from it is not made anew"
            raise Refused(f"{shown(self._first['gone'])}: {what}: discard the job, and begin again")

    def _look_below(self, targets: Directories, places: Iterable[tuple[Place, bool]]) -> None:
        """Takes the places of one root, each before those below it; is nothing to be done there?"""
        around: list[Place] = []  # of the next one, as far as they are named and the same
        passed: bytes | None = None
        for place, is_idle in places:
            if passed is not None and _lies_in(place.path, passed):
                continue
            while around and not _lies_in(place.path, around[-1].path):
                around.pop()
            try:
                targets.open(self._roots[place.root].below_target(place.path), place.target_id)
            except Problem as problem:
                passed = place.path
                if problem.errno == errno.ENOENT:
                    passed = self._gone(targets, place, around)
                elif problem.errno in _ANOTHER:
                    self._other(place)
                    if is_idle:
                        self._idle.append(place)
            else:
                around.append(place)
                passed = None

    def _gone(self, targets: Directories, place: Place, around: Sequence[Place]) -> bytes:
        """Returns the uppermost directory that has gone."""
        path = place.path
        while path:
            above = path.rpartition(b"/")[0]
            try:
                if around and around[-1].path == above:
                    parent = around[-1]
                else:
                    identity = targets.identity(self._roots[place.root].below_target(above), made=False)
                    parent = Place(place.root, above, NOWHERE, identity, False, False)
            except Problem as problem:
                if problem.errno != errno.ENOENT:
                    break
                path = above
            else:
                if parent.target_id.mount == place.target_id.mount:
                    self._first.setdefault("gone", self._shown(place.root, path))
                    self._lost.add(path, parent)
                else:  # it was on another file system
                    self._other(place)
                return path
        return place.path  # what it is copied to has gone as a whole, or can't be entered: that is told elsewhere

    def _other(self, place: Place) -> None:
        self._first.setdefault("other", self._shown(place.root, place.path))
        self._others += 1

    def _shown(self, root: int, path: bytes) -> bytes:
        return os.path.join(self._roots[root].target, self._roots[root].below_target(path))

    def takes_back(self, label: bytes) -> bool:
        return self._lost.takes_back(label)

    def tasks(self) -> Iterator[Task]:
        """What is to be done; may be asked for once."""
        gone = self._lost
        for (root, path), parent in gone.around.items():
            yield gone.new(ScanDir(root, path, NOWHERE, parent), SCAN_COST, expands=True)
        for place in self._idle:
            yield gone.new(FinishDir(place, None, False, -1, again=True), phase=Phase.FINISH)
        for task in self._tasks.drained():
            if gone.around or gone.finds:
                yield from decode(task.payload).mended(task, gone)
            else:
                yield task

    @property
    def notices(self) -> list[str]:
        gone = "gone from the destination since the job was interrupted: all that was in it is copied again"
        other = (
            "not what the job has copied to: what is left to do there will fail; mount what was there, or move this "
            "away, and resume the job again"
        )
        found = (("gone", len(self._lost.around), gone), ("other", self._others, other))
        return [f"{shown(self._first[kind])}{_and_more(count - 1)} {what}" for kind, count, what in found if count]


def _and_more(number: int) -> str:
    return f" and {counted(number, 'other directory', 'other directories')} are" if number else " is"


def _lies_in(path: bytes, directory: bytes) -> bool:
    return not directory or path == directory or path.startswith(directory + b"/")


def _sorted(places: ExternalSorter) -> Iterator[tuple[Place, bool]]:
    """Each place once, and whether only notes name it."""
    for _, equal in groupby(places.sorted(), key=itemgetter(0)):
        packed = min(value for _, value in equal)
        yield decode(packed[1:]).place, bool(packed[0])


def _places(value: Kind) -> Iterator[Place]:
    yield from places_in(value)
    for held in value.held():
        yield from _places(held)
