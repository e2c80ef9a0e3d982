"""Opens directories below a root directory (the top of a source or target tree), and caches their descriptors.

A directory is reached from the root's descriptor, one name at a time, without following symbolic links. So no look-up
leaves the tree, even if another user moves a link or directory into it, and a path may be longer than PATH_MAX. If the
cache is full, the least recently used descriptor is closed. All roots share one cache, because a command line may name
many roots.
"""

from __future__ import annotations

import errno
import os
import resource
import stat
import sys
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Iterator, Mapping

from pcopy.fsio.close import close_ignoring_errors, closing_descriptor, entries_of_open_directory
from pcopy.fsio.identity import (
    FUSE_TYPE,
    OVERLAY_TYPE,
    IdentityComparison,
    ItemIdentity,
    identity_mark_of,
    may_be_on_file_system_type,
)
from pcopy.fsio.mounted import ExpectedMounts, MountRootIdentity, mount_id_of
from pcopy.fsio.mounts import LinkFollowingData, MountCodeTable
from pcopy.fsio.problem import Problem, errors_as_problem
from pcopy.fsio.retries import TRANSIENT_ERRNOS, TRANSIENT_OPEN_ERRNOS, call_with_retries
from pcopy.fsio.source import open_item_to_read, status_of_open_item

_OPEN_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
"""Flags of open(2) for directories that are read."""

_ENCODING, _ERRORS = sys.getfilesystemencoding(), sys.getfilesystemencodeerrors()

_MAX_LEVELS_UP = 1000
"""Largest number of levels between two directories of which one is opened through the other: a path of one system call
has up to 4095 bytes.
"""

MAX_CACHED_DIRECTORIES = 128
"""Largest number of descriptors cached per side (source and target); fewer if the limit of open files (RLIMIT_NOFILE)
is low.
"""

MIN_CACHED_DIRECTORIES = 4
"""Smallest number of descriptors cached per side, even if the limit of open files is very low."""

_RESERVED_DESCRIPTORS = 20
"""Descriptors that are not used for cached directories, but reserved for files of a task, records, manifests and
pipes.
"""

_DESCRIPTORS_RESERVED_FOR_TASKS = 48
"""Number of descriptors that the limit of open files must leave for the tasks that are under way if threads are used.

There are four such tasks. Each may have ``OPEN_DIRECTORIES_PER_TASK`` directories open, and two files of one item, its
source and its copy.
"""

_DESCRIPTORS_PER_THREAD = 10
"""Number of descriptors that the limit of open files must leave for each thread.

Four are for the item that the thread processes: a directory and a file on each side. Six are for half a task, because
for every two threads one more task may be under way.
"""

_CacheEntry = tuple[int, ItemIdentity]
"""The descriptor of an open directory, and the directory's identity."""

OPEN_DIRECTORIES_PER_TASK = 2 * MIN_CACHED_DIRECTORIES
"""Number of directories that stay open for a task while the task waits and other tasks run: those that it used last.

Directories of both sides count together.
"""

TaskDescriptors = OrderedDict[int, None]
"""The descriptors that stay open for one task, in the order of their last use."""


class PinnedDescriptors:
    """Counts the users of each descriptor. A descriptor that has a user is called pinned, and is not closed.

    Users are tasks, and batches of system calls in threads, which cannot be interrupted. If a descriptor were closed
    while it is in use, its number could be reused for another directory. A cache that drops a descriptor calls
    ``close_descriptor_when_unpinned`` instead of closing it.
    """

    def __init__(self) -> None:
        self._users: Counter[int] = Counter()
        self.task_descriptors: TaskDescriptors | None = None
        """The descriptors that stay open for the running task; None if no task runs."""
        self._to_close: set[int] = set()
        """Pinned descriptors that no cache contains any longer. They are closed when they are unpinned."""

    def __len__(self) -> int:
        return len(self._users)

    def pin_descriptor(self, descriptor: int) -> None:
        """Add a user of ``descriptor``."""
        self._users[descriptor] += 1

    def unpin_descriptor(self, descriptor: int) -> None:
        """Remove a user of ``descriptor``. Close the descriptor if it has no other user and no cache contains it."""
        self._users[descriptor] -= 1
        if not self._users[descriptor]:
            del self._users[descriptor]
            if descriptor in self._to_close:
                self._to_close.remove(descriptor)
                close_ignoring_errors(descriptor)

    def keep_descriptor_open_for_task(self, descriptor: int) -> None:
        """Keep ``descriptor`` open while the running task needs it, even if a cache drops it. If more than
        ``OPEN_DIRECTORIES_PER_TASK`` descriptors are kept for the task then, release the least recently used one.
        """
        if self.task_descriptors is None:
            return
        if descriptor not in self.task_descriptors:
            self.pin_descriptor(descriptor)
            self.task_descriptors[descriptor] = None
        self.task_descriptors.move_to_end(descriptor)
        if len(self.task_descriptors) > OPEN_DIRECTORIES_PER_TASK:
            self.unpin_descriptor(self.task_descriptors.popitem(last=False)[0])

    def release_descriptor_from_task(self, descriptor: int) -> None:
        """If ``descriptor`` is kept open for the running task, remove the task from its users."""
        if self.task_descriptors is not None and descriptor in self.task_descriptors:
            del self.task_descriptors[descriptor]
            self.unpin_descriptor(descriptor)

    def release_descriptors_of_task(self, descriptors: TaskDescriptors) -> None:
        """Release all ``descriptors`` that were kept open for a task, after the task has ended."""
        while descriptors:
            self.unpin_descriptor(descriptors.popitem()[0])

    def close_descriptor_when_unpinned(self, descriptor: int) -> None:
        """Close ``descriptor`` immediately, or as soon as it has no users; for use by a cache that drops it."""
        if descriptor in self._users:
            self._to_close.add(descriptor)
        else:
            close_ignoring_errors(descriptor)


def affordable_cache_capacity() -> int:
    """Return how many descriptors each side (source and target) may cache within the limit of open files."""
    available = _available_descriptors()
    return max(
        MIN_CACHED_DIRECTORIES,
        min(MAX_CACHED_DIRECTORIES, available // 4 if _thread_count(available) > 1 else available // 2),
    )


def affordable_thread_count() -> int:
    """Return how many threads of the C backend may run at the same time within the limit of open files; 0: none."""
    return _thread_count(_available_descriptors())


def _thread_count(available: int) -> int:
    """Return how many threads may run if this process may open ``available`` more files."""
    return (
        max(0, available - 2 * min(MAX_CACHED_DIRECTORIES, available // 4) - _DESCRIPTORS_RESERVED_FOR_TASKS)
        // _DESCRIPTORS_PER_THREAD
    )


def _available_descriptors() -> int:
    """Return how many more files this process may open for directories and threads: its limit, less the files that are
    open and those that are reserved for other purposes.
    """
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if limit == resource.RLIM_INFINITY:
        limit = 1 << 20
    try:
        used = len(os.listdir("/proc/self/fd"))
    except OSError:  # /proc is not mounted, or no descriptor is left to open it
        used = _RESERVED_DESCRIPTORS
    return max(0, limit - used - _RESERVED_DESCRIPTORS)


OpenedDirectory = tuple[int, int, int, bytes]
"""An open directory: its descriptor, st_dev, inode number and identity mark.

The mark distinguishes the directory from a later one with the same inode number; it is made for an item that this job
may have created (``identity_mark_of`` in ``pcopy.fsio.identity`` with ``created_by_job=True``). It may be empty.
"""

DirectoryOpener = Callable[[int, bytes, int, bool], OpenedDirectory | None]
"""Type of the function by which a backend opens and identifies a directory in one C call.

Its arguments are the descriptor of the parent directory, a name, flags of open(2), and True if the identity mark is
needed. It returns None if it did not open the directory, for whatever reason; then the Python code of this module opens
it.
"""


def decline_to_open_directory(parent: int, name: bytes, flags: int, wants_mark: bool) -> OpenedDirectory | None:
    """Return None. This ``DirectoryOpener`` is for a backend that cannot open directories in C: the Python code of this
    module opens every directory.
    """
    return None


class DirectoryCache:
    """A cache of open directories. The key is (number of the root directory, path relative to it).

    Adding a directory may close another one, the least recently used, unless a task or thread is using it
    (``PinnedDescriptors``).
    """

    def __init__(
        self,
        capacity: int = MAX_CACHED_DIRECTORIES,
        pins: PinnedDescriptors | None = None,
        fast_opener: DirectoryOpener = decline_to_open_directory,
    ) -> None:
        """Create an empty cache.

        Args:
            capacity: largest number of descriptors in the cache.
            pins: counts the users of each descriptor; several caches may share it. None: the cache creates one.
            fast_opener: function of the backend that opens a directory in one C call.
        """
        self.open_fast = fast_opener
        self._capacity = capacity
        self.pins = pins if pins is not None else PinnedDescriptors()
        self._entries: OrderedDict[tuple[int, bytes], _CacheEntry] = OrderedDict()

    def get(self, base: int, path: bytes) -> _CacheEntry | None:
        """Return the descriptor and identity of the directory with the relative ``path`` below the root number
        ``base``, and count it as recently used. Return None if it is not in the cache.
        """
        entry = self._entries.get((base, path))
        if entry is not None:
            self._entries.move_to_end((base, path))
        return entry

    def add(self, base: int, path: bytes, entry: _CacheEntry) -> None:
        """Add the directory with the relative ``path`` below the root number ``base``; ``entry`` is its descriptor and
        identity. If the cache is full, drop the least recently used directory.
        """
        self._entries[base, path] = entry
        while len(self._entries) > self._capacity:
            self.pins.close_descriptor_when_unpinned(self._entries.popitem(last=False)[1][0])

    def discard_directory(self, base: int, path: bytes) -> None:
        """Drop the directory with the relative ``path`` below the root number ``base`` from the cache, and close its
        descriptor as soon as no other task or thread uses it.
        """
        entry = self._entries.pop((base, path), None)
        if entry is not None:
            self.pins.release_descriptor_from_task(entry[0])
            self.pins.close_descriptor_when_unpinned(entry[0])

    def close(self) -> None:
        """Drop all directories from the cache. A descriptor that is in use is closed when its last user releases it."""
        while self._entries:
            self.pins.close_descriptor_when_unpinned(self._entries.popitem()[1][0])


class DirectoriesBelowRoot:
    """Opens directories below the root directory ``base`` (a descriptor), by paths relative to it; the path ``b""`` is
    ``base`` itself. A cache keeps the directories open.
    """

    def __init__(
        self,
        base: int,
        code: int,
        *,
        on_source: bool,
        cache: DirectoryCache | None = None,
        root_number: int = 0,
        followed_links: LinkFollowingData | None = None,
        expected_mounts: Mapping[bytes, MountRootIdentity] | None = None,
        one_host: bool = True,
    ) -> None:
        """Store the arguments; nothing is opened yet.

        Args:
            base: descriptor of the root directory.
            code: mount code of the root, a number for its file system that is the same on all hosts
                (``pcopy.fsio.mounts``).
            on_source: True if the directories belong to the source.
            cache: the cache of open directories, which several roots may share.
            root_number: identifies ``base`` among the roots that share ``cache``.
            followed_links: data for mount codes, given only if symbolic links are followed (``-L``, source side only).
            expected_mounts: the mounts that must exist below ``base``, by path; no others are allowed. None: mounts are
                not checked.
            one_host: True if no other host works with this root.
        """
        self._base = base
        self._root_number = root_number
        self.mount_codes = MountCodeTable(code, os.fstat(base).st_dev, followed_links)
        self._checks_mounts = expected_mounts is not None
        self.expected_mounts = ExpectedMounts(base, expected_mounts or {}, on_source=on_source, one_host=one_host)
        self._on_source = on_source
        self._follows_links = followed_links is not None
        self._flags = _OPEN_FLAGS if followed_links is None else _OPEN_FLAGS & ~os.O_NOFOLLOW
        self._cache = cache if cache is not None else DirectoryCache()
        self._last = b""
        """Path of the directory that was opened last."""
        self._devices_with_other_inodes: set[int | None] = set()
        """The st_dev of file systems whose listings show other inode numbers than stat(2)."""
        self.preserves_atime = on_source
        """True if directories are opened with O_NOATIME where that is permitted, so that listing does not change access
        times.
        """

    def open(self, path: bytes, identity: ItemIdentity | None = None) -> int:
        """Return the descriptor of the directory ``path``.

        The descriptor still belongs to the cache. It stays open until the running task has opened
        ``OPEN_DIRECTORIES_PER_TASK`` other directories. Raise ``Problem`` if ``path`` is no directory, or if it is
        certainly not the directory with ``identity`` (None: any).
        """
        if (
            identity is not None
            and path
            and self._last.startswith(path + b"/")
            and not (self._follows_links or self.expected_mounts.has_any_expected_mount)
        ):
            self._open_from_below(path, identity, self._last)
        entry = self._cached_or_opened_directory(path)
        if identity is not None and identity.compare_with_identity(entry[1]) is IdentityComparison.OTHER:
            self.discard_directory(path)
            raise Problem("open", errno.ESTALE, on_source=self._on_source, text="the directory was replaced meanwhile")
        self._cache.pins.keep_descriptor_open_for_task(entry[0])
        self._last = path
        return entry[0]

    def open_parent(self, path: bytes, identity: ItemIdentity, child: bytes) -> int:
        """Return the descriptor of the directory ``path``, which contains the directory ``child`` (a path), as ``open``
        does. If only ``child`` is in the cache, the directory is opened through it.
        """
        if path:
            self._open_from_below(path, identity, child)
        return self.open(path, identity)

    def _open_from_below(self, path: bytes, identity: ItemIdentity, below: bytes) -> None:
        """Open the directory ``path`` through the cached directory ``below``, which lies below it, and add it to the
        cache, so that the cost does not depend on the depth. Do nothing if ``path`` is in the cache.

        The result is used only if it is the directory with ``identity``, on the mount of ``below``: that one may have
        been moved.
        """
        root, levels = self._root_number, below.count(b"/", len(path))
        start = self._cache.get(root, below)
        if start is None or levels > _MAX_LEVELS_UP or self._cache.get(root, path) is not None:
            return
        try:
            opened = self._open_child_directory(start[0], b"/".join([b".."] * levels))
        except OSError:
            return
        try:
            status = os.fstat(opened)
            mark = b"" if self._on_source else identity_mark_of(opened, created_by_job=True)
            found = ItemIdentity(identity.mount_code, status.st_ino, mark)
            is_same = (
                status.st_ino == identity.inode
                and status.st_dev == self.mount_codes.device_of_mount_code(identity.mount_code)
                and mount_id_of(opened) == mount_id_of(start[0])
                and identity.compare_with_identity(found) is not IdentityComparison.OTHER
            )
        except OSError:
            is_same = False
        if is_same:
            self._cache.add(root, path, (opened, found))
        else:
            close_ignoring_errors(opened)

    def _cached_or_opened_directory(self, path: bytes) -> _CacheEntry:
        """Return descriptor and identity of the directory ``path``, from the cache or, if it is not cached, by opening
        it. Raise ``Problem``.
        """
        return self._cache.get(self._root_number, path) or self._open_path(path)

    def _open_path(self, path: bytes) -> _CacheEntry:
        """Open the directory ``path``, starting from the nearest cached directory above it, and add each directory on
        the way to the cache. Return its descriptor and identity. Raise ``Problem``.
        """
        prefix, above = path, None
        while prefix and above is None:
            prefix = prefix.rpartition(b"/")[0]
            above = self._cache.get(self._root_number, prefix) if prefix else None
        at, code = (above[0], above[1].mount_code) if above else (self._base, self.mount_codes.root_code)
        if not path:
            return self._add_to_cache(path, self._reopen_root_directory(at), code)
        for name in path[len(prefix) :].strip(b"/").split(b"/"):
            child = prefix + b"/" + name if prefix else name
            if (opened := self._open_directory_by_backend(child, at, name, code)) is not None:
                prefix, entry = child, opened
                at = entry[0]
                continue
            try:
                entered = self._open_child_directory_with_retries(at, name)
            except OSError as error:
                is_missing = self._on_source and error.errno == errno.ENOENT
                number = error.errno or errno.EIO
                raise Problem("open", number, on_source=self._on_source, changed=is_missing) from error
            prefix = child
            entry = self._add_to_cache(prefix, entered, code)
            at, code = entered, entry[1].mount_code
        return entry

    def _open_directory_by_backend(self, path: bytes, at: int, name: bytes, parent_code: int) -> _CacheEntry | None:
        """Open the directory ``path`` by the backend's function for that, in one C call. Return its descriptor and
        identity; return None, with nothing left open, if that is not possible or if a file system is mounted at the
        directory.

        Args:
            path: path of the directory below the root.
            at: descriptor of the parent directory.
            name: name in the parent directory.
            parent_code: mount code of the parent directory, a number for its file system.
        """
        if path in self.expected_mounts:
            return None
        flags = self._flags | os.O_NOATIME if self.preserves_atime else self._flags
        opened = self._cache.open_fast(at, name, flags, not self._on_source)
        if opened is None:
            return None
        descriptor, device, inode, mark = opened
        if device != self.mount_codes.device_of_mount_code(parent_code):  # a mount point: the slow path checks it
            close_ignoring_errors(descriptor)
            return None
        entry = descriptor, ItemIdentity(parent_code, inode, mark)
        self._cache.add(self._root_number, path, entry)
        return entry

    def _reopen_root_directory(self, base: int) -> int:
        """Open the root directory once more, and return a descriptor with a file offset of its own.

        The descriptor ``base`` may share its file offset with other roots and with forked ranks. Listing the directory
        through it would move that offset.
        """
        try:
            return self._open_child_directory_with_retries(base, b".")
        except OSError as error:
            if error.errno != errno.EACCES:
                raise Problem.from_error("open", error, on_source=self._on_source) from error
        with errors_as_problem("dup", on_source=self._on_source):
            return os.dup(base)  # readable but not searchable: its names can still be listed

    def _open_child_directory_with_retries(self, at: int, name: bytes) -> int:
        """Open the directory ``name`` in the open directory ``at``, and return its descriptor; try again after errors
        that may be transient. Raise ``OSError``.
        """
        return call_with_retries(
            lambda: self._open_child_directory(at, name), TRANSIENT_ERRNOS if self._on_source else TRANSIENT_OPEN_ERRNOS
        )

    def _open_child_directory(self, at: int, name: bytes) -> int:
        """Open the directory ``name`` in the open directory ``at``, and return its descriptor. If the directory may not
        be read, the descriptor is an O_PATH one. Raise ``OSError``.
        """
        extra = os.O_NOATIME if self.preserves_atime else 0
        try:
            return os.open(name, self._flags | extra, dir_fd=at)
        except PermissionError as error:
            if error.errno == errno.EPERM and extra:  # only the owner may use O_NOATIME
                return os.open(name, self._flags, dir_fd=at)
            # A directory that is searchable but not readable still leads to the directories below it.
            return os.open(name, self._flags | os.O_PATH, dir_fd=at)

    def _add_to_cache(self, path: bytes, descriptor: int, parent_code: int) -> _CacheEntry:
        """Add the newly opened directory ``path`` to the cache, and return its entry: descriptor and identity.
        ``parent_code`` is the mount code of its parent directory. Close the descriptor and raise ``Problem`` if the
        status of the directory cannot be read.

        Only directories of the target get an identity mark: in a source, only its owner could forge an identity.
        """
        try:
            status = status_of_open_item(descriptor, on_source=self._on_source)
            outside = self.mount_codes.device_of_mount_code(parent_code)
            if self._checks_mounts:
                self.expected_mounts.check_item_is_on_expected_mount(path, descriptor, status, outside)
            is_within = status.st_dev == outside
            label = (
                b""
                if is_within
                else self.expected_mounts.host_independent_file_system_id(path, descriptor, status.st_dev)
            )
        except Problem:
            close_ignoring_errors(descriptor)
            raise
        mark = b"" if self._on_source else identity_mark_of(descriptor, created_by_job=True)
        entry = (
            descriptor,
            ItemIdentity(
                self.mount_codes.mount_code_of_directory(path, status.st_dev, parent_code, label), status.st_ino, mark
            ),
        )
        self._cache.add(self._root_number, path, entry)
        return entry

    def identity_of_directory(self, path: bytes, *, created_by_job: bool = True) -> ItemIdentity:
        """Return the identity of the directory ``path``: mount code, inode number and mark. Raise ``Problem``. A
        directory of the source gets no mark.

        ``created_by_job``: False if the directory may be older than this job. On an overlay file system such a
        directory gets no mark, because the first write to it would change the mark.
        """
        descriptor, identity = self._cached_or_opened_directory(path)
        return (
            identity if created_by_job else identity._replace(mark=identity_mark_of(descriptor, created_by_job=False))
        )

    def identity_of_listed_directory(
        self, path: bytes, inode: int, parent_code: int, *, accepts_mounts: bool = False
    ) -> ItemIdentity:
        """Return the identity of the directory ``path``, which a listing of its parent shows with the inode number
        ``inode``. The caller compares or stores it to recognise the directory later.

        If stat(2) shows another inode number than ``inode``, the directory is accepted in these cases only:
        - It is on another file system than its parent, or the job knows of a mount at ``path``.
        - It is another mount of the parent's file system, and ``accepts_mounts`` is True.
        - Listings on this file system show other inode numbers than stat(2).

        Raise ``Problem``, with ESTALE if another directory has taken the name since it was listed.

        Args:
            inode: the inode number in the listing.
            parent_code: mount code of the parent.
            accepts_mounts: True if another mount of the parent's file system (a bind mount) at ``path`` is accepted.
        """
        identity = self.identity_of_directory(path)
        is_expected = identity.inode == inode or identity.mount_code != parent_code or path in self.expected_mounts
        if not (
            is_expected
            or (
                accepts_mounts
                if self._is_on_other_mount_than_parent(path)
                else self._do_listings_show_other_inodes(path, inode)
            )
        ):
            self.discard_directory(path)
            raise Problem("open", errno.ESTALE, on_source=self._on_source, text="the directory was replaced meanwhile")
        return identity

    def _is_on_other_mount_than_parent(self, path: bytes) -> bool:
        """Return True if ``path`` lies on another mount than its parent, perhaps a mount of the same file system."""
        with errors_as_problem("statx", on_source=self._on_source):
            return mount_id_of(self._cached_or_opened_directory(path)[0]) != mount_id_of(
                self._cached_or_opened_directory(path.rpartition(b"/")[0])[0]
            )

    def _do_listings_show_other_inodes(self, path: bytes, inode: int) -> bool:
        """Return True if listings show other inode numbers than stat(2) on the file system of ``path``.

        ``path`` was listed with ``inode``, and stat(2) shows another number. The result is True on FUSE and on
        overlays. On other file systems, such as exports of a server, it is True if the directory still lists the name
        with ``inode``. A result of True is remembered for the whole file system.
        """
        above, _, name = path.rpartition(b"/")
        parent, identity = self._cached_or_opened_directory(above)
        device = self.mount_codes.device_of_mount_code(identity.mount_code)
        if device in self._devices_with_other_inodes:
            return True
        differ = may_be_on_file_system_type(FUSE_TYPE, parent) or may_be_on_file_system_type(OVERLAY_TYPE, parent)
        if not differ:
            with (
                errors_as_problem("readdir", on_source=self._on_source),
                closing_descriptor(self._open_child_directory_with_retries(parent, b".")) as listed,
                entries_of_open_directory(listed) as entries,
            ):
                differ = any(os.fsencode(each.name) == name and each.inode() == inode for each in entries)
        if differ:
            self._devices_with_other_inodes.add(device)
        return differ

    def ancestors(self, path: bytes) -> Iterator[tuple[bytes, ItemIdentity]]:
        """Generator: yield (path, identity) of each directory above ``path``, from the root directory down; raise
        ``Problem``.
        """
        names = path.split(b"/")
        for depth in range(len(names)):
            above = b"/".join(names[:depth])
            yield above, self.identity_of_directory(above)

    def discard_directory(self, path: bytes) -> None:
        """Drop the directory ``path`` from the cache, and close it as soon as no task or thread uses it."""
        self._cache.discard_directory(self._root_number, path)

    def close(self) -> None:
        """Close all cached directories, including those of other roots that share the cache, but not the root
        directories.
        """
        self._cache.close()


def list_names_in_directory(source: int) -> Iterator[bytes]:
    """Generator: yield the names in the open directory ``source`` of a source tree. Raise ``Problem``, at the first
    name or later.
    """
    for entry in list_directory_entries(source):
        yield entry.name.encode(_ENCODING, _ERRORS)


def list_directory_entries(directory: int) -> Iterator[os.DirEntry[str]]:
    """Generator: yield the entries of an open ``directory`` of a source tree. Raise ``Problem``, at the first entry or
    later.
    """
    try:
        with entries_of_open_directory(directory) as entries:
            yield from entries
    except OSError as error:
        raise listing_problem(error.errno or errno.EIO) from error


def listing_problem(number: int) -> Problem:
    """Return the error of a source directory that cannot be listed. ``number`` is the errno.

    EBADF means that the directory is open for searching only (O_PATH), because it may not be read.
    """
    if number == errno.EBADF:
        return Problem("open", errno.EACCES, on_source=True)
    return Problem("readdir", number, on_source=True)


def is_directory_empty(parent: int | None, name: bytes) -> bool:
    """Return True if a directory is empty; raise ``Problem``. ``parent`` is the descriptor of its parent directory and
    ``name`` its name there; if ``parent`` is None, ``name`` is a path.
    """
    with (
        errors_as_problem("open"),
        closing_descriptor(open_item_to_read(parent, name)) as directory,
        os.scandir(directory) as entries,
    ):
        return next(entries, None) is None


def entry_count(directory: int, *, counts_sockets: bool) -> int:
    """Return the number of entries of an open directory; raise ``OSError``.

    Args:
        counts_sockets: False if sockets are not counted, because they do not count as part of a dataset.
    """
    with entries_of_open_directory(directory) as entries:
        if not counts_sockets:
            return sum(not _is_socket(entry) for entry in entries)
        last = deque(enumerate(entries, 1), maxlen=1)
        return last[0][0] if last else 0


def _is_socket(entry: os.DirEntry[str]) -> bool:
    """Return True if a directory entry is a socket."""
    if entry.is_file(follow_symlinks=False) or entry.is_dir(follow_symlinks=False) or entry.is_symlink():
        return False  # known from the directory (d_type), without a call of stat(2)
    return stat.S_ISSOCK(entry.stat(follow_symlinks=False).st_mode)
