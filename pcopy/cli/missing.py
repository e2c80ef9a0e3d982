"""Directories that have gone from the destination while a job was stopped: they are made anew when it goes on.

Before the tasks that remain are dealt out, each directory that they name is looked up once, in the order of the tree:
so each is opened from the one around it, and below one that has gone nothing is looked up. It is made anew only if the
directory around it is the one that it was in, on the same file system: else a mount may be missing, and what is to be
done there fails. So does the directory itself if nothing is to be done there, and only a note on an inode names it.
"""

from __future__ import annotations

import errno
import os
import struct
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from operator import itemgetter
from typing import Any

from pcopy.checkpoint.join import drained
from pcopy.engine.backlog import Backlog, SpoolFactory
from pcopy.engine.task import Task
from pcopy.fsio.directories import Directories, OpenDirectories, affordable
from pcopy.fsio.problem import Problem
from pcopy.signature.sorting import ExternalSorter
from pcopy.tasks.both_sides import mounted_below
from pcopy.tasks.codec import decode, encode
from pcopy.tasks.job import Mount, Root, mount_codes
from pcopy.tasks.phases import Phase
from pcopy.tasks.removed import Removed, places_in
from pcopy.tasks.values import NOWHERE, FinishDir, InodeCopied, Place, ReportFailures, SyncFiles
from pcopy.text import counted, shown

REMEMBERED = 1 << 14
"""Directories that are not sorted again when another task names them."""

_ANOTHER = (errno.ESTALE, errno.ENOTDIR, errno.ELOOP)
_ROOT = struct.Struct(">I")


class Missing:
    """Fills ``pcopy.checkpoint.resume.Mending``. ``notices`` tell what was found."""

    def __init__(
        self, roots: Sequence[Root], mounts: Sequence[Mount], open_spool: SpoolFactory, *, keeps: bool, links: bool
    ) -> None:
        """``mounts`` as in ``Job``; the rest as ``pcopy.tasks.removed.Removed``."""
        self._roots = roots
        self._mounts = mounts
        self._keeps = keeps
        self._links = links
        self._open_spool = open_spool
        self._tasks = Backlog(open_spool)
        self._removed = Removed(roots, 0, keeps=keeps, links=links)
        self._first: dict[str, bytes] = {}
        self._others = 0
        self._idle: list[Place] = []

    def look(self, run: int, tasks: Iterable[Task]) -> None:
        """Raises ``OSError`` from spools."""
        self._removed = Removed(self._roots, run, keeps=self._keeps, links=self._links)
        places = ExternalSorter(self._open_spool)
        known: set[tuple[int, bytes, bool]] = set()
        for task in tasks:
            self._tasks.append(task)
            value = decode(task.payload)
            self._removed.saw(task, value)
            is_idle = isinstance(value, InodeCopied)
            for place in _places(value):
                if place.target_id != NOWHERE and (*place[:2], is_idle) not in known:
                    if len(known) >= REMEMBERED:
                        known.clear()
                    known.add((*place[:2], is_idle))
                    key = _ROOT.pack(place.root) + place.path.replace(b"/", b"\0")
                    places.add(key, bytes((is_idle,)) + encode(SyncFiles(place)))
        opened: dict[bytes, int] = {}
        kept = OpenDirectories(affordable())
        try:
            targets = self._open_targets(opened, kept)
            for number, of_root in groupby(_sorted(places), key=lambda found: found[0].root):
                self._look_below(targets[number], of_root)
        finally:
            places.close()
            kept.close()
            for base in opened.values():
                os.close(base)

    def _open_targets(self, opened: dict[bytes, int], kept: OpenDirectories) -> list[Directories]:
        targets = []
        for number, (root, (_, code)) in enumerate(zip(self._roots, mount_codes(self._roots), strict=True)):
            if root.target not in opened:
                opened[root.target] = os.open(root.target, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
            mounted = mounted_below(root.target, self._mounts)
            base = opened[root.target]
            targets.append(Directories(base, code, on_source=False, kept=kept, number=number, mounted=mounted))
        return targets

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
                targets.open(self._below_target(place.root, place.path), place.target_id)
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
                parent = _parent(targets, place.root, above, self._below_target(place.root, above), around)
            except Problem as problem:
                if problem.errno != errno.ENOENT:
                    break
                path = above
            else:
                if parent.target_id[0] == place.target_id[0]:
                    self._first.setdefault("gone", self._shown(place.root, path))
                    self._removed.add(path, parent)
                else:  # it was on another file system
                    self._other(place)
                return path
        return place.path  # what it is copied to has gone as a whole, or can't be entered: that is told elsewhere

    def _other(self, place: Place) -> None:
        self._first.setdefault("other", self._shown(place.root, place.path))
        self._others += 1

    def _below_target(self, root: int, path: bytes) -> bytes:
        name = b"" if self._roots[root].item else self._roots[root].name
        return b"/".join(part for part in (name, path) if part)

    def _shown(self, root: int, path: bytes) -> bytes:
        return os.path.join(self._roots[root].target, self._below_target(root, path))

    def takes_back(self, label: bytes) -> bool:
        """Did this count below a directory that has gone?"""
        return bool(self._removed) and self._removed.takes_back(label)

    def tasks(self) -> Iterator[Task]:
        """What is to be done; may be asked for once."""
        yield from self._removed.scans()
        for place in self._idle:
            yield self._removed.new(FinishDir(place, None, False, -1, again=True), phase=Phase.FINISH)
        for task in drained(self._tasks):
            if self._removed.mends:
                yield from self._removed.mended(task)
            else:
                yield task

    @property
    def notices(self) -> list[str]:
        """What the user has to know."""
        told = []
        if self._removed:
            more, verb = _and_more(len(self._removed) - 1)
            told.append(
                f"{shown(self._first['gone'])}{more} {verb} gone from the destination since the job was interrupted: "
                "all that was in it is copied again"
            )
        if self._others:
            more, verb = _and_more(self._others - 1)
            told.append(
                f"{shown(self._first['other'])}{more} {verb} not what the job has copied to: what is left to do there "
                "will fail; mount what was there, or move this away, and resume the job again"
            )
        return told


def _and_more(number: int) -> tuple[str, str]:
    return (f" and {counted(number, 'other directory', 'other directories')}", "are") if number else ("", "is")


def _parent(targets: Directories, root: int, path: bytes, below: bytes, around: Sequence[Place]) -> Place:
    """The target directory ``path`` as the place of what is made in it; raises ``Problem``."""
    if around and around[-1].path == path:
        return around[-1]
    return Place(root, path, NOWHERE, targets.identity(below, made=False), False, False)


def _lies_in(path: bytes, directory: bytes) -> bool:
    return not directory or path == directory or path.startswith(directory + b"/")


def _sorted(places: ExternalSorter) -> Iterator[tuple[Place, bool]]:
    """Each place once, and whether only notes name it."""
    for _, equal in groupby(places.sorted(), key=itemgetter(0)):
        packed = min(value for _, value in equal)
        yield decode(packed[1:]).place, bool(packed[0])


def _places(value: Any) -> Iterator[Place]:
    yield from places_in(value)
    if isinstance(value, ReportFailures):
        for retry in value.retries:
            yield from _places(decode(retry.task)) if retry.task else ()
