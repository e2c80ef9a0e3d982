"""Open directories below one root.

A directory is reached from the root's descriptor, one name at a time, without following symbolic links. So no look-up
leaves the tree, whatever lies in it or is moved into it, and the joined path may be longer than PATH_MAX. Descriptors
are cached; the least recently used one is closed first. All roots share one cache, because there may be as many roots
as the command line has room for.
"""

from __future__ import annotations

import errno
import os
import resource
import stat
import sys
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Iterator, Mapping

from pcopy.fsio.close import entries_of, held_open, let_go
from pcopy.fsio.identity import FUSE, OVERLAY, Identity, Likeness, lies_on, mark_of
from pcopy.fsio.mounted import Mounted, MountRoot, mount_number
from pcopy.fsio.mounts import Followed, Mounts
from pcopy.fsio.patience import PASSING, STALE, patiently
from pcopy.fsio.problem import Problem, failing
from pcopy.fsio.source import open_to_read, status_of

_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
"""Flags of open(2) for directories that are read."""

_ENCODING, _ERRORS = sys.getfilesystemencoding(), sys.getfilesystemencodeerrors()

CAPACITY = 128
"""Number of descriptors cached per side (source and target), if the limit of open files allows it."""

LEAST = 4
"""Number of descriptors cached per side at least, whatever the limit of open files."""

_SPARE = 20
"""Descriptors reserved for everything else: the files of a task, of a journal, of a manifest, and pipes."""

_OF_TASKS = 48
"""Descriptors reserved for the tasks that are under way if threads are used.

There are four such tasks, each with ``HELD`` directories and the two files of an item.
"""

_OF_THREAD = 10
"""Descriptors reserved for each thread: two directories and two files of the row it works on, and half of a task's."""

_Entry = tuple[int, Identity]
"""The descriptor of an open directory, and the directory's identity."""

HELD = 2 * LEAST
"""Number of directories that stay open for a task while other tasks run: those that it opened last.

Directories of both sides count together.
"""

Held = OrderedDict[int, None]
"""The descriptors that stay open for one task, in the order of their last use."""


class Pins:
    """Counts the users of descriptors; one that is in use (pinned) is not closed.

    Users are tasks, and threads that cannot be interrupted. If a descriptor were closed while it is in use, its number
    could be reused for another directory. A cache that drops a descriptor calls ``let_go`` instead of closing it.
    """

    def __init__(self) -> None:
        self._users: Counter[int] = Counter()
        self.held: Held | None = None
        """The descriptors that stay open for the running task; None if no task runs."""
        self._left: set[int] = set()
        """Pinned descriptors that no cache contains any longer. They are closed when they are unpinned."""

    def __len__(self) -> int:
        return len(self._users)

    def pin(self, descriptor: int) -> None:
        """Add a user of ``descriptor``."""
        self._users[descriptor] += 1

    def unpin(self, descriptor: int) -> None:
        """Remove a user of ``descriptor``. Close it if this was the last one and no cache contains it."""
        self._users[descriptor] -= 1
        if not self._users[descriptor]:
            del self._users[descriptor]
            if descriptor in self._left:
                self._left.remove(descriptor)
                let_go(descriptor)

    def hold(self, descriptor: int) -> None:
        """Keep ``descriptor`` open for the running task. Of more than ``HELD``, release the least recently used one."""
        if self.held is None:
            return
        if descriptor not in self.held:
            self.pin(descriptor)
            self.held[descriptor] = None
        self.held.move_to_end(descriptor)
        if len(self.held) > HELD:
            self.unpin(self.held.popitem(last=False)[0])

    def drop(self, descriptor: int) -> None:
        """Release ``descriptor`` if it is kept open for the running task."""
        if self.held is not None and descriptor in self.held:
            del self.held[descriptor]
            self.unpin(descriptor)

    def release(self, descriptors: Held) -> None:
        """Release all descriptors that are kept open for a task, which has ended."""
        while descriptors:
            self.unpin(descriptors.popitem()[0])

    def let_go(self, descriptor: int) -> None:
        """Close ``descriptor``, immediately or as soon as it is not pinned."""
        if descriptor in self._users:
            self._left.add(descriptor)
        else:
            let_go(descriptor)


def affordable() -> int:
    """Return the number of descriptors that may be cached for each of two sides, within the limit of open files."""
    available = _left()
    return max(LEAST, min(CAPACITY, available // 4 if _threads_of(available) > 1 else available // 2))


def affordable_threads() -> int:
    """Return how many threads of the C backend may work at a time within the limit of open files."""
    return _threads_of(_left())


def _threads_of(available: int) -> int:
    """Return the number of threads if this process may open ``available`` more files."""
    return max(0, available - 2 * min(CAPACITY, available // 4) - _OF_TASKS) // _OF_THREAD


def _left() -> int:
    """Return how many more files this process may open, less those reserved (``_SPARE``)."""
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if limit == resource.RLIM_INFINITY:
        limit = 1 << 20
    try:
        used = len(os.listdir("/proc/self/fd"))
    except OSError:  # /proc is not mounted, or no descriptor is left to open it
        used = _SPARE
    return max(0, limit - used - _SPARE)


Opened = tuple[int, int, int, bytes]
"""An open directory: its descriptor, st_dev, inode number and identity mark.

The mark (``pcopy.fsio.identity``) is that of an item that this job created.
"""

Opener = Callable[[int, bytes, int, bool], Opened | None]
"""A function that opens a directory on the fast path.

It takes the descriptor of the parent directory, a name, flags of open(2), and True if the mark is needed. It returns
None if it did not open the directory, for whatever reason; then the slow path opens it.
"""


def nothing(parent: int, name: bytes, flags: int, wants_mark: bool) -> Opened | None:
    """Return None: an ``Opener`` that leaves every directory to the slow path."""
    return None


class OpenDirectories:
    """A cache of open directories, by the number of their base and their path.

    The next look-up may close any descriptor that is not pinned.
    """

    def __init__(self, capacity: int = CAPACITY, pins: Pins | None = None, open_plain: Opener = nothing) -> None:
        """Create an empty cache.

        Args:
            capacity: number of descriptors at most.
            pins: the users of descriptors, which several caches may share.
            open_plain: opens directories on the fast path.
        """
        self.open_plain = open_plain
        self._capacity = capacity
        self.pins = pins if pins is not None else Pins()
        self._entries: OrderedDict[tuple[int, bytes], _Entry] = OrderedDict()

    def get(self, base: int, path: bytes) -> _Entry | None:
        """Return the cached directory ``path`` and mark it as recently used; None if it is not cached."""
        entry = self._entries.get((base, path))
        if entry is not None:
            self._entries.move_to_end((base, path))
        return entry

    def keep(self, base: int, path: bytes, entry: _Entry) -> None:
        """Add a directory to the cache, and drop the least recently used one if the cache is full."""
        self._entries[base, path] = entry
        while len(self._entries) > self._capacity:
            self.pins.let_go(self._entries.popitem(last=False)[1][0])

    def forget(self, base: int, path: bytes) -> None:
        """Drop ``path`` from the cache and close it, unless another task or a thread uses it."""
        entry = self._entries.pop((base, path), None)
        if entry is not None:
            self.pins.drop(entry[0])
            self.pins.let_go(entry[0])

    def close(self) -> None:
        """Drop all directories from the cache."""
        while self._entries:
            self.pins.let_go(self._entries.popitem()[1][0])


class Directories:
    """The directories below ``base`` (a descriptor), by paths relative to it; the path ``b""`` is ``base`` itself."""

    def __init__(
        self,
        base: int,
        code: int,
        *,
        on_source: bool,
        kept: OpenDirectories | None = None,
        number: int = 0,
        followed: Followed | None = None,
        mounted: Mapping[bytes, MountRoot] | None = None,
        one_host: bool = True,
    ) -> None:
        """Open nothing yet.

        Args:
            base: descriptor of the root directory.
            code: its mount code.
            on_source: True if the directories belong to the source.
            kept: the cache of open directories, which several roots may share.
            number: identifies ``base`` among the roots that share ``kept``.
            followed: given if symbolic links are followed, which is never so on the target's side.
            mounted: the mounts that must exist below ``base``, by path; no others are allowed. None: mounts are not
                checked.
            one_host: True if no other host works with this root.
        """
        self._base = base
        self._number = number
        self.mounts = Mounts(code, os.fstat(base).st_dev, followed)
        self._checks = mounted is not None
        self.mounted = Mounted(base, mounted or {}, on_source=on_source, one_host=one_host)
        self._on_source = on_source
        self._flags = _FLAGS if followed is None else _FLAGS & ~os.O_NOFOLLOW
        self._kept = kept if kept is not None else OpenDirectories()
        self._inodes_differ: set[int | None] = set()
        """The st_dev of file systems whose listings show other inode numbers than stat(2)."""
        self.keeps_atime = on_source
        """True if directories are opened with O_NOATIME where that is permitted, so that listing does not change access
        times.
        """

    def open(self, path: bytes, identity: Identity | None = None) -> int:
        """Return the descriptor of the directory ``path``.

        The descriptor still belongs to the cache. It stays open until the running task has opened ``HELD`` other
        directories. Raise ``Problem`` if ``path`` is no directory, or not the one with ``identity``, as far as that can
        be determined.
        """
        entry = self._entry(path)
        if identity is not None and identity.compare(entry[1]) is Likeness.OTHER:
            self.forget(path)
            raise Problem("open", errno.ESTALE, on_source=self._on_source, text="the directory was replaced meanwhile")
        self._kept.pins.hold(entry[0])
        return entry[0]

    def _entry(self, path: bytes) -> _Entry:
        """Return the entry of ``path`` from the cache; open the directory if it is not cached."""
        return self._kept.get(self._number, path) or self._walk(path)

    def _walk(self, path: bytes) -> _Entry:
        """Open ``path``, starting from the nearest cached directory above it."""
        prefix, above = path, None
        while prefix and above is None:
            prefix = prefix.rpartition(b"/")[0]
            above = self._kept.get(self._number, prefix) if prefix else None
        at, code = (above[0], above[1].mount) if above else (self._base, self.mounts.base)
        if not path:
            return self._keep(path, self._open_again(at), code)
        for name in path[len(prefix) :].strip(b"/").split(b"/"):
            child = prefix + b"/" + name if prefix else name
            if (opened := self._open_plain(child, at, name, code)) is not None:
                prefix, entry = child, opened
                at = entry[0]
                continue
            try:
                entered = self._enter_patiently(at, name)
            except OSError as error:
                is_missing = self._on_source and error.errno == errno.ENOENT
                number = error.errno or errno.EIO
                raise Problem("open", number, on_source=self._on_source, changed=is_missing) from error
            prefix = child
            entry = self._keep(prefix, entered, code)
            at, code = entered, entry[1].mount
        return entry

    def _open_plain(self, path: bytes, at: int, name: bytes, parent_code: int) -> _Entry | None:
        """Open a directory on the fast path; return None if that is not possible, and leave nothing open.

        The fast path is for a directory at which no file system is mounted. ``parent_code`` is the mount code of its
        parent.
        """
        if path in self.mounted:
            return None
        flags = self._flags | os.O_NOATIME if self.keeps_atime else self._flags
        opened = self._kept.open_plain(at, name, flags, not self._on_source)
        if opened is None:
            return None
        descriptor, device, inode, mark = opened
        if device != self.mounts.device(parent_code):  # a mount point: the slow path checks it
            let_go(descriptor)
            return None
        entry = descriptor, Identity(parent_code, inode, mark)
        self._kept.keep(self._number, path, entry)
        return entry

    def _open_again(self, base: int) -> int:
        """Open the base once more, so that it gets a file offset of its own.

        Other roots and ranks share the offset of the base, and reading its names would move it.
        """
        try:
            return self._enter_patiently(base, b".")
        except OSError as error:
            if error.errno != errno.EACCES:
                raise Problem.of("open", error, on_source=self._on_source) from error
        with failing("dup", on_source=self._on_source):
            return os.dup(base)  # readable but not searchable: the names of its entries can still be read

    def _enter_patiently(self, at: int, name: bytes) -> int:
        """Open ``name`` in an open directory; try again after errors that may be transient."""
        return patiently(lambda: self._enter(at, name), PASSING if self._on_source else STALE)

    def _enter(self, at: int, name: bytes) -> int:
        """Open ``name`` in an open directory; raise ``OSError``."""
        extra = os.O_NOATIME if self.keeps_atime else 0
        try:
            return os.open(name, self._flags | extra, dir_fd=at)
        except PermissionError as error:
            if error.errno == errno.EPERM and extra:  # only the owner may use O_NOATIME
                return os.open(name, self._flags, dir_fd=at)
            # A directory that is searchable but not readable still leads to the directories below it.
            return os.open(name, self._flags | os.O_PATH, dir_fd=at)

    def _keep(self, path: bytes, descriptor: int, parent_code: int) -> _Entry:
        """Add a newly opened directory to the cache; close it and raise ``Problem`` if its status cannot be read.

        Only directories of the target get a mark: of a source, nobody but its owner could forge an identity.
        """
        try:
            status = status_of(descriptor, on_source=self._on_source)
            outside = self.mounts.device(parent_code)
            if self._checks:
                self.mounted.check(path, descriptor, status, outside)
            is_within = status.st_dev == outside
            label = b"" if is_within else self.mounted.label(path, descriptor, status.st_dev)
        except Problem:
            let_go(descriptor)
            raise
        mark = b"" if self._on_source else mark_of(descriptor, made=True)
        entry = descriptor, Identity(self.mounts.code(path, status.st_dev, parent_code, label), status.st_ino, mark)
        self._kept.keep(self._number, path, entry)
        return entry

    def identity(self, path: bytes, *, made: bool = True) -> Identity:
        """Return the identity of the directory ``path``; raise ``Problem``. On the source's side it has no mark.

        ``made`` as in ``pcopy.fsio.identity.mark_of``: False if the directory may be older than this job.
        """
        descriptor, identity = self._entry(path)
        return identity if made else identity._replace(mark=mark_of(descriptor, made=False))

    def listed_identity(self, path: bytes, inode: int, parent_code: int, *, mounts: bool = False) -> Identity:
        """Return the identity of the directory ``path``, which was listed in its parent with the number ``inode``.

        If its inode number is another one now, it is accepted in these cases only:
        - It is on another file system than its parent, or the job knows of a mount at ``path``.
        - It is another mount of the parent's file system, and ``mounts`` is True.
        - Listings on this file system show other inode numbers than stat(2).

        Raise ``Problem``, with ESTALE if another directory has taken the name since it was listed.

        Args:
            inode: the inode number in the listing.
            parent_code: mount code of the parent.
            mounts: accept other mounts of the parent's file system.
        """
        identity = self.identity(path)
        is_expected = identity.inode == inode or identity.mount != parent_code or path in self.mounted
        if not (is_expected or (mounts if self._is_mount(path) else self._lists_other_inodes(path, inode))):
            self.forget(path)
            raise Problem("open", errno.ESTALE, on_source=self._on_source, text="the directory was replaced meanwhile")
        return identity

    def _is_mount(self, path: bytes) -> bool:
        """Return True if ``path`` lies on another mount than its parent, perhaps a mount of the same file system."""
        with failing("statx", on_source=self._on_source):
            return mount_number(self._entry(path)[0]) != mount_number(self._entry(path.rpartition(b"/")[0])[0])

    def _lists_other_inodes(self, path: bytes, inode: int) -> bool:
        """Return True if listings show other inode numbers than stat(2) on the file system of ``path``.

        ``path`` was listed with ``inode`` and has another number. On FUSE and on overlays, the answer is True. On other
        file systems, such as those that a server exports, it is True if the name is still listed with ``inode``. The
        answer is kept per file system. File systems on which no number differs are never examined.
        """
        above, _, name = path.rpartition(b"/")
        parent, identity = self._entry(above)
        device = self.mounts.device(identity.mount)
        if device in self._inodes_differ:
            return True
        differ = lies_on(FUSE, parent) or lies_on(OVERLAY, parent)
        if not differ:
            with (
                failing("readdir", on_source=self._on_source),
                held_open(self._enter_patiently(parent, b".")) as listed,
                entries_of(listed) as entries,
            ):
                differ = any(os.fsencode(each.name) == name and each.inode() == inode for each in entries)
        if differ:
            self._inodes_differ.add(device)
        return differ

    def above(self, path: bytes) -> Iterator[tuple[bytes, Identity]]:
        """Yield all directories above ``path``, from the base on, with their identities; raise ``Problem``."""
        names = path.split(b"/")
        for depth in range(len(names)):
            above = b"/".join(names[:depth])
            yield above, self.identity(above)

    def forget(self, path: bytes) -> None:
        """Drop ``path`` from the cache and close it."""
        self._kept.forget(self._number, path)

    def close(self) -> None:
        """Close all cached directories, including those of other roots that share the cache, but not the bases."""
        self._kept.close()


def list_names(source: int) -> Iterator[bytes]:
    """Yield the names in an open directory of the source; raise ``Problem``, at the first name or later."""
    for entry in list_entries(source):
        yield entry.name.encode(_ENCODING, _ERRORS)


def list_entries(directory: int) -> Iterator[os.DirEntry[str]]:
    """Yield the entries of an open directory of the source; raise ``Problem``, at the first entry or later."""
    try:
        with entries_of(directory) as entries:
            yield from entries
    except OSError as error:
        raise listing_problem(error.errno or errno.EIO) from error


def listing_problem(number: int) -> Problem:
    """Return the problem of a directory of the source that cannot be listed, from its errno.

    EBADF means that the directory is open for searching only (O_PATH), because it may not be read.
    """
    if number == errno.EBADF:
        return Problem("open", errno.EACCES, on_source=True)
    return Problem("readdir", number, on_source=True)


def is_empty(parent: int | None, name: bytes) -> bool:
    """Return True if the directory ``name`` of either side is empty; raise ``Problem``."""
    with failing("open"), held_open(open_to_read(parent, name)) as directory, os.scandir(directory) as entries:
        return next(entries, None) is None


def count_entries(directory: int, *, sockets: bool) -> int:
    """Return the number of entries of an open directory; raise ``OSError``.

    Args:
        sockets: False if sockets are not counted, since they are no part of a dataset.
    """
    with entries_of(directory) as entries:
        if not sockets:
            return sum(not _is_socket(entry) for entry in entries)
        last = deque(enumerate(entries, 1), maxlen=1)
        return last[0][0] if last else 0


def _is_socket(entry: os.DirEntry[str]) -> bool:
    """Return True if a directory entry is a socket."""
    if entry.is_file(follow_symlinks=False) or entry.is_dir(follow_symlinks=False) or entry.is_symlink():
        return False  # known from the directory (d_type), without a call of stat(2)
    return stat.S_ISSOCK(entry.stat(follow_symlinks=False).st_mode)
