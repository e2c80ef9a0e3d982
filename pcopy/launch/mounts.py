"""The mounts below the roots of a job: all hosts tell theirs at the start, and they are stored with the job.

Rule: if hosts or runs of a job see different mounts, it is refused. A host that lacks a mount would copy the directory
that the mount hides, or write into it, and nothing would fail. So one rank of each *place* (see ``pcopy.launch.hosts``)
tells its mounts, each of these is entered in every place, since automounts and the file systems of a server below
another one are mounted only then, and what is found there is compared. A file system that is mounted when it is entered
may also come in a later run; other mounts may not.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from typing import Any

from pcopy.errors import Refused
from pcopy.fsio.close import let_go
from pcopy.fsio.directories import Directories, OpenDirectories, affordable
from pcopy.fsio.mounted import LEFT_OUT, MountRoot, PlainRoot, is_of_one_machine, mount_points, root_of
from pcopy.fsio.patience import open_patiently
from pcopy.fsio.problem import Problem
from pcopy.jobs.job_file import JobFile
from pcopy.launch.group import Group, Hello
from pcopy.named import NamedTuple
from pcopy.tasks.base.both_sides import RootDescriptors
from pcopy.tasks.base.job import DeviceInode, Job, Mount, Options, Root
from pcopy.text import shown


def open_roots(job: Job, *, compare_devices: bool = True) -> list[RootDescriptors]:
    """Opens every root's two directories; raises ``Refused`` if one is not what it was when it was resolved.

    Device numbers are compared only where they were read on this host.
    """
    opened: dict[tuple[bytes, bool], tuple[int, os.stat_result]] = {}

    def open_once(path: bytes, identity: DeviceInode, on_source: bool) -> int:
        if (path, on_source) not in opened:
            descriptor = _open_directory(path, on_source)
            opened[path, on_source] = descriptor, os.fstat(descriptor)
        descriptor, status = opened[path, on_source]
        if status.st_ino != identity[1] or (compare_devices and status.st_dev != identity[0]):
            raise Refused(f"{shown(path)}: is not the same directory on {os.uname().nodename}")
        return descriptor

    return [
        RootDescriptors(open_once(root.source, root.source_id, True), open_once(root.target, root.target_id, False))
        for root in job.roots
    ]


def _open_directory(path: bytes, on_source: bool) -> int:
    """Without a trace on its access time if that is allowed; for searching only if reading is not."""
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
    for extra in (os.O_NOATIME, 0, os.O_PATH) if on_source else (0, os.O_PATH):
        try:
            return open_patiently(path, flags | extra)
        except PermissionError as error:
            refusal = error
        except OSError as error:
            raise Refused(f"{shown(path)}: cannot be opened: {error.strerror}") from None
    raise Refused(f"{shown(path)}: cannot be opened: {refusal.strerror}")


class Tree(NamedTuple):
    """One side of a root: its directory as the job calls it, open, and the name in it that is meant (empty: all)."""

    called: bytes
    descriptor: int
    part: bytes
    on_source: bool


class Answer(NamedTuple):
    """What one place says of a path: why it can't be entered; or whether something is mounted just there, what is
    there, on which st_dev, and whether such a file system belongs to one machine."""

    trouble: str
    mounted: bool = False
    root: PlainRoot = LEFT_OUT[:]
    device: int = 0
    is_own: bool = False

    def __str__(self) -> str:
        if self.trouble:
            return f"it cannot be entered ({self.trouble})"
        root = MountRoot(*self.root)
        return str(root) if self.mounted else f"nothing is mounted ({root})"


class Mounts:
    """The mounts that this process sees below the sources of a job, and below its ``targets`` if it may write there."""

    def __init__(self, job: Job, roots: Sequence[RootDescriptors], *, targets: bool) -> None:
        trees = {}
        for root, opened in zip(job.roots, roots, strict=True):
            trees[root.source, root.item, True] = Tree(root.source, opened.source, root.item, True)
            if targets:
                trees[root.target, root.name, False] = Tree(root.target, opened.target, root.name, False)
        self._trees = list(trees.values())
        self._one_file_system = job.options.one_file_system
        """Of other file systems in a source no more is asked than that they are there."""
        self._kept = OpenDirectories(affordable())  # all are closed before the job needs descriptors
        sides = {(tree.descriptor, tree.on_source): None for tree in self._trees}
        self._directories = {
            side: Directories(side[0], 0, on_source=side[1], kept=self._kept, number=number)
            for number, side in enumerate(sides)
        }
        self._numbers: dict[bytes, int] = {}
        """By the tree's path as the job calls it: the first of this path."""
        for number, tree in enumerate(self._trees):
            self._numbers.setdefault(os.path.join(tree.called, tree.part).rstrip(b"/"), number)
        self._real: dict[bytes, list[Tree]] = {}
        """By the tree's real path; read at the first use."""

    def points(self) -> dict[bytes, bool]:
        """The paths at which something is mounted, as the job calls them: is that automatic? Raises ``OSError``."""
        trees, found = self._by_real_path(), dict[bytes, bool]()
        for point in mount_points():
            for top in _upwards(point.path):
                for tree in trees.get(top, ()):
                    below = (tree.part + point.path[len(top) :]).lstrip(b"/")
                    if below:  # and not where the directory itself is mounted
                        path = os.path.join(tree.called, below)
                        found[path] = found.get(path, False) or point.automatic
        return found

    def _by_real_path(self) -> dict[bytes, list[Tree]]:
        if not self._real:
            tops = {tree.descriptor: b"" for tree in self._trees}
            for descriptor in tops:
                tops[descriptor] = os.readlink(b"/proc/self/fd/%d" % descriptor).rstrip(b"/")
            for tree in self._trees:
                top = os.path.join(tops[tree.descriptor] + b"/", tree.part).rstrip(b"/")
                self._real.setdefault(top, []).append(tree)
        return self._real

    def enter(self, paths: Iterable[bytes]) -> dict[bytes, Answer]:
        """What is at each of ``paths``; nothing of what is below one that is left out."""
        answers: dict[bytes, Answer] = {}
        left_out: list[bytes] = []
        points: dict[bytes, bool] = {}
        with suppress(OSError):
            points = self.points()
        for path in sorted(paths):
            if any(_is_in(path, above) for above in left_out):
                continue
            tree, directories, below = self._tree_of(path)
            try:
                answer = _answer(directories, below, path in points)
                if self._one_file_system and tree.on_source:
                    around = os.fstat(directories.open(below.rpartition(b"/")[0]))
                    if answer.device != around.st_dev:
                        answer = Answer("", answer.mounted)
                        left_out.append(path)
            except OSError as error:
                answer = Answer(error.strerror or str(error))
            answers[path] = answer
        return answers

    def tops(self) -> dict[bytes, Answer]:
        """What the source directories themselves are; their paths end with a slash, as no mount's does."""
        tops = {os.path.join(tree.called, b""): tree.descriptor for tree in self._trees if tree.on_source}
        return {path: _top(descriptor) for path, descriptor in tops.items()}

    def open_target(self, path: bytes) -> int:
        """A descriptor of a directory in a target, which stays ours; raises ``Problem``."""
        _, directories, below = self._tree_of(path)
        return directories.open(below)

    def is_target(self, path: bytes) -> bool:
        return not self._tree_of(path)[0].on_source

    def _tree_of(self, path: bytes) -> tuple[Tree, Directories, bytes]:
        numbers = [self._numbers[top] for top in _upwards(path) if top in self._numbers]
        if not numbers:
            raise Refused(f"{shown(path)}: in none of the job's directories")
        tree = self._trees[min(numbers)]
        directories = self._directories[tree.descriptor, tree.on_source]
        return tree, directories, path[len(tree.called.rstrip(b"/")) + 1 :]

    def close(self) -> None:
        self._kept.close()


def _is_in(path: bytes, tree: bytes) -> bool:
    return path == tree or path.startswith(tree.rstrip(b"/") + b"/")


def _upwards(path: bytes) -> Iterator[bytes]:
    """Yield ``path`` and all paths above it, without slashes at their ends: that of the root is empty."""
    path = path.rstrip(b"/")
    while path:
        yield path
        path = path.rpartition(b"/")[0].rstrip(b"/")
    yield path


def _top(descriptor: int) -> Answer:
    try:
        return _seen(descriptor, mounted=True)
    except OSError as error:
        return Answer(error.strerror or str(error))


def _answer(directories: Directories, below: bytes, mounted: bool) -> Answer:
    try:
        return _seen(directories.open(below), mounted=mounted)
    except Problem as problem:
        if problem.errno != errno.ENOTDIR:
            raise
    above, _, name = below.rpartition(b"/")  # something may be mounted on a file, too
    held = open_patiently(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=directories.open(above))
    try:
        return _seen(held, mounted=mounted)
    finally:
        let_go(held)


def _seen(descriptor: int, *, mounted: bool) -> Answer:
    root, device = root_of(descriptor), os.fstat(descriptor).st_dev
    return Answer("", mounted, root[:], device, is_of_one_machine(root.kind, device))


Told = list[tuple[int, dict[bytes, Answer]]]
"""The ranks that speak for places, rank 0 first, with what they say."""


def agree_on_mounts(job: Job, below: Mounts, group: Group) -> tuple[Mount, ...]:
    """What is mounted below the roots, the same in all places and what it was in the job's earlier runs.

    Collective. Raises ``Refused``, on all ranks alike, naming host, path and both answers.
    """
    hellos, places = group.hellos, [hello.place for hello in group.hellos]
    looks = places.index(places[group.rank]) == group.rank
    several = len(set(places)) > 1
    before = {path: MountRoot(*root) for path, root in job.mounts}
    paths, automatic = _union(below, looks, group.gather, set(before))
    seen = {**below.enter(paths), **(below.tops() if several else {})} if looks else {}
    told = group.gather({path: tuple(answer) for path, answer in seen.items()} if looks else None)
    spoken = [
        (rank, {path: Answer(*said) for path, said in plain.items()})
        for rank, plain in enumerate(told)
        if plain is not None
    ]
    if several:
        _refuse_different(spoken, hellos)
    _refuse_changed(job, before, automatic, spoken, hellos)
    return tuple(
        (path, answer.root)
        for path, answer in sorted(spoken[0][1].items())
        if not path.endswith(b"/") and not answer.trouble and any(said[path].mounted for _, said in spoken)
    )


def _union(
    below: Mounts, looks: bool, gather: Callable[[Any], list[Any]], paths: set[bytes]
) -> tuple[set[bytes], set[bytes]]:
    """``paths`` and those of all mounts, entered in every place until no more appear; and which are automatic."""
    automatic: set[bytes] = set()
    entered: set[bytes] = set()
    while True:
        points, trouble = {}, ""
        if looks:
            below.enter(paths - entered)
            try:
                points = below.points()
            except OSError as error:
                trouble = error.strerror or str(error)
        entered |= paths
        for found, text in gather((points, trouble)):
            if text:
                raise Refused(f"what is mounted cannot be found out: /proc/self/mountinfo: {text}")
            paths |= found.keys()
            automatic |= {path for path, is_automatic in found.items() if is_automatic}
        if paths == entered:
            return paths, automatic


def _refuse_different(spoken: Told, hellos: Sequence[Hello]) -> None:
    """Raises ``Refused`` unless all places say the same."""
    first = hellos[0]
    for path, mine in sorted(spoken[0][1].items()):
        for rank, said in spoken[1:]:
            here = hellos[rank]
            theirs = said.get(path, Answer("it was left out"))
            both = f"on {first.host}: {mine}; on {here.host}: {theirs}"
            is_on_one = here.machine == first.machine
            if mine.is_own and theirs.is_own and not is_on_one:
                raise Refused(
                    f"{shown(path)}: lies on a disk or in memory of each host, which is not one file system: {both}"
                )
            if (
                bool(mine.trouble) != bool(theirs.trouble)
                or not MountRoot(*mine.root).is_alike(MountRoot(*theirs.root))
                or (mine.is_own and is_on_one and mine.device != theirs.device)
            ):
                raise Refused(f"{shown(path)}: is not the same on all hosts: {both}")


def _refuse_changed(
    job: Job, before: Mapping[bytes, MountRoot], automatic: set[bytes], spoken: Told, hellos: Sequence[Hello]
) -> None:
    """Raises ``Refused`` unless what was mounted in earlier runs is, and nothing else but what comes by itself."""
    if job.run == 1:
        return
    for rank, said in spoken:
        where = f"on {hellos[rank].host}: " if len(hellos) > 1 else ""
        for path, wanted in before.items():
            answer = said.get(path, Answer("it was left out"))
            if answer.trouble or not MountRoot(*answer.root).is_same(wanted):
                raise _not_as_before(path, job.name, f"{where}{answer}", str(wanted))
        for path, answer in said.items():
            if answer.mounted and path not in before and path not in automatic and not path.endswith(b"/"):
                raise _not_as_before(path, job.name, f"{where}{answer}", "nothing was mounted there")


def _not_as_before(path: bytes, name: str, now: str, then: str) -> Refused:
    return Refused(
        f"{shown(path)}: is not what it was when job {name} began: {now}; then: {then}; "
        "mount or unmount there, or discard the job (pcopy --discard) and start anew"
    )


def refuse_other_mounts(file: JobFile, roots: tuple[Root, ...], options: Options) -> None:
    """Raises ``Refused`` if a stored job, which has not begun to go on, would meet other mounts on this host."""
    job = Job(file.name, file.runs + 1, roots, options, mounts=file.mounts)
    opened = open_roots(job)
    try:
        with closing(Mounts(job, opened, targets=True)) as below:
            agree_on_mounts(job, below, Group())
    finally:
        for descriptor in {descriptor for root in opened for descriptor in root}:
            let_go(descriptor)


def show_same_targets(group: Group, below: Mounts, job: Job, target: int) -> None:
    """Every place shows by a file that the open ``target`` directory is rank 0's, and what is mounted below the targets
    too, where rank 0 can write it.

    Collective; raises ``Refused`` on all ranks alike.
    """
    if len(group.hellos) == 1:
        return
    from pcopy.launch.hosts import show_same_directory

    name = f".pcopy-{job.name}-probe"
    show_same_directory(group, target, job.roots[0].target, name)
    for path, _ in job.mounts:
        if below.is_target(path):
            try:
                directory = below.open_target(path)
            except Problem:  # a file
                directory = -1
            show_same_directory(group, directory, path, name, required=False)
