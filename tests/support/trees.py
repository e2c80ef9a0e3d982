"""Random trees: the same seed creates the same tree; each seed has another mix of everything that a tree can
contain.
"""

from __future__ import annotations

import os
import random
import stat
from pathlib import Path

from tests.support.attributes import (
    ACCESS_ACL,
    CAPABILITY,
    DEFAULT_ACL,
    NET_RAW,
    acl,
    has_acls,
    has_xattrs,
)

MIB = 1 << 20
EDGES = (0, 1, 4095, 4096, 4097, 65536, MIB - 1, MIB, 4 * MIB - 1, 4 * MIB, 4 * MIB + 1)
"""Sizes at which copy programs change their method."""

TIMES = (0, -1, -86400 * 365 * 30 - 1, 2**31 - 1, 2**31, 2**31 + 86400 * 365 * 20, 1_000_000_000, 1_700_000_000)
"""Times in seconds: before 1970, around 2038, and usual ones, all in the range of ext4 and XFS."""

FILE_MODES = (0o644, 0o600, 0o444, 0o400, 0o755, 0o777, 0o640, 0o4755, 0o2755, 0o6711, 0o1644)
CLOSED_FILE_MODES = (0o000, 0o200, 0o111)
DIRECTORY_MODES = (0o755, 0o700, 0o555, 0o500, 0o1777, 0o2775, 0o711, 0o770)
CLOSED_DIRECTORY_MODES = (0o000, 0o333)
OWNERS = (0, 1, 1000, 65534, 3_000_000_000)
ALPHABET = b"abcXYZ019 ._-\n\t*?[\\'\"\xff\xc3\xa9"


def random_tree(
    path: str | os.PathLike[str],
    seed: int,
    *,
    files: int = 150,
    directories: int = 25,
    largest: int = 12 * MIB,
    privileged: bool = False,
) -> None:
    """Create a new tree at ``path``. ``privileged`` adds items that only root can create or read."""
    _Grower(Path(path), seed, privileged).grow(files, directories, largest)


class _Grower:
    """Creates names first and then metadata, leaves first: modes would block access, and writing changes times."""

    def __init__(self, root: Path, seed: int, privileged: bool) -> None:
        self._random = random.Random(seed)
        self._privileged = privileged
        self._root = os.fsencode(root)
        self._directories = [self._root]
        self._files: list[bytes] = []
        self._others: list[bytes] = []
        os.mkdir(self._root)
        self._xattrs = has_xattrs(self._root)
        self._acls = has_acls(self._root)

    def grow(self, files: int, directories: int, largest: int) -> None:
        for _ in range(directories):
            path = self._new_name()
            os.mkdir(path)
            self._directories.append(path)
        for _ in range(files):
            self._add_file(self._size(largest))
        self._add_file(largest)
        for _ in range(files // 8):
            self._add_symlink()
        for _ in range(files // 8):
            self._add_link()
        for _ in range(4):
            self._add_special()
        for path in self._files + self._others + self._directories[::-1]:
            self._set_metadata(path)

    def _new_name(self) -> bytes:
        length = self._random.choice((1, 3, 8, 8, 20, 200))
        name = self._letters(length)
        # The number makes the name unique, even if case is ignored.
        return os.path.join(self._random.choice(self._directories), name + b"%d" % self._random.getrandbits(40))

    def _letters(self, number: int) -> bytes:
        """Return the letters that ``choice`` would draw one by one, in a third of the time."""
        draw, most = self._random.getrandbits, len(ALPHABET)
        bits, letters = most.bit_length(), bytearray()
        while len(letters) < number:
            if (at := draw(bits)) < most:
                letters.append(ALPHABET[at])
        return bytes(letters)

    def _size(self, largest: int) -> int:
        kind = self._random.random()
        if kind < 0.15:
            return min(self._random.choice(EDGES), largest)
        return min(self._random.randrange(1 << self._random.randrange(1, 18)), largest)

    def _add_file(self, size: int) -> None:
        path = self._new_name()
        with open(path, "xb") as file:
            if size > 3 * MIB and self._random.random() < 0.5:
                file.seek(size - MIB)  # starts with a hole
                size = MIB
            file.write(self._random.randbytes(size))
        self._files.append(path)

    def _add_symlink(self) -> None:
        target = self._random.choice(
            (b"nowhere", b"..", b".", b"/", b"/etc/passwd", b"../../../..", self._random.choice(self._directories),
             os.path.basename(self._random.choice(self._files)), self._random.choice(self._files), b"loop", b"\xff\n")
        )  # fmt: skip
        path = self._new_name()
        os.symlink(target, path)
        self._others.append(path)

    def _add_link(self) -> None:
        candidates = self._files if self._random.random() < 0.8 else self._others
        os.link(self._random.choice(candidates), self._new_name(), follow_symlinks=False)

    def _add_special(self) -> None:
        path = self._new_name()
        kinds = [stat.S_IFIFO, stat.S_IFSOCK]
        if self._privileged:
            kinds += [stat.S_IFCHR, stat.S_IFBLK]
        kind = self._random.choice(kinds)
        device = os.makedev(self._random.randrange(512), self._random.randrange(1 << 18))  # the range of XFS
        os.mknod(path, kind | 0o600, device if kind in (stat.S_IFCHR, stat.S_IFBLK) else 0)
        self._others.append(path)

    def _set_metadata(self, path: bytes) -> None:
        """Set metadata in an order in which no call undoes another: chown clears set-id bits and capabilities."""
        mode = os.lstat(path).st_mode
        link, directory, file = stat.S_ISLNK(mode), stat.S_ISDIR(mode), stat.S_ISREG(mode)
        if self._privileged and self._random.random() < 0.5:
            os.chown(path, self._random.choice(OWNERS), self._random.choice(OWNERS), follow_symlinks=False)
        if self._xattrs and self._random.random() < 0.2:
            self._add_xattrs(path, file or directory)
        if not link:
            if self._acls and self._random.random() < 0.15:
                self._add_acls(path, directory)
            os.chmod(path, self._mode(directory))
            if file and self._privileged and self._random.random() < 0.1:
                os.setxattr(path, CAPABILITY, NET_RAW)
        os.utime(path, ns=(self._time(), self._time()), follow_symlinks=False)

    def _mode(self, directory: bool) -> int:
        modes: tuple[int, ...] = DIRECTORY_MODES if directory else FILE_MODES
        if self._privileged:
            modes += CLOSED_DIRECTORY_MODES if directory else CLOSED_FILE_MODES
        # Half of the items have ordinary modes.
        return self._random.choice(modes) if self._random.random() < 0.5 else modes[0]

    def _add_xattrs(self, path: bytes, user: bool) -> None:
        for number in range(self._random.randrange(1, 4)):
            value = self._random.randbytes(self._random.choice((0, 1, 30, 400)))
            if user:
                os.setxattr(path, f"user.random-{number}", value)
            if self._privileged:
                os.setxattr(path, f"trusted.random-{number}", value, follow_symlinks=False)

    def _add_acls(self, path: bytes, directory: bool) -> None:
        os.setxattr(path, ACCESS_ACL, acl(7, 5, 0, {1: 4, 1000: 6}, {5: 1}))
        if directory:
            os.setxattr(path, DEFAULT_ACL, acl(7, self._random.randrange(8), 0, {1: 7}))

    def _time(self) -> int:
        """A time in nanoseconds since 1970, rarely whole seconds."""
        nanoseconds = self._random.choice((0, 1, 999_999_999, self._random.randrange(10**9)))
        return self._random.choice(TIMES) * 10**9 + nanoseconds
