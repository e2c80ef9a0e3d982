"""ScanNames, and what every scan does with the names that it finds: stat them, and spawn what copies them."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterable, Iterator

from pcopy.engine.driver import Slices
from pcopy.fsio.half_written import SIDECAR, of_sidecar
from pcopy.fsio.identity import Identity
from pcopy.fsio.kernel import SMALL_FILE
from pcopy.fsio.patience import PASSING, patiently
from pcopy.fsio.problem import Problem, changed
from pcopy.signature.items import FILE, type_of
from pcopy.tasks import counts
from pcopy.tasks.context import CALL_COST, SCAN_COST, Context
from pcopy.tasks.phases import Phase
from pcopy.tasks.read_values import ReadItems
from pcopy.tasks.result import Result
from pcopy.tasks.retry import ATTEMPTS, failed_or_retried
from pcopy.tasks.targets import looked_at_again
from pcopy.tasks.values import (
    NOWHERE,
    CopyFiles,
    CopyNodes,
    LinkNote,
    Place,
    ScanDir,
    ScanNames,
    SplitFile,
    bucket_of,
    pack_names,
    pack_numbers,
    unpack_names,
)

BATCH_FILES = 256
BATCH_BYTES = 4 << 20

NAMES_PER_SLICE = 32
"""Names after each of which the rank looks up from its work."""


def scan_names(task: ScanNames, context: Context, result: Result) -> Slices:
    """A part of a large directory, or a name that is tried again (and was found before)."""
    names = unpack_names(task.names)
    place = task.place
    try:
        source = context.open_source(place)
        # No scan has looked at the directory that an item goes to.
        if (task.attempt or context.job.roots[place.root].item) and place.target_id != NOWHERE:
            place = looked_at_again(context, place)
    except Problem as problem:
        for name in names:
            result.fail(task.place, name, problem)
        if not task.attempt:
            result.count(counts.FOUND, len(names))
        return result.outcome()
    sorter = Sorter(context, result, place, task.attempt)
    for _ in sorter.sort(source, names):
        yield
    sorter.finish()
    return result.outcome()


def _look_again(source: int, name: bytes, first: OSError, follow: bool) -> os.stat_result:
    """The status of a name whose stat failed with an error that may pass; raises ``OSError``."""
    if first.errno not in PASSING:
        raise first
    return patiently(lambda: os.stat(name, dir_fd=source, follow_symlinks=follow))


def _unseen(source: int, name: bytes, error: OSError, follow: bool) -> Problem:
    """Why a name has no status: it is gone, or leads nowhere, or can't be asked for."""
    gone = error.errno == errno.ENOENT
    if gone and follow:
        try:
            os.stat(name, dir_fd=source, follow_symlinks=False)
        except OSError:
            pass  # the name itself
        else:
            return Problem("stat", errno.ENOENT, on_source=True, text="a symbolic link that leads nowhere")
    return Problem("stat", error.errno or errno.EIO, on_source=True, changed=gone)


class _Reads:
    """What is only read, in batches."""

    def __init__(self, result: Result, place: Place, attempt: int) -> None:
        self._result = result
        self._place = place
        self._attempt = attempt
        self._names: list[bytes] = []
        self._kinds = b""
        self._inodes: list[int] = []
        self._bytes = 0

    def add(self, name: bytes, status: os.stat_result) -> None:
        """One more item that is no directory. Sockets are no part of a dataset."""
        kind = type_of(status.st_mode)
        if not kind:
            self._result.count(counts.SKIPPED)
            return
        self._names.append(name)
        self._kinds += kind
        self._inodes.append(status.st_ino)
        self._bytes += status.st_size if kind == FILE else 0
        if len(self._names) >= BATCH_FILES or self._bytes >= BATCH_BYTES:
            self.spawn()

    def spawn(self) -> None:
        """Hands over what has been gathered."""
        if not self._names:
            return
        names, inodes = pack_names(self._names), pack_numbers(self._inodes)
        task = ReadItems(self._place, names, self._kinds, inodes, self._attempt, -1)
        self._result.spawn(task, self._bytes + len(self._names) * CALL_COST)
        self._names.clear()
        self._kinds = b""
        self._inodes.clear()
        self._bytes = 0


class Sorter:
    """Stats the names of one directory and sorts them into tasks."""

    def __init__(self, context: Context, result: Result, place: Place, attempt: int = 0) -> None:
        self._context = context
        self._result = result
        self._place = place
        self._attempt = attempt
        alone = len(context.job.roots) == 1 and context.job.roots[0].item
        self._links_kept = context.options.preserve.links and not alone
        self._device = context.source_device(place)
        self._mounts = context.sources[place.root].mounts
        self._mounted = context.sources[place.root].mounted
        self._files: tuple[list[bytes], list[int], list[int]] = ([], [], [])  # names, inodes, sizes
        self._files_bytes = 0
        self._nodes: tuple[list[bytes], list[int]] = ([], [])
        self._reads = _Reads(result, place, attempt) if place.target_id == NOWHERE else None
        self._links: dict[int, tuple[list[bytes], list[int], list[int], list[int]]] = {}
        self._found = 0
        self._found_bytes = 0

    def sort(self, source: int, names: Iterable[bytes]) -> Iterator[None]:
        """Takes ``names`` of the directory with the descriptor ``source``, in their order."""
        look, is_file, is_directory = os.stat, stat.S_ISREG, stat.S_ISDIR
        follow = self._context.options.dereference
        file_names, file_inodes, file_sizes = self._files
        mounted = self._mounted.names_in(self._place.path)
        for number, name in enumerate(names):
            if not number % NAMES_PER_SLICE:
                yield
            self._found += 1
            try:
                status = look(name, dir_fd=source, follow_symlinks=follow)
            except OSError as first:
                try:
                    status = _look_again(source, name, first, follow)
                except OSError as error:
                    problem = _unseen(source, name, error, follow)
                    failed_or_retried(self._result, self._place, name, problem, self._attempt, at_once=True)
                    continue
            mode = status.st_mode
            if name in mounted and not is_directory(mode):
                try:
                    self._mounted.check_file(self._path(name), source, name)
                except Problem as problem:
                    failed_or_retried(self._result, self._place, name, problem, self._attempt)
                    continue
            if name.startswith(SIDECAR) and is_file(mode):
                failed_or_retried(self._result, self._place, name, of_sidecar(), ATTEMPTS)
            elif is_directory(mode):
                self._directory(name, status)
            elif self._reads is not None:
                self._found_bytes += status.st_size if is_file(mode) else 0
                self._reads.add(name, status)
            elif status.st_nlink > 1 and self._links_kept:
                self._link(name, status)
            elif not is_file(mode):
                self._node(name, status)
            else:
                size = status.st_size
                self._found_bytes += size
                if size > SMALL_FILE or status.st_dev != self._device:
                    self._large(name, status)
                else:
                    file_names.append(name)
                    file_inodes.append(status.st_ino)
                    file_sizes.append(size)
                    self._files_bytes += size
                    if len(file_names) >= BATCH_FILES or self._files_bytes >= BATCH_BYTES:
                        self._spawn_files()

    def _directory(self, name: bytes, status: os.stat_result) -> None:
        if self._result.phase >= Phase.REPAIR:  # what is copied was no directory, and its phases are over
            problem = changed("stat", "a directory has taken its name since it was copied")
            self._result.fail(self._place, name, problem)
            return
        path = self._path(name)
        if (self._place.root, path) in self._context.job.own:
            self._found -= 1
            return
        task = ScanDir(
            self._place.root,
            path,
            Identity(self._mounts.code(path, status.st_dev, self._place.source_id.mount), status.st_ino),
            self._place,
            self._place.since,
        )
        self._result.spawn(task, SCAN_COST, expands=True)
        self._result.count(counts.UNSCANNED)

    def _path(self, name: bytes) -> bytes:
        return self._place.path + b"/" + name if self._place.path else name

    def _mount(self, name: bytes, status: os.stat_result) -> int:
        """The mount code of a file."""
        path = self._path(name) if self._context.options.dereference else b""
        return self._mounts.file_code(status.st_dev, self._place.source_id[0], path)

    def _large(self, name: bytes, status: os.stat_result) -> None:
        task = SplitFile(
            self._place,
            name,
            self._mount(name, status),
            status.st_ino,
            status.st_size,
            self._attempt,
        )
        self._result.spawn(task, status.st_size)

    def _node(self, name: bytes, status: os.stat_result) -> None:
        self._nodes[0].append(name)
        self._nodes[1].append(status.st_ino)
        if len(self._nodes[0]) >= BATCH_FILES:
            self._spawn_nodes()

    def _link(self, name: bytes, status: os.stat_result) -> None:
        """Names of one inode meet at the rank that the inode's number chooses, whichever rank finds them."""
        names, mounts, inodes, sizes = self._links.setdefault(bucket_of(status.st_ino), ([], [], [], []))
        names.append(name)
        mounts.append(self._mount(name, status))
        inodes.append(status.st_ino)
        sizes.append(status.st_size if stat.S_ISREG(status.st_mode) else 0)

    def _spawn_files(self) -> None:
        names, inodes, sizes = self._files
        task = CopyFiles(self._place, pack_names(names), pack_numbers(inodes), pack_numbers(sizes), self._attempt)
        self._result.spawn(task, self._files_bytes + len(names) * CALL_COST)
        for column in self._files:
            column.clear()
        self._files_bytes = 0

    def _spawn_nodes(self) -> None:
        names, inodes = self._nodes
        task = CopyNodes(self._place, pack_names(names), pack_numbers(inodes), self._attempt)
        self._result.spawn(task, len(names) * CALL_COST)
        for column in self._nodes:
            column.clear()

    def finish(self) -> None:
        """Spawns what is still being gathered, and counts what was found."""
        if self._files[0]:
            self._spawn_files()
        if self._nodes[0]:
            self._spawn_nodes()
        if self._reads is not None:
            self._reads.spawn()
        for bucket, (names, mounts, inodes, sizes) in self._links.items():
            note = LinkNote(
                self._place,
                pack_names(names),
                pack_numbers(mounts),
                pack_numbers(inodes),
                pack_numbers(sizes),
                self._attempt,
                bucket,
            )
            self._result.spawn(note, owner=bucket % self._context.size)
        self._links.clear()
        if not self._attempt:
            self._result.count(counts.FOUND, self._found)
            self._result.count(counts.FOUND_BYTES, self._found_bytes)
        self._found = self._found_bytes = 0
