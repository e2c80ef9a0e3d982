"""The source and target directories of all roots of a job, the mounts below them, and the names of
items on each side.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache, partial

from pcopy.fast_named_tuple import NamedTuple
from pcopy.fsio.backend.interface import FileOperationBackend
from pcopy.fsio.close import close_after_read
from pcopy.fsio.directories import DirectoriesBelowRoot, DirectoryCache, affordable_cache_capacity
from pcopy.fsio.mounted import MountRootIdentity
from pcopy.fsio.mounts import LinkFollowingData
from pcopy.fsio.problem import Problem
from pcopy.fsio.source import open_source_file_to_read, source_item_status
from pcopy.signature.items import ROOT_PATH
from pcopy.tasks.base.job import Job, Mount, Root, mount_codes
from pcopy.tasks.base.values import ChunkedFile, Place


class SourceAndTargetDescriptors(NamedTuple):
    """File descriptors of the source and the target directory of a root. They are opened before the job begins."""

    source: int
    target: int


class SourceAndTargetDirectories:
    """The source and target directories that one rank works with, for all roots (a root is one SRC with its target). It
    opens them and keeps them open, and knows the names and paths of items on both sides.
    """

    def __init__(
        self,
        job: Job,
        descriptors: Sequence[SourceAndTargetDescriptors],
        backend: FileOperationBackend,
        *,
        one_host: bool,
    ) -> None:
        self.job = job
        self.options = job.options
        self.copy_options = job.copy_options
        self.descriptors = descriptors
        self.sources, self.targets = _open_root_directories(job, descriptors, backend, one_host=one_host)
        self._roots_by_item: dict[tuple[bytes, bytes], Root] = {}

    def item_location_in_dataset(self, place: Place, name: bytes) -> tuple[int, bytes, bytes]:
        """Return how a signature lists the item ``name`` of ``place``: (number of the dataset, path of the directory in
        the dataset, name). A directory itself has the empty name.

        If several sources are copied, the dataset is a directory that contains one item for each source, with its
        basename. A single file is a dataset without a directory. If the job only reads, each root is a dataset with its
        own number.
        """
        root = self.job.roots[place.root]
        if not self.job.copies or len(self.job.roots) == 1:
            return (0 if self.job.copies else place.root), place.path, ROOT_PATH if root.item else name
        return 0, root.path_below_target(place.path), self.target_name(place, name)

    def open_source_directory(self, place: Place) -> int:
        """Return a descriptor of the source directory of ``place``; the rank keeps it open and closes it later. Raise
        ``Problem`` if it cannot be opened, or if another directory has its path now.
        """
        return self.sources[place.root].open(place.path, place.source_id)

    @contextmanager
    def open_source_file(self, place: Place, name: bytes) -> Iterator[int]:
        """Context manager: open the regular file ``name`` of the source for reading, and close it at the end. Raise
        ``Problem`` if it cannot be opened.
        """
        descriptor = open_source_file_to_read(
            self.open_source_directory(place), name, follow=self.copy_options.dereference
        )
        try:
            yield descriptor
        finally:
            close_after_read(descriptor)

    def source_item_status(self, place: Place, name: bytes) -> os.stat_result:
        """Return the status of an item of the source; with ``--dereference`` that of the item to which a symbolic link
        points. Raise ``Problem`` on failure.
        """
        return source_item_status(self.open_source_directory(place), name, follow=self.copy_options.dereference)

    def source_device(self, place: Place, mount: int | None = None) -> int | None:
        """Return the st_dev that the file system of the source directory of ``place`` has on this host; or, if
        ``mount`` is given, that of the file system with this mount code, a number that means the same on all hosts
        (``pcopy.fsio.mounts``). Return None if this rank has not seen the file system.
        """
        return self.sources[place.root].mount_codes.device_of_mount_code(
            place.source_id.mount_code if mount is None else mount
        )

    def target_device(self, place: Place) -> int:
        """Return the st_dev that the target directory of ``place`` has on this host.

        If this rank has not been on that file system yet, the directory is opened. Raise ``Problem`` if that fails.
        """
        targets, mount = self.targets[place.root], place.target_id.mount_code
        device = targets.mount_codes.device_of_mount_code(mount)
        if device is None:
            targets.open(self.path_below_target(place.root, place.path), place.target_id)
            device = targets.mount_codes.device_of_mount_code(mount)
            assert device is not None
        return device

    def source_and_target_device(self, place: Place) -> tuple[int, int]:
        """Return st_dev of the source directory (0 if this rank has not seen its file system) and st_dev of the target
        directory. Raise ``Problem`` if the target directory had to be opened and could not be.
        """
        return self.source_device(place) or 0, self.target_device(place)

    def is_root_target(self, root: int, status: os.stat_result) -> bool:
        """Return True if ``status`` is that of the directory to which root number ``root`` is copied. A bind mount can
        make this directory appear in the source; it must not be copied into itself.
        """
        targets = self.targets[root]
        try:
            target_identity = targets.identity_of_directory(self.path_below_target(root, b""))
        except Problem:
            return False  # the directory has not been created yet
        return (targets.mount_codes.device_of_mount_code(target_identity.mount_code), target_identity.inode) == (
            status.st_dev,
            status.st_ino,
        )

    def path_below_target(self, root: int, path: bytes) -> bytes:
        """Return the path below the target directory of root number ``root`` for the ``path`` below its source
        directory.
        """
        return self.job.roots[root].path_below_target(path)

    def target_name(self, place: Place, name: bytes) -> bytes:
        """Return the name that the item ``name`` gets in the target. It is another one only if the root is a single
        file that is copied to another name.
        """
        root = self.job.roots[place.root]
        return root.name if root.item and name == root.item and not place.path else name

    def root_of_single_file(self, number: int, item: bytes) -> Root:
        """Return the root that consists of the single file ``item``. ``number`` is the number of any root whose file
        lies in the same source directory.

        If several single files of one directory are copied and keep their names, they share tasks. The ``Place`` of
        such a task has the number of the first of these roots, not that of each file.
        """
        root = self.job.roots[number]
        if item == root.item:
            return root
        if not self._roots_by_item:
            self._roots_by_item = {(each.source, each.item): each for each in self.job.roots if each.item}
        return self._roots_by_item.get((root.source, item), root)

    def name_while_written(self, file: ChunkedFile) -> bytes:
        """Return the name that a file has in the target while it is copied in chunks: its final name if an existing
        file is overwritten (``--inplace``), else its temporary name.
        """
        return self.target_name(file.item.place, file.item.name) if file.overwritten_owner else file.temporary

    def path_for_display(self, place: Place, name: bytes, *, on_source: bool) -> bytes:
        """Return the path of an item for messages: the path of the root as the user wrote it, followed by the path
        below the root. ``on_source`` says which of the two sides is meant.

        If the root is a single file, the path begins with the path that the user wrote for that file.
        """
        root = self.job.roots[place.root]
        below = b"/".join(part for part in (place.path, name) if part)
        if root.item:
            first, _, below = below.partition(b"/")
            root = self.root_of_single_file(place.root, first)
        top = root.source_shown if on_source else root.target_shown
        return b"/".join(part.rstrip(b"/") or part for part in (top, below) if part)


def _open_root_directories(
    job: Job, descriptors: Sequence[tuple[int, int]], backend: FileOperationBackend, *, one_host: bool
) -> tuple[list[DirectoriesBelowRoot], list[DirectoriesBelowRoot]]:
    """Return the open source directories and the open target directories of all roots.

    Args:
        descriptors: descriptors of the source and the target directory of each root.
        backend: the backend. A descriptor stays open while one of its batches uses it.
        one_host: True if all ranks run on one host.
    """
    sources: list[DirectoriesBelowRoot] = []
    targets: list[DirectoriesBelowRoot] = []
    capacity = affordable_cache_capacity()
    caches = [DirectoryCache(capacity, backend.pins, backend.open_directory) for _ in range(2)]
    mounted = lru_cache(lambda top: mounts_below(top, job.mounts))
    both = list(zip(mount_codes(job.roots), descriptors, strict=True))
    codes: dict[int, int] = {}
    for (code, _), (source, _) in both:
        codes.setdefault(source, code)  # many roots may share one directory: the first root's code is used
    bases = {os.fstat(source).st_dev: code for source, code in reversed(codes.items())}
    followed = LinkFollowingData(bases, one_host) if job.copy_options.dereference else None
    shared: dict[tuple[int, int], int] = {}
    for number, ((source_code, target_code), (source, target)) in enumerate(both):
        root = job.roots[number]
        if root.item and job.copies and (first := shared.setdefault((source, target), number)) != number:
            sources.append(sources[first])  # single files of one directory share the descriptors of that directory
            targets.append(targets[first])
            continue
        # If nothing is copied, two trees may be read in parallel. Each has a cache of its own, so that a deep tree
        # does not evict the open directories of the other.
        side = 0 if job.copies else number % 2
        of_source = partial(DirectoriesBelowRoot, root_number=2 * number, one_host=one_host, cache=caches[side])
        of_target = partial(DirectoriesBelowRoot, root_number=2 * number + 1, one_host=one_host, cache=caches[1])
        below = mounted(root.source)
        sources.append(of_source(source, source_code, on_source=True, followed_links=followed, expected_mounts=below))
        below = mounted(root.target)
        targets.append(of_target(target, target_code, on_source=False, expected_mounts=below))
        targets[-1].preserves_atime = job.copy_options.delete
    return sources, targets


def mounts_below(top: bytes, mounts: Sequence[Mount]) -> dict[bytes, MountRootIdentity]:
    """Return those of ``mounts`` that are below the directory ``top``: what must be mounted there, by the path relative
    to ``top``.
    """
    prefix = top.rstrip(b"/") + b"/"
    return {path[len(prefix) :]: MountRootIdentity(*root) for path, root in mounts if path.startswith(prefix)}
