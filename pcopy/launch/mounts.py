"""The mounts below the roots of a job: compared between all hosts at the start, and recorded with the job.

Rule: if hosts or runs of a job see different mounts, the job is refused. Otherwise a host that lacks a mount would copy
the directory under the mount point, or write into it, and nothing would fail. So one rank of each *place* (a running
operating system and a mount namespace on it) lists its mounts. Each mount of any place is then entered in every place,
since automounts and nested exports of an NFS server are mounted only then. The results are compared. In a later run of
the job a new automount (mounted when its directory is entered) is allowed; other new mounts are not.

A *root* is a pair of one source and its target; a *side* of it is either of them.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from typing import Any

from pcopy.errors import RequestRefused, path_refused
from pcopy.fast_named_tuple import NamedTuple
from pcopy.fsio.close import close_ignoring_errors
from pcopy.fsio.directories import DirectoriesBelowRoot, DirectoryCache, affordable_cache_capacity
from pcopy.fsio.mounted import (
    ANY_OTHER_FILE_SYSTEM,
    MountRootIdentity,
    MountRootTuple,
    is_file_system_local_to_machine,
    mount_points,
    mount_root_of,
)
from pcopy.fsio.problem import Problem
from pcopy.fsio.retries import open_with_retries
from pcopy.jobs.job_file import JobFile
from pcopy.launch.group import RankDescription, RankGroup
from pcopy.tasks.base.both_sides import SourceAndTargetDescriptors
from pcopy.tasks.base.job import DeviceInode, Job, Mount, Options, Root


def open_source_and_target_directories(job: Job, *, compare_devices: bool = True) -> list[SourceAndTargetDescriptors]:
    """Open the source and target directory of each root (pair of source and target). Raise ``RequestRefused`` if one
    has another inode number than in the job, so that it is not the directory that rank 0 has found.

    ``compare_devices``: compare device numbers, too; False if rank 0 is on another host, which numbers them otherwise.
    """
    opened: dict[tuple[bytes, bool], tuple[int, os.stat_result]] = {}

    def open_once(path: bytes, identity: DeviceInode, on_source: bool) -> int:
        if (path, on_source) not in opened:
            descriptor = _open_directory(path, on_source)
            opened[path, on_source] = descriptor, os.fstat(descriptor)
        descriptor, status = opened[path, on_source]
        if status.st_ino != identity[1] or (compare_devices and status.st_dev != identity[0]):
            raise path_refused(path, f"is not the same directory on {os.uname().nodename}")
        return descriptor

    return [
        SourceAndTargetDescriptors(
            open_once(root.source, root.source_id, True), open_once(root.target, root.target_id, False)
        )
        for root in job.roots
    ]


def _open_directory(path: bytes, on_source: bool) -> int:
    """Return a descriptor of the directory ``path``; raise ``RequestRefused`` if it cannot be opened.

    A source is opened with O_NOATIME if that is permitted. A directory that may not be read is opened with O_PATH.
    """
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
    for extra in (os.O_NOATIME, 0, os.O_PATH) if on_source else (0, os.O_PATH):
        try:
            return open_with_retries(path, flags | extra)
        except PermissionError as error:
            error_of_permission = error
        except OSError as error:
            raise path_refused(path, f"cannot be opened: {error.strerror}") from None
    raise path_refused(path, f"cannot be opened: {error_of_permission.strerror}")


class SourceOrTarget(NamedTuple):
    """The source or the target of a root (a pair of source and target), for a check of what is mounted in it.

    Fields:
    - ``path``: path of the directory, as the job names it.
    - ``descriptor``: descriptor of that directory.
    - ``item``: name of the item in the directory that is copied or created; empty: the directory itself.
    - ``on_source``: True for the source, False for the target.
    """

    path: bytes
    descriptor: int
    item: bytes
    on_source: bool


class MountState(NamedTuple):
    """What a host (and mount namespace) sees at a path: the file system that is mounted there, or an error.

    Fields:
    - ``error``: why the path cannot be entered; empty if it can.
    - ``is_mount_point``: True if something is mounted at the path.
    - ``root``: identity of the file system at the path, and of the directory in it that is mounted there.
    - ``device``: st_dev of the path.
    - ``is_of_one_machine``: True if the file system belongs to one machine, such as a local disk.
    """

    error: str
    is_mount_point: bool = False
    root: MountRootTuple = ANY_OTHER_FILE_SYSTEM[:]
    device: int = 0
    is_of_one_machine: bool = False

    def __str__(self) -> str:
        if self.error:
            return f"it cannot be entered ({self.error})"
        root = MountRootIdentity(*self.root)
        return str(root) if self.is_mount_point else f"nothing is mounted ({root})"


class MountsBelowRoots:
    """Finds out what is mounted in the source and target directories of a job, as this process sees it. Each of these
    directories is called a tree here, and described by a ``SourceOrTarget``.
    """

    def __init__(self, job: Job, roots: Sequence[SourceAndTargetDescriptors], *, targets: bool) -> None:
        """Prepare to examine the mounts in the directories of ``job``. ``roots`` are the descriptors of these
        directories, for each pair of source and target. ``targets``: examine the targets, too, because the job
        writes to them.
        """
        trees = {}
        for root, opened in zip(job.roots, roots, strict=True):
            trees[root.source, root.item, True] = SourceOrTarget(root.source, opened.source, root.item, True)
            if targets:
                trees[root.target, root.name, False] = SourceOrTarget(root.target, opened.target, root.name, False)
        self._trees = list(trees.values())
        self._one_file_system = job.options.one_file_system
        """True if the job does not enter other file systems (``-x``). Then it does not matter which file system is
        mounted at a mount point in a source, as long as one is.
        """
        self._open_directories = DirectoryCache(
            affordable_cache_capacity()
        )  # all of them are closed before the job needs descriptors
        sides = {(tree.descriptor, tree.on_source): None for tree in self._trees}
        self._directories = {
            side: DirectoriesBelowRoot(side[0], 0, on_source=side[1], cache=self._open_directories, root_number=number)
            for number, side in enumerate(sides)
        }
        self._number_by_path: dict[bytes, int] = {}
        """Index in ``_trees`` of each source or target directory, by its path as the job names it; of equal paths, the
        first one.
        """
        for number, tree in enumerate(self._trees):
            self._number_by_path.setdefault(os.path.join(tree.path, tree.item).rstrip(b"/"), number)
        self._trees_by_real_path: dict[bytes, list[SourceOrTarget]] = {}
        """Source and target directories of the job by their real paths (without symbolic links); filled at the first
        use.
        """

    def mount_points_below_roots(self) -> dict[bytes, bool]:
        """Return the mount points in the directories of the job. The keys are their paths, as the job names them; the
        values are True for automounts (mounted when they are entered).

        Raise ``OSError`` if the mounts of this process cannot be read.
        """
        trees, automatic_by_path = self._trees_grouped_by_real_path(), dict[bytes, bool]()
        for point in mount_points():
            for top in _path_and_parent_paths(point.path):
                for tree in trees.get(top, ()):
                    below = (tree.item + point.path[len(top) :]).lstrip(b"/")
                    if below:  # If the directory of the root itself is a mount point, that is no mount below it.
                        path = os.path.join(tree.path, below)
                        automatic_by_path[path] = automatic_by_path.get(path, False) or point.is_automount
        return automatic_by_path

    def _trees_grouped_by_real_path(self) -> dict[bytes, list[SourceOrTarget]]:
        """Return the source and target directories of the job, as ``SourceOrTarget``, by their real paths (without
        symbolic links, as /proc/self/fd shows them).
        """
        if not self._trees_by_real_path:
            tops = {tree.descriptor: b"" for tree in self._trees}
            for descriptor in tops:
                tops[descriptor] = os.readlink(b"/proc/self/fd/%d" % descriptor).rstrip(b"/")
            for tree in self._trees:
                top = os.path.join(tops[tree.descriptor] + b"/", tree.item).rstrip(b"/")
                self._trees_by_real_path.setdefault(top, []).append(tree)
        return self._trees_by_real_path

    def mount_states_of(self, paths: Iterable[bytes]) -> dict[bytes, MountState]:
        """Return for each of ``paths``, which lie in the directories of the job, what is mounted there. Omit paths on
        file systems that the job does not enter (``-x``).
        """
        answers: dict[bytes, MountState] = {}
        left_out: list[bytes] = []
        points: dict[bytes, bool] = {}
        with suppress(OSError):
            points = self.mount_points_below_roots()
        for path in sorted(paths):
            if any(_is_in_tree(path, above) for above in left_out):
                continue
            tree, directories, below = self._source_or_target_containing(path)
            try:
                answer = _mount_state_of_path(directories, below, path in points)
                if self._one_file_system and tree.on_source:
                    around = os.fstat(directories.open(below.rpartition(b"/")[0]))
                    if answer.device != around.st_dev:
                        answer = MountState("", answer.is_mount_point)
                        left_out.append(path)
            except OSError as error:
                answer = MountState(error.strerror or str(error))
            answers[path] = answer
        return answers

    def mount_states_of_sources(self) -> dict[bytes, MountState]:
        """Return which file system each source directory itself is on. The keys are the paths with a trailing slash,
        which distinguishes them from mount points inside these directories.
        """
        tops = {os.path.join(tree.path, b""): tree.descriptor for tree in self._trees if tree.on_source}
        return {path: _mount_state_of_source(descriptor) for path, descriptor in tops.items()}

    def open_target_directory(self, path: bytes) -> int:
        """Return a descriptor of the directory ``path`` in a target; this object closes it later. Raise ``Problem``."""
        _, directories, below = self._source_or_target_containing(path)
        return directories.open(below)

    def is_path_in_target(self, path: bytes) -> bool:
        """Return True if ``path``, which lies in a directory of the job, lies in a target; False if it lies in a
        source.
        """
        return not self._source_or_target_containing(path)[0].on_source

    def _source_or_target_containing(self, path: bytes) -> tuple[SourceOrTarget, DirectoriesBelowRoot, bytes]:
        """Return the source or target directory of the job that contains ``path``, the object that opens directories
        inside it, and the rest of ``path`` below it. Raise ``RequestRefused`` if no directory of the job contains
        ``path``.
        """
        numbers = [self._number_by_path[top] for top in _path_and_parent_paths(path) if top in self._number_by_path]
        if not numbers:
            raise path_refused(path, "not in any of the job's directories")
        tree = self._trees[min(numbers)]
        directories = self._directories[tree.descriptor, tree.on_source]
        return tree, directories, path[len(tree.path.rstrip(b"/")) + 1 :]

    def close(self) -> None:
        """Close all descriptors that were opened here."""
        self._open_directories.close()


def _is_in_tree(path: bytes, tree: bytes) -> bool:
    """Return True if ``path`` is the path ``tree`` or lies below it. The paths are only compared as text."""
    return path == tree or path.startswith(tree.rstrip(b"/") + b"/")


def _path_and_parent_paths(path: bytes) -> Iterator[bytes]:
    """Yield ``path`` and all its leading parts, the longest first, without trailing slashes. The path of the root
    directory (/) is empty.
    """
    path = path.rstrip(b"/")
    while path:
        yield path
        path = path.rpartition(b"/")[0].rstrip(b"/")
    yield path


def _mount_state_of_source(descriptor: int) -> MountState:
    """Return which file system the open source directory ``descriptor`` is on. The result says that the directory is a
    mount point, even if it is none, so that messages name the file system.
    """
    try:
        return _mount_state_of_descriptor(descriptor, mounted=True)
    except OSError as error:
        return MountState(error.strerror or str(error))


def _mount_state_of_path(directories: DirectoriesBelowRoot, below: bytes, mounted: bool) -> MountState:
    """Return what is mounted at a path in a directory of the job. Raise ``Problem`` or ``OSError`` if the path cannot
    be opened.

    Args:
        directories: opens directories inside that directory.
        below: path relative to that directory.
        mounted: True if the path is a mount point.
    """
    try:
        return _mount_state_of_descriptor(directories.open(below), mounted=mounted)
    except Problem as problem:
        if problem.errno != errno.ENOTDIR:
            raise
    above, _, name = below.rpartition(b"/")  # A file can be a mount point, too.
    descriptor = open_with_retries(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=directories.open(above))
    try:
        return _mount_state_of_descriptor(descriptor, mounted=mounted)
    finally:
        close_ignoring_errors(descriptor)


def _mount_state_of_descriptor(descriptor: int, *, mounted: bool) -> MountState:
    """Return which file system an open file or directory is on; ``mounted``: True if it is a mount point."""
    root, device = mount_root_of(descriptor), os.fstat(descriptor).st_dev
    return MountState("", mounted, root[:], device, is_file_system_local_to_machine(root.file_system_type, device))


MountStatesOfRanks = list[tuple[int, dict[bytes, MountState]]]
"""What each host (and mount namespace) sees at the mount points of the job: a list of (rank, states by path), with one
rank for each host and namespace, rank 0 first.
"""


def agree_on_mounts(job: Job, below: MountsBelowRoots, group: RankGroup) -> tuple[Mount, ...]:
    """Return the mounts in the directories of the job, as (path, identity), after checking that they are the same on
    all hosts (and in all mount namespaces) and as in earlier runs of the job. Collective: all ranks must call it.

    Raise ``RequestRefused`` on all ranks if a mount differs; the error names host, path and what is mounted there.

    Args:
        job: the job, with the mounts of its earlier runs.
        below: the mounts that this process sees.
        group: the processes of the job.
    """
    hellos, places = group.descriptions, [hello.place for hello in group.descriptions]
    examines = places.index(places[group.rank]) == group.rank
    several = len(set(places)) > 1
    before = {path: MountRootIdentity(*root) for path, root in job.mounts}
    paths, automatic = _all_mount_points(below, examines, group.gather, set(before))
    own_states = (
        {**below.mount_states_of(paths), **(below.mount_states_of_sources() if several else {})} if examines else {}
    )
    answers_of_ranks = group.gather({path: tuple(answer) for path, answer in own_states.items()} if examines else None)
    answers = [
        (rank, {path: MountState(*states) for path, states in primitives.items()})
        for rank, primitives in enumerate(answers_of_ranks)
        if primitives is not None
    ]
    if several:
        _refuse_different_mounts(answers, hellos)
    _refuse_changed_mounts(job, before, automatic, answers, hellos)
    return tuple(
        (path, answer.root)
        for path, answer in sorted(answers[0][1].items())
        if not path.endswith(b"/") and not answer.error and any(states[path].is_mount_point for _, states in answers)
    )


def _all_mount_points(
    below: MountsBelowRoots, examines: bool, gather: Callable[[Any], list[Any]], paths: set[bytes]
) -> tuple[set[bytes], set[bytes]]:
    """Return the paths of the mount points that any host (and mount namespace) sees in the job's directories, and the
    paths of those that are automounts. Collective: all ranks must call it.

    Each mount point is entered on every host, because that may mount other file systems. This is repeated until no more
    mount points appear.

    Args:
        below: the mounts that this process sees.
        examines: True if this rank examines its host and namespace, for all ranks there.
        gather: returns the values of all ranks.
        paths: mount points that are known already.
    """
    automatic: set[bytes] = set()
    entered: set[bytes] = set()
    while True:
        points, trouble = {}, ""
        if examines:
            below.mount_states_of(paths - entered)
            try:
                points = below.mount_points_below_roots()
            except OSError as error:
                trouble = error.strerror or str(error)
        entered |= paths
        for found, text in gather((points, trouble)):
            if text:
                raise RequestRefused(f"cannot find out what is mounted: /proc/self/mountinfo: {text}")
            paths |= found.keys()
            automatic |= {path for path, is_automatic in found.items() if is_automatic}
        if paths == entered:
            return paths, automatic


def _refuse_different_mounts(answers: MountStatesOfRanks, descriptions: Sequence[RankDescription]) -> None:
    """Raise ``RequestRefused`` unless all hosts (and mount namespaces) see the same at the mount points of the job.

    Args:
        answers: what is mounted at each path, for one rank of each host and namespace.
        descriptions: descriptions of all ranks, for their host names.
    """
    first = descriptions[0]
    for path, mine in sorted(answers[0][1].items()):
        for rank, states in answers[1:]:
            here = descriptions[rank]
            theirs = states.get(path, MountState("it is on another file system, which -x excludes"))
            both = f"on {first.host}: {mine}; on {here.host}: {theirs}"
            is_on_one = here.machine == first.machine
            if mine.is_of_one_machine and theirs.is_of_one_machine and not is_on_one:
                raise path_refused(
                    path, f"each host has a file system of its own here (a local disk or memory): {both}"
                )
            if (
                bool(mine.error) != bool(theirs.error)
                or not MountRootIdentity(*mine.root).may_be_same_mount_on_other_host(MountRootIdentity(*theirs.root))
                or (mine.is_of_one_machine and is_on_one and mine.device != theirs.device)
            ):
                raise path_refused(path, f"is not the same on all hosts: {both}")


def _refuse_changed_mounts(
    job: Job,
    before: Mapping[bytes, MountRootIdentity],
    automatic: set[bytes],
    answers: MountStatesOfRanks,
    descriptions: Sequence[RankDescription],
) -> None:
    """If the job is resumed, raise ``RequestRefused`` unless each mount of the earlier runs is the same as before, and
    all other mounts are automounts.

    Args:
        job: the job.
        before: identities of the mounts in the earlier runs, by path.
        automatic: paths of automounts.
        answers: what is mounted at each path, for one rank of each host and mount namespace.
        descriptions: descriptions of all ranks, for their host names.
    """
    if job.run == 1:
        return
    for rank, states in answers:
        where = f"on {descriptions[rank].host}: " if len(descriptions) > 1 else ""
        for path, recorded in before.items():
            answer = states.get(path, MountState("it is on another file system, which -x excludes"))
            if answer.error or not MountRootIdentity(*answer.root).may_be_same_mount(recorded):
                raise _changed_mount_error(path, job.name, f"{where}{answer}", str(recorded))
        for path, answer in states.items():
            if answer.is_mount_point and path not in before and path not in automatic and not path.endswith(b"/"):
                raise _changed_mount_error(path, job.name, f"{where}{answer}", "nothing was mounted there")


def _changed_mount_error(path: bytes, name: str, now: str, then: str) -> RequestRefused:
    """Return the error for the mount ``path``, which has changed since an earlier run of the job ``name``. ``now`` and
    ``then`` describe what is and what was mounted there.
    """
    return path_refused(
        path,
        f"is not what it was when job {name} began: {now}; then: {then}; restore the earlier mounts, or discard the "
        "job (pcopy --discard) and start a new one",
    )


def check_mounts_before_resume(file: JobFile, roots: tuple[Root, ...], options: Options) -> None:
    """Raise ``RequestRefused`` if this host has other mounts in the directories of a job than in the job's earlier
    runs. Called before the job recorded in ``file`` is resumed.
    """
    job = Job(file.name, file.runs + 1, roots, options, mounts=file.mounts)
    opened = open_source_and_target_directories(job)
    try:
        with closing(MountsBelowRoots(job, opened, targets=True)) as below:
            agree_on_mounts(job, below, RankGroup())
    finally:
        for descriptor in {descriptor for root in opened for descriptor in root}:
            close_ignoring_errors(descriptor)


def check_targets_are_same_on_all_hosts(group: RankGroup, below: MountsBelowRoots, job: Job, target: int) -> None:
    """Check that the target directory, and mounts in the targets, are the same on all hosts (and in all mount
    namespaces) as on rank 0. Collective: all ranks must call it.

    Mounts to which rank 0 cannot write are not checked. Raise ``RequestRefused`` on all ranks if a directory differs.

    Args:
        group: the processes of the job.
        below: the mounts that this process sees.
        job: the job, with its mounts.
        target: descriptor of the target directory.
    """
    if len(group.descriptions) == 1:
        return
    from pcopy.launch.hosts import check_directory_is_same_on_all_hosts

    name = f".pcopy-{job.name}-probe"
    check_directory_is_same_on_all_hosts(group, target, job.roots[0].target, name)
    for path, _ in job.mounts:
        if below.is_path_in_target(path):
            try:
                directory = below.open_target_directory(path)
            except Problem:  # A file is mounted at this path. With the descriptor -1 rank 0 skips the check.
                directory = -1
            check_directory_is_same_on_all_hosts(group, directory, path, name, required=False)
