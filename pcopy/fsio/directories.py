"""Open directories below one root.

A directory is reached by walking down from the root's descriptor one name at a time, never following a symbolic link,
so that no look-up leaves the tree whatever lies in it or is swapped into it, and so that the joined path may be longer
than PATH_MAX. Descriptors are kept and given back in the order of their last use; all roots share one bound, because
there may be as many roots as a command line has room for.
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

_ENCODING, _ERRORS = sys.getfilesystemencoding(), sys.getfilesystemencodeerrors()

CAPACITY = 128
"""Descriptors kept per side, where the limit of open files allows that."""

LEAST = 4
"""The least capacity, however few files may be open."""

_SPARE = 20
"""Descriptors that are left for all else: the files of a task, of a journal, of a manifest, and pipes."""

_OF_TASKS = 48
"""Descriptors of the tasks that are under way as soon as there are threads: of four, each with ``HELD`` directories and
the two files of an item."""

_OF_THREAD = 10
"""Descriptors for each thread: those of a row, two directories and two files, and of half a task."""

_Entry = tuple[int, Identity]  # a descriptor and what it is

HELD = 2 * LEAST
"""So many directories, of both sides together, that a task has opened last stay open while other tasks run."""

Held = OrderedDict[int, None]
"""What one task holds: descriptors, in the order of their last use."""


class Pins:
    """Descriptors that somebody works with who may not be interrupted: none of them is closed before he is done.

    Its number would mean another directory from then on. Whoever keeps descriptors gives them back by ``let_go``.
    """

    def __init__(self) -> None:
        self._users: Counter[int] = Counter()
        self.held: Held | None = None
        """What the task that runs now holds."""
        self._left: set[int] = set()
        """Pinned descriptors that nobody keeps any more."""

    def __len__(self) -> int:
        return len(self._users)

    def pin(self, descriptor: int) -> None:
        """Once for each who works with it."""
        self._users[descriptor] += 1

    def unpin(self, descriptor: int) -> None:
        """He is done, and if he was the last, and nobody keeps it, it is closed."""
        self._users[descriptor] -= 1
        if not self._users[descriptor]:
            del self._users[descriptor]
            if descriptor in self._left:
                self._left.remove(descriptor)
                let_go(descriptor)

    def hold(self, descriptor: int) -> None:
        """The task that runs now works with it."""
        if self.held is None:
            return
        if descriptor not in self.held:
            self.pin(descriptor)
            self.held[descriptor] = None
        self.held.move_to_end(descriptor)
        if len(self.held) > HELD:
            self.unpin(self.held.popitem(last=False)[0])

    def drop(self, descriptor: int) -> None:
        """The task that runs now does not work with it any more."""
        if self.held is not None and descriptor in self.held:
            del self.held[descriptor]
            self.unpin(descriptor)

    def release(self, held: Held) -> None:
        """The task that holds these is over."""
        while held:
            self.unpin(held.popitem()[0])

    def let_go(self, descriptor: int) -> None:
        """Closes it, at once or as soon as nobody works with it."""
        if descriptor in self._users:
            self._left.add(descriptor)
        else:
            let_go(descriptor)


def affordable() -> int:
    """The capacity for each of two sides that the limit of open files leaves to this process."""
    left = _left()
    return max(LEAST, min(CAPACITY, left // 4 if _threads_of(left) > 1 else left // 2))


def affordable_threads() -> int:
    """Return how many threads of the kernel may work at a time within the limit of open files."""
    return _threads_of(_left())


def _threads_of(left: int) -> int:
    return max(0, left - 2 * min(CAPACITY, left // 4) - _OF_TASKS) // _OF_THREAD


def _left() -> int:
    """Return how many more files this process may open, less ``_SPARE``."""
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if limit == resource.RLIM_INFINITY:
        limit = 1 << 20
    try:
        used = len(os.listdir("/proc/self/fd"))
    except OSError:  # there is no /proc, or no descriptor left to look at it
        used = _SPARE
    return max(0, limit - used - _SPARE)


Opened = tuple[int, int, int, bytes]
"""A descriptor, its st_dev and inode, and the mark (``pcopy.fsio.identity``) of what this job has made."""

Opener = Callable[[int, bytes, int, bool], Opened | None]
"""Opens a name in an open directory with flags of open(2), and tells the mark if that is wanted; None if it did not,
for whatever reason: then it is opened with more care."""


def nothing(around: int, name: bytes, flags: int, wants_mark: bool) -> Opened | None:
    """An ``Opener`` that opens nothing."""
    return None


class OpenDirectories:
    """The descriptors that are kept, by base and path. The next walk may close any that is not in ``pins``."""

    def __init__(self, capacity: int = CAPACITY, pins: Pins | None = None, open_plain: Opener = nothing) -> None:
        """``open_plain`` does the plain case, quickly."""
        self.open_plain = open_plain
        self._capacity = capacity
        self.pins = pins if pins is not None else Pins()
        self._entries: OrderedDict[tuple[int, bytes], _Entry] = OrderedDict()

    def get(self, base: int, path: bytes) -> _Entry | None:
        """What is kept of ``path``, which is in use again."""
        entry = self._entries.get((base, path))
        if entry is not None:
            self._entries.move_to_end((base, path))
        return entry

    def keep(self, base: int, path: bytes, entry: _Entry) -> None:
        """From now on the descriptor is kept here, and the one that was used longest ago may be closed."""
        self._entries[base, path] = entry
        while len(self._entries) > self._capacity:
            self.pins.let_go(self._entries.popitem(last=False)[1][0])

    def forget(self, base: int, path: bytes) -> None:
        """Closes it if it is open: the task that runs now does not work with it any more."""
        entry = self._entries.pop((base, path), None)
        if entry is not None:
            self.pins.drop(entry[0])
            self.pins.let_go(entry[0])

    def close(self) -> None:
        """Closes all."""
        while self._entries:
            self.pins.let_go(self._entries.popitem()[1][0])


class Directories:
    """Directories below ``base`` (a descriptor), named by paths relative to it; ``b""`` is ``base`` itself.

    ``number`` sets it apart from others that share ``kept``.
    """

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
        """``followed``: symbolic links are followed. Never on the target's side. ``mounted``: what has to be mounted
        below ``base``, by path, and nothing else; None: whatever is. ``one_host``: no other host works with it."""
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
        """Are they opened to be listed, without a change of their access times where that is allowed?"""

    def open(self, path: bytes, identity: Identity | None = None) -> int:
        """A descriptor of ``path``, which stays ours, and open until the task that runs has opened ``HELD`` others.

        Raises ``Problem`` if it is no directory, or not the one with ``identity``, as far as that can be told.
        """
        entry = self._entry(path)
        if identity is not None and identity.compare(entry[1]) is Likeness.OTHER:
            self.forget(path)
            raise Problem("open", errno.ESTALE, on_source=self._on_source, text="the directory was replaced meanwhile")
        self._kept.pins.hold(entry[0])
        return entry[0]

    def _entry(self, path: bytes) -> _Entry:
        return self._kept.get(self._number, path) or self._walk(path)

    def _walk(self, path: bytes) -> _Entry:
        """Opens ``path``, from the nearest directory above it that is open already."""
        known, above = path, None
        while known and above is None:
            known = known.rpartition(b"/")[0]
            above = self._kept.get(self._number, known) if known else None
        at, code = (above[0], above[1].mount) if above else (self._base, self.mounts.base)
        if not path:
            return self._keep(path, self._open_again(at), code)
        for name in path[len(known) :].strip(b"/").split(b"/"):
            below = known + b"/" + name if known else name
            if (plain := self._open_plain(below, at, name, code)) is not None:
                known, entry = below, plain
                at = entry[0]
                continue
            try:
                entered = self._enter_patiently(at, name)
            except OSError as error:
                gone = self._on_source and error.errno == errno.ENOENT
                number = error.errno or errno.EIO
                raise Problem("open", number, on_source=self._on_source, changed=gone) from error
            known = below
            entry = self._keep(known, entered, code)
            at, code = entered, entry[1].mount
        return entry

    def _open_plain(self, path: bytes, at: int, name: bytes, around: int) -> _Entry | None:
        """A directory in which nothing is mounted; None if it is not plain, and nothing is open then."""
        if path in self.mounted:
            return None
        flags = self._flags | os.O_NOATIME if self.keeps_atime else self._flags
        opened = self._kept.open_plain(at, name, flags, not self._on_source)
        if opened is None:
            return None
        descriptor, device, inode, mark = opened
        if device != self.mounts.device(around):
            let_go(descriptor)
            return None
        entry = descriptor, Identity(around, inode, mark)
        self._kept.keep(self._number, path, entry)
        return entry

    def _open_again(self, base: int) -> int:
        """The base, with a position of its own for who reads its names: the base's is that of other roots and ranks."""
        try:
            return self._enter_patiently(base, b".")
        except OSError as error:
            if error.errno != errno.EACCES:
                raise Problem.of("open", error, on_source=self._on_source) from error
        with failing("dup", on_source=self._on_source):
            return os.dup(base)  # it may be read and not be searched: its names are all that can be had of it

    def _enter_patiently(self, at: int, name: bytes) -> int:
        return patiently(lambda: self._enter(at, name), PASSING if self._on_source else STALE)

    def _enter(self, at: int, name: bytes) -> int:
        extra = os.O_NOATIME if self.keeps_atime else 0
        try:
            return os.open(name, self._flags | extra, dir_fd=at)
        except PermissionError as error:
            if error.errno == errno.EPERM and extra:  # O_NOATIME is for owners
                return os.open(name, self._flags, dir_fd=at)
            # A directory that may be searched and not read still leads on to those below it.
            return os.open(name, self._flags | os.O_PATH, dir_fd=at)

    def _keep(self, path: bytes, descriptor: int, around: int) -> _Entry:
        """The directory that was just opened; it is closed if its status can't be told: raises ``Problem``.

        Only what is written to has a mark: a source is nobody's to forge but its owner's.
        """
        try:
            status = status_of(descriptor, on_source=self._on_source)
            outside = self.mounts.device(around)
            if self._checks:
                self.mounted.check(path, descriptor, status, outside)
            is_within = status.st_dev == outside
            label = b"" if is_within else self.mounted.label(path, descriptor, status.st_dev)
        except Problem:
            let_go(descriptor)
            raise
        mark = b"" if self._on_source else mark_of(descriptor, made=True)
        entry = descriptor, Identity(self.mounts.code(path, status.st_dev, around, label), status.st_ino, mark)
        self._kept.keep(self._number, path, entry)
        return entry

    def identity(self, path: bytes, *, made: bool = True) -> Identity:
        """Which directory ``path`` is; raises ``Problem``. On the source's side it has no mark.

        ``made`` as in ``pcopy.fsio.identity``.
        """
        descriptor, identity = self._entry(path)
        return identity if made else identity._replace(mark=mark_of(descriptor, made=False))

    def listed_identity(self, path: bytes, inode: int, around: int, *, mounts: bool = False) -> Identity:
        """Return the identity of the directory ``path``, which the directory above it has listed with ``inode``.

        ``around`` is the mount code of the directory above. What is mounted at ``path`` is returned as it is if it is
        of another file system, or known to the job, or with ``mounts``. Raises ``Problem``, with ESTALE if another
        directory has taken the name since it was listed. Where listings show other inode numbers than stat(2),
        whichever directory has the name is returned.
        """
        identity = self.identity(path)
        is_plain = identity.inode == inode or identity.mount != around or path in self.mounted
        if not (is_plain or (mounts if self._is_mount(path) else self._lists_other_inodes(path, inode))):
            self.forget(path)
            raise Problem("open", errno.ESTALE, on_source=self._on_source, text="the directory was replaced meanwhile")
        return identity

    def _is_mount(self, path: bytes) -> bool:
        """True if ``path`` lies on another mount than the directory above it, perhaps of the same file system."""
        with failing("statx", on_source=self._on_source):
            return mount_number(self._entry(path)[0]) != mount_number(self._entry(path.rpartition(b"/")[0])[0])

    def _lists_other_inodes(self, path: bytes, inode: int) -> bool:
        """True if listings show other inode numbers than stat(2) where ``path`` lies, which was listed with ``inode``
        and has another number.

        On FUSE and on overlays they may. Elsewhere (file systems that a server exports) they do if the name is still
        listed with ``inode``. The answer is kept per file system; ordinary ones are never examined.
        """
        above, _, name = path.rpartition(b"/")
        around, identity = self._entry(above)
        device = self.mounts.device(identity.mount)
        if device in self._inodes_differ:
            return True
        differ = lies_on(FUSE, around) or lies_on(OVERLAY, around)
        if not differ:
            with (
                failing("readdir", on_source=self._on_source),
                held_open(self._enter_patiently(around, b".")) as listed,
                entries_of(listed) as entries,
            ):
                differ = any(os.fsencode(each.name) == name and each.inode() == inode for each in entries)
        if differ:
            self._inodes_differ.add(device)
        return differ

    def above(self, path: bytes) -> Iterator[tuple[bytes, Identity]]:
        """All directories above ``path``, from the base on, with their identities; raises ``Problem``."""
        names = path.split(b"/")
        for depth in range(len(names)):
            above = b"/".join(names[:depth])
            yield above, self.identity(above)

    def forget(self, path: bytes) -> None:
        """Closes ``path`` if it is open."""
        self._kept.forget(self._number, path)

    def close(self) -> None:
        """Closes all that is kept, of those too that share it, but no base."""
        self._kept.close()


def list_names(source: int) -> Iterator[bytes]:
    """The names in an open directory of the source; raises ``Problem``, at the first name or later."""
    for entry in list_entries(source):
        yield entry.name.encode(_ENCODING, _ERRORS)


def list_entries(directory: int) -> Iterator[os.DirEntry[str]]:
    """What an open directory of the source holds; raises ``Problem``, at the first entry or later."""
    try:
        with entries_of(directory) as entries:
            yield from entries
    except OSError as error:
        raise listing_problem(error.errno or errno.EIO) from error


def listing_problem(number: int) -> Problem:
    """Why a directory of the source can't be listed. EBADF: it could be opened for searching only."""
    if number == errno.EBADF:
        return Problem("open", errno.EACCES, on_source=True)
    return Problem("readdir", number, on_source=True)


def is_empty(around: int | None, name: bytes) -> bool:
    """Is nothing in the directory ``name`` of either side? Raises ``Problem``."""
    with failing("open"), held_open(open_to_read(around, name)) as directory, os.scandir(directory) as entries:
        return next(entries, None) is None


def count_entries(directory: int, *, sockets: bool) -> int:
    """How many names an open directory has; without ``sockets``, those of a dataset. Raises ``OSError``."""
    with entries_of(directory) as entries:
        if not sockets:
            return sum(not _is_socket(entry) for entry in entries)
        last = deque(enumerate(entries, 1), maxlen=1)
        return last[0][0] if last else 0


def _is_socket(entry: os.DirEntry[str]) -> bool:
    if entry.is_file(follow_symlinks=False) or entry.is_dir(follow_symlinks=False) or entry.is_symlink():
        return False  # which the directory tells, and no look at the item itself
    return stat.S_ISSOCK(entry.stat(follow_symlinks=False).st_mode)
