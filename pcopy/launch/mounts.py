"""The mounts below the roots of a job: compared between all hosts at the start, and recorded with the job.

Rule: if hosts or runs of a job see different mounts, the job is refused. A host that lacks a mount would copy the
directory under the mount point, or write into it, and nothing would fail. So one rank of each *place* (see
``pcopy.launch.hosts``) lists its mounts, and each of these is entered in every place, since automounts and the file
systems of a server below another one are mounted only then. The results are compared. A file system that is mounted
when it is entered (an automount) may also appear in a later run; other mounts may not.
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
    """Open both directories of every root; raise ``Refused`` if one is not the directory that was resolved.

    ``compare_devices``: compare device numbers, too. They are only comparable if they were read on this host.
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
    """Open a directory; raise ``Refused`` if that fails.

    A source is opened with O_NOATIME if that is permitted. A directory that cannot be read is opened with O_PATH.
    """
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
    for extra in (os.O_NOATIME, 0, os.O_PATH) if on_source else (0, os.O_PATH):
        try:
            return open_patiently(path, flags | extra)
        except PermissionError as error:
            error_of_permission = error
        except OSError as error:
            raise Refused(f"{shown(path)}: cannot be opened: {error.strerror}") from None
    raise Refused(f"{shown(path)}: cannot be opened: {error_of_permission.strerror}")


class Tree(NamedTuple):
    """One side of a root.

    Fields:
    - ``called``: path of its directory as the job names it.
    - ``descriptor``: that directory, open.
    - ``part``: name of the item in it that is copied or created; empty: the directory itself.
    - ``on_source``: True for the source, False for the target.
    """

    called: bytes
    descriptor: int
    part: bytes
    on_source: bool


class Answer(NamedTuple):
    """State of a path in one place.

    Fields:
    - ``trouble``: why it cannot be entered; empty if it can.
    - ``mounted``: True if it is a mount point.
    - ``root``: identity of the file system and directory that are there.
    - ``device``: its st_dev.
    - ``is_own``: True for a file system that belongs to one machine, such as a local disk.
    """

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
    """The mounts that this process sees below the sources of a job, and below its targets."""

    def __init__(self, job: Job, roots: Sequence[RootDescriptors], *, targets: bool) -> None:
        """Prepare to examine the open ``roots``; ``targets``: include the targets, to which the job writes."""
        trees = {}
        for root, opened in zip(job.roots, roots, strict=True):
            trees[root.source, root.item, True] = Tree(root.source, opened.source, root.item, True)
            if targets:
                trees[root.target, root.name, False] = Tree(root.target, opened.target, root.name, False)
        self._trees = list(trees.values())
        self._one_file_system = job.options.one_file_system
        """True if the job does not enter other file systems (``-x``): mounts in a source only need to be there."""
        self._kept = OpenDirectories(affordable())  # all of them are closed before the job needs descriptors
        sides = {(tree.descriptor, tree.on_source): None for tree in self._trees}
        self._directories = {
            side: Directories(side[0], 0, on_source=side[1], kept=self._kept, number=number)
            for number, side in enumerate(sides)
        }
        self._numbers: dict[bytes, int] = {}
        """Index of the first tree with a path, by that path as the job names it."""
        for number, tree in enumerate(self._trees):
            self._numbers.setdefault(os.path.join(tree.called, tree.part).rstrip(b"/"), number)
        self._real: dict[bytes, list[Tree]] = {}
        """Trees by their real paths; filled at the first use."""

    def points(self) -> dict[bytes, bool]:
        """Return the mount points below the roots, by their paths as the job names them; True for automounts.

        Raise ``OSError`` if they cannot be read.
        """
        trees, automatic_by_path = self._by_real_path(), dict[bytes, bool]()
        for point in mount_points():
            for top in _upwards(point.path):
                for tree in trees.get(top, ()):
                    below = (tree.part + point.path[len(top) :]).lstrip(b"/")
                    if below:  # The root directory itself may be a mount point, which does not count.
                        path = os.path.join(tree.called, below)
                        automatic_by_path[path] = automatic_by_path.get(path, False) or point.automatic
        return automatic_by_path

    def _by_real_path(self) -> dict[bytes, list[Tree]]:
        """Return the trees by their real paths."""
        if not self._real:
            tops = {tree.descriptor: b"" for tree in self._trees}
            for descriptor in tops:
                tops[descriptor] = os.readlink(b"/proc/self/fd/%d" % descriptor).rstrip(b"/")
            for tree in self._trees:
                top = os.path.join(tops[tree.descriptor] + b"/", tree.part).rstrip(b"/")
                self._real.setdefault(top, []).append(tree)
        return self._real

    def enter(self, paths: Iterable[bytes]) -> dict[bytes, Answer]:
        """Return the state of each of ``paths``; paths below one that the job leaves out are omitted."""
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
        """Return the state of each source directory itself, by its path with a trailing slash."""
        tops = {os.path.join(tree.called, b""): tree.descriptor for tree in self._trees if tree.on_source}
        return {path: _top(descriptor) for path, descriptor in tops.items()}

    def open_target(self, path: bytes) -> int:
        """Return a descriptor of a directory in a target; this object closes it. Raise ``Problem``."""
        _, directories, below = self._tree_of(path)
        return directories.open(below)

    def is_target(self, path: bytes) -> bool:
        """True if ``path`` lies in a target."""
        return not self._tree_of(path)[0].on_source

    def _tree_of(self, path: bytes) -> tuple[Tree, Directories, bytes]:
        """Return the tree that contains ``path``, its directories, and the path below it; raise ``Refused`` if
        there is none.
        """
        numbers = [self._numbers[top] for top in _upwards(path) if top in self._numbers]
        if not numbers:
            raise Refused(f"{shown(path)}: not in any of the job's directories")
        tree = self._trees[min(numbers)]
        directories = self._directories[tree.descriptor, tree.on_source]
        return tree, directories, path[len(tree.called.rstrip(b"/")) + 1 :]

    def close(self) -> None:
        """Close all descriptors that were opened here."""
        self._kept.close()


def _is_in(path: bytes, tree: bytes) -> bool:
    """True if ``path`` is ``tree`` or lies below it."""
    return path == tree or path.startswith(tree.rstrip(b"/") + b"/")


def _upwards(path: bytes) -> Iterator[bytes]:
    """Yield ``path`` and all paths above it, without trailing slashes; the path of the root directory is empty."""
    path = path.rstrip(b"/")
    while path:
        yield path
        path = path.rpartition(b"/")[0].rstrip(b"/")
    yield path


def _top(descriptor: int) -> Answer:
    """Return the state of an open source directory."""
    try:
        return _seen(descriptor, mounted=True)
    except OSError as error:
        return Answer(error.strerror or str(error))


def _answer(directories: Directories, below: bytes, mounted: bool) -> Answer:
    """Return the state of a path below a tree; raise ``Problem`` or ``OSError`` if it cannot be opened."""
    try:
        return _seen(directories.open(below), mounted=mounted)
    except Problem as problem:
        if problem.errno != errno.ENOTDIR:
            raise
    above, _, name = below.rpartition(b"/")  # A file can be a mount point, too.
    descriptor = open_patiently(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=directories.open(above))
    try:
        return _seen(descriptor, mounted=mounted)
    finally:
        let_go(descriptor)


def _seen(descriptor: int, *, mounted: bool) -> Answer:
    """Return the state of an open file or directory."""
    root, device = root_of(descriptor), os.fstat(descriptor).st_dev
    return Answer("", mounted, root[:], device, is_of_one_machine(root.kind, device))


Told = list[tuple[int, dict[bytes, Answer]]]
"""Ranks that answer for their places, rank 0 first, each with the states of all paths."""


def agree_on_mounts(job: Job, below: Mounts, group: Group) -> tuple[Mount, ...]:
    """Return the mounts below the roots, after checking that they are the same in all places and in the earlier runs.
    Collective.

    Raise ``Refused`` on all ranks if they differ, with host, path and both states.
    """
    hellos, places = group.hellos, [hello.place for hello in group.hellos]
    examines = places.index(places[group.rank]) == group.rank
    several = len(set(places)) > 1
    before = {path: MountRoot(*root) for path, root in job.mounts}
    paths, automatic = _union(below, examines, group.gather, set(before))
    own_states = {**below.enter(paths), **(below.tops() if several else {})} if examines else {}
    answers_of_ranks = group.gather({path: tuple(answer) for path, answer in own_states.items()} if examines else None)
    answers = [
        (rank, {path: Answer(*states) for path, states in plain.items()})
        for rank, plain in enumerate(answers_of_ranks)
        if plain is not None
    ]
    if several:
        _refuse_different(answers, hellos)
    _refuse_changed(job, before, automatic, answers, hellos)
    return tuple(
        (path, answer.root)
        for path, answer in sorted(answers[0][1].items())
        if not path.endswith(b"/") and not answer.trouble and any(states[path].mounted for _, states in answers)
    )


def _union(
    below: Mounts, looks: bool, gather: Callable[[Any], list[Any]], paths: set[bytes]
) -> tuple[set[bytes], set[bytes]]:
    """Return all mount points of all places, and those that are automounts. Collective.

    Each is entered in every place until no more appear. ``paths`` are mount points that are known already; ``looks``:
    this rank examines its place.
    """
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
                raise Refused(f"cannot find out what is mounted: /proc/self/mountinfo: {text}")
            paths |= found.keys()
            automatic |= {path for path, is_automatic in found.items() if is_automatic}
        if paths == entered:
            return paths, automatic


def _refuse_different(answers: Told, hellos: Sequence[Hello]) -> None:
    """Raise ``Refused`` unless the states of all paths are the same in all places."""
    first = hellos[0]
    for path, mine in sorted(answers[0][1].items()):
        for rank, states in answers[1:]:
            here = hellos[rank]
            theirs = states.get(path, Answer("it was left out"))
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
    job: Job, before: Mapping[bytes, MountRoot], automatic: set[bytes], answers: Told, hellos: Sequence[Hello]
) -> None:
    """Raise ``Refused`` unless the mounts of earlier runs are there, and no others except automounts."""
    if job.run == 1:
        return
    for rank, states in answers:
        where = f"on {hellos[rank].host}: " if len(hellos) > 1 else ""
        for path, recorded in before.items():
            answer = states.get(path, Answer("it was left out"))
            if answer.trouble or not MountRoot(*answer.root).is_same(recorded):
                raise _not_as_before(path, job.name, f"{where}{answer}", str(recorded))
        for path, answer in states.items():
            if answer.mounted and path not in before and path not in automatic and not path.endswith(b"/"):
                raise _not_as_before(path, job.name, f"{where}{answer}", "nothing was mounted there")


def _not_as_before(path: bytes, name: str, now: str, then: str) -> Refused:
    """Return the error for a mount that has changed."""
    return Refused(
        f"{shown(path)}: is not what it was when job {name} began: {now}; then: {then}; "
        "mount or unmount there, or discard the job (pcopy --discard) and start anew"
    )


def refuse_other_mounts(file: JobFile, roots: tuple[Root, ...], options: Options) -> None:
    """Raise ``Refused`` if a recorded job that is to be resumed has other mounts on this host now."""
    job = Job(file.name, file.runs + 1, roots, options, mounts=file.mounts)
    opened = open_roots(job)
    try:
        with closing(Mounts(job, opened, targets=True)) as below:
            agree_on_mounts(job, below, Group())
    finally:
        for descriptor in {descriptor for root in opened for descriptor in root}:
            let_go(descriptor)


def show_same_targets(group: Group, below: Mounts, job: Job, target: int) -> None:
    """Check that the target directory, and mounts below the targets, are the same in all places as on rank 0.
    Collective.

    Args:
        target: a descriptor of the target directory.

    Mounts to which rank 0 cannot write are not checked. Raise ``Refused`` on all ranks if they differ.
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
            except Problem:  # A file is mounted there. A descriptor of -1 lets rank 0 skip the check.
                directory = -1
            show_same_directory(group, directory, path, name, required=False)
