"""The directories of a job's roots, on both sides: what they share, what is mounted below them, what is called how."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache, partial

from pcopy.fsio.close import close_read
from pcopy.fsio.directories import Directories, OpenDirectories, affordable
from pcopy.fsio.kernel.interface import Kernel
from pcopy.fsio.mounted import MountRoot
from pcopy.fsio.mounts import Followed
from pcopy.fsio.problem import Problem
from pcopy.fsio.source import open_source, source_status
from pcopy.named import NamedTuple
from pcopy.signature.items import ROOT
from pcopy.tasks.base.job import Job, Mount, Root, mount_codes
from pcopy.tasks.base.values import OpenFile, Place


class RootDescriptors(NamedTuple):
    """The two directories of a root, opened before the job begins."""

    source: int
    target: int


class BothSides:
    """Those of one rank."""

    def __init__(self, job: Job, descriptors: Sequence[RootDescriptors], kernel: Kernel, *, one_host: bool) -> None:
        self.job = job
        self.options = job.options
        self.descriptors = descriptors
        self.sources, self.targets = _directories_of(job, descriptors, kernel, one_host=one_host)
        self._by_item: dict[tuple[bytes, bytes], Root] = {}

    def entry(self, place: Place, name: bytes) -> tuple[int, bytes, bytes]:
        """An item's side, directory and name in its dataset; the name of a directory itself is empty.

        Several sources are a directory of their basenames; a single item is a dataset without a directory.
        """
        root = self.job.roots[place.root]
        if not self.job.copies or len(self.job.roots) == 1:
            return (0 if self.job.copies else place.root), place.path, ROOT if root.item else name
        return 0, root.below_target(place.path), self.new_name(place, name)

    def open_source(self, place: Place) -> int:
        """The source directory of ``place``; raises ``Problem``."""
        return self.sources[place.root].open(place.path, place.source_id)

    @contextmanager
    def reading(self, place: Place, name: bytes) -> Iterator[int]:
        """A regular file of the source, open; raises ``Problem``."""
        descriptor = open_source(self.open_source(place), name, follow=self.options.dereference)
        try:
            yield descriptor
        finally:
            close_read(descriptor)

    def source_status(self, place: Place, name: bytes) -> os.stat_result:
        """Of an item of the source; raises ``Problem``."""
        return source_status(self.open_source(place), name, follow=self.options.dereference)

    def source_device(self, place: Place, mount: int | None = None) -> int | None:
        """This host's st_dev of the source directory, or of another mount of that root; None if it is not known."""
        return self.sources[place.root].mounts.device(place.source_id.mount if mount is None else mount)

    def target_device(self, place: Place) -> int:
        """This host's st_dev of the target directory, which is opened if this rank has not been on that mount; raises
        ``Problem`` then."""
        targets, mount = self.targets[place.root], place.target_id.mount
        device = targets.mounts.device(mount)
        if device is None:
            targets.open(self.below_target(place.root, place.path), place.target_id)
            device = targets.mounts.device(mount)
            assert device is not None
        return device

    def devices(self, place: Place) -> tuple[int, int]:
        return self.source_device(place) or 0, self.target_device(place)

    def is_target(self, root: int, status: os.stat_result) -> bool:
        """Is this directory of a source the one that its root is copied to? (A bind mount can lead there.)"""
        targets = self.targets[root]
        try:
            made = targets.identity(self.below_target(root, b""))
        except Problem:
            return False  # it isn't there yet
        return (targets.mounts.device(made.mount), made.inode) == (status.st_dev, status.st_ino)

    def below_target(self, root: int, path: bytes) -> bytes:
        """As ``Root.below_target``."""
        return self.job.roots[root].below_target(path)

    def new_name(self, place: Place, name: bytes) -> bytes:
        """What ``name`` is called in the target: the same, unless the root is one file and got another name."""
        root = self.job.roots[place.root]
        return root.name if root.item and name == root.item and not place.path else name

    def root_of(self, number: int, item: bytes) -> Root:
        """Return the root of a single ``item`` that a task has found in the directory of root ``number``.

        One task has the names of many roots that are items of one directory and keep their names: its place has the
        number of the first.
        """
        root = self.job.roots[number]
        if item == root.item:
            return root
        if not self._by_item:
            self._by_item = {(each.source, each.item): each for each in self.job.roots if each.item}
        return self._by_item.get((root.source, item), root)

    def written_as(self, file: OpenFile) -> bytes:
        """The name under which a split file is being filled."""
        return self.new_name(file.item.place, file.item.name) if file.over else file.temporary

    def shown(self, place: Place, name: bytes, *, on_source: bool) -> bytes:
        """A path for messages. What lies below a single item is named from that on."""
        root = self.job.roots[place.root]
        below = b"/".join(part for part in (place.path, name) if part)
        if root.item:
            first, _, below = below.partition(b"/")
            root = self.root_of(place.root, first)
        top = root.source_shown if on_source else root.target_shown
        return b"/".join(part.rstrip(b"/") or part for part in (top, below) if part)


def _directories_of(
    job: Job, descriptors: Sequence[tuple[int, int]], kernel: Kernel, *, one_host: bool
) -> tuple[list[Directories], list[Directories]]:
    """Sources and targets of the roots, whose two directories are open as ``descriptors``; what of them tickets of the
    ``kernel`` work with stays open."""
    sources: list[Directories] = []
    targets: list[Directories] = []
    capacity = affordable()
    kept = [OpenDirectories(capacity, kernel.pins, kernel.open_directory) for _ in range(2)]
    mounted = lru_cache(lambda top: mounted_below(top, job.mounts))
    both = list(zip(mount_codes(job.roots), descriptors, strict=True))
    codes: dict[int, int] = {}
    for (code, _), (source, _) in both:
        codes.setdefault(source, code)  # many roots share a directory
    bases = {os.fstat(source).st_dev: code for source, code in reversed(codes.items())}
    followed = Followed(bases, one_host) if job.options.dereference else None
    shared: dict[tuple[int, int], int] = {}
    for number, ((source_code, target_code), (source, target)) in enumerate(both):
        root = job.roots[number]
        if root.item and job.copies and (first := shared.setdefault((source, target), number)) != number:
            sources.append(sources[first])  # single items of one directory
            targets.append(targets[first])
            continue
        # Where nothing is copied, two trees may be read side by side: a deep one must not push the other out.
        side = 0 if job.copies else number % 2
        of_source = partial(Directories, number=2 * number, one_host=one_host, kept=kept[side])
        of_target = partial(Directories, number=2 * number + 1, one_host=one_host, kept=kept[1])
        below = mounted(root.source)
        sources.append(of_source(source, source_code, on_source=True, followed=followed, mounted=below))
        below = mounted(root.target)
        targets.append(of_target(target, target_code, on_source=False, mounted=below))
        targets[-1].keeps_atime = job.options.delete
    return sources, targets


def mounted_below(top: bytes, mounts: Sequence[Mount]) -> dict[bytes, MountRoot]:
    """Those of ``mounts`` that lie below the directory ``top``, by their paths there."""
    around = top.rstrip(b"/") + b"/"
    return {path[len(around) :]: MountRoot(*root) for path, root in mounts if path.startswith(around)}
