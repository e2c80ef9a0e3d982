"""A tree of everything that copy programs are known to get wrong, with one function for each kind of problem.

The cases come from failures of dcp, fcp, cp and rsync; each docstring says what is lost.
"""

from __future__ import annotations

import functools
import os
import stat
from collections.abc import Callable
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
from tests.support.files import noise

KIB, MIB = 1 << 10, 1 << 20
DEPTH, LENGTH = 30, 200
"""Levels, and bytes of each name: the joined path has one and a half times PATH_MAX."""


def hostile_tree(path: str | os.PathLike[str], *, privileged: bool = False, xattr_bytes: int = 2500) -> None:
    """Create the tree at ``path``. ``privileged`` adds items that only root can create or read.

    ``xattr_bytes`` is the size of the largest extended attribute: ext4 stores about 4,000 in all, XFS 65,536.
    """
    root = Path(path)
    root.mkdir()
    makers: list[Callable[[Path], None]] = [
        hard_links, sparse_files, odd_names, symlinks, odd_times, set_id, deep, sockets_and_fifos, empty,
    ]  # fmt: skip
    if has_acls(os.fsencode(root)):
        makers += [default_acls, unwritable_default_acl]
    if has_xattrs(os.fsencode(root)):
        makers += [functools.partial(xattrs, largest=xattr_bytes)]
    if privileged:
        makers += [devices, owners]
        if has_xattrs(os.fsencode(root)):
            makers += [capabilities, trusted_xattrs]
    for number, maker in enumerate(makers):
        place = root / f"{number:02}-{getattr(maker, '__name__', 'xattrs')}"
        place.mkdir()
        maker(place)
    closed_directories(root / "closed", privileged)
    for place in root.iterdir():
        os.utime(place, ns=(1_111_111_111_111_111_111, 1_222_222_222_222_222_222))


def hard_links(place: Path) -> None:
    """Names in different directories become separate files. Symbolic links and FIFOs can have hard links, too."""
    for name in ("a", "b", "b/c"):
        (place / name).mkdir()
    (place / "a/one").write_bytes(b"shared")
    (place / "a/large").write_bytes(noise(5 * MIB))
    (place / "a/alone").write_bytes(b"not shared")
    os.symlink("one", place / "a/symlink")
    os.mkfifo(place / "a/fifo")
    for name in ("one", "large", "symlink", "fifo"):
        os.link(place / "a" / name, place / "b" / name, follow_symlinks=False)
        os.link(place / "a" / name, place / "b/c" / (name + "-again"), follow_symlinks=False)
    for number in range(20):
        os.link(place / "a/one", place / f"many-{number}")


def sparse_files(place: Path) -> None:
    """Holes are filled, and a file of terabytes no longer fits."""
    shapes: dict[str, tuple[int, tuple[int, ...]]] = {
        "all-hole": (MIB, ()),
        "small-hole-first": (16 * KIB, (12 * KIB,)),
        "small-hole-last": (16 * KIB, (0,)),
        "small-hole-between": (16 * KIB, (0, 12 * KIB)),
        "odd-end": (5 * MIB + 123, (MIB,)),
        "large-all-hole": (64 * MIB + 1, ()),
        "large-hole-first": (64 * MIB, (60 * MIB,)),
        "large-hole-last": (64 * MIB, (0, MIB)),
        "large-islands": (96 * MIB, tuple(range(0, 96 * MIB, 7 * MIB))),
    }
    for name, (size, islands) in shapes.items():
        with open(place / name, "wb") as file:
            file.truncate(size)
            for offset in islands:
                file.seek(offset)
                file.write(b"island at %d" % offset)


def odd_names(place: Path) -> None:
    """Names are arbitrary bytes and must not be treated as lines, options, patterns or text of a character set."""
    names = [
        b"line\nbreak", b"new\r\n", b"tab\there", b"\x01\x7f", b"\xff\xfe not UTF-8", b"caf\xc3\xa9", b"cafe\xcc\x81",
        b"-rf", b"--delete", b"back\\slash", b"\\", b"*", b"[a]", b"?", b"'", b'"', b"$HOME", b"~", b"#x", b"%s%n",
        b":x", b"a:b", b"{}", b" ", b" leading", b"trailing ", b"...", b"..x", b".hidden", b".pcopy-not-ours",
        b"a" * 255, b"\xff" * 255,
    ]  # fmt: skip
    for name in names:
        path = os.path.join(os.fsencode(place), name)
        with open(path, "wb") as file:
            file.write(name)
    for name in (b"directory\n", b"-n", b"\xfe" * 255):
        path = os.path.join(os.fsencode(place), b"in " + name if len(name) < 200 else name[:-1] + b"d")
        os.mkdir(path)
        with open(os.path.join(path, name), "wb") as file:
            file.write(b"x")


def symlinks(place: Path) -> None:
    """Symbolic links have to be copied, never followed and never resolved, whatever they refer to."""
    (place / "directory").mkdir()
    (place / "directory/file").write_bytes(b"x")
    targets = {
        "to-file": b"directory/file",
        "to-directory": b"directory",
        "to-directory-slash": b"directory/",
        "dangling": b"no such thing",
        "absolute": b"/etc/passwd",
        "absolute-directory": b"/usr",
        "above": b"../../../../../../../../etc",
        "to-itself": b"to-itself",
        "loop-1": b"loop-2",
        "loop-2": b"loop-1",
        "dot": b".",
        "dot-dot": b"..",
        "bytes": b"\xff\xfe\n-x",
        "long": b"x/" * 500,  # XFS stores 1,023 bytes
        "slashes": b"///directory//file",
    }
    for name, target in targets.items():
        os.symlink(target, os.fsencode(place / name))
    for number, name in enumerate(targets):
        os.utime(place / name, ns=(5, 1_000_000_000 * number + number), follow_symlinks=False)


def odd_times(place: Path) -> None:
    """Before 1970, after 2038, and nanoseconds."""
    for number, seconds in enumerate((-(2**31) + 86400, -86400, -1, 0, 1, 2**31 - 1, 2**31, 2**32, 2**33)):
        for nanoseconds in (0, 1, 999_999_999):
            path = place / f"{number}-{nanoseconds}"
            path.write_bytes(b"x")
            stamp = seconds * 10**9 + nanoseconds
            os.utime(path, ns=(stamp + 7, stamp))
    (place / "directory").mkdir()
    os.utime(place / "directory", ns=(-5, -(10**9) - 1))


def set_id(place: Path) -> None:
    """Set-gid directories pass the bit on to new subdirectories that should not have it; chown clears it on files."""
    shared = place / "set-gid"
    shared.mkdir()
    (shared / "plain-directory").mkdir()
    (shared / "file").write_bytes(b"x")
    shared.chmod(0o2775)
    (shared / "set-gid-too").mkdir()
    (shared / "set-gid-too").chmod(0o2755)
    for mode in (0o4755, 0o2755, 0o6755, 0o6711, 0o4000 | 0o600, 0o2644, 0o1644):
        path = place / f"{mode:o}"
        path.write_bytes(b"x")
        path.chmod(mode)
    (place / "sticky").mkdir()
    (place / "sticky").chmod(0o1777)


def deep(place: Path) -> None:
    """Joined paths are too long for any system call."""
    descriptor = os.open(place, os.O_RDONLY | os.O_DIRECTORY)
    for level in range(DEPTH):
        name = f"{level:02}-".ljust(LENGTH, "d")
        os.mkdir(name, dir_fd=descriptor)
        below = os.open(name, os.O_RDONLY | os.O_DIRECTORY, dir_fd=descriptor)
        os.close(descriptor)
        descriptor = below
        file = os.open(f"file-{level}", os.O_CREAT | os.O_WRONLY, 0o640, dir_fd=descriptor)
        os.write(file, b"at level %d" % level)
        os.close(file)
    os.symlink("dangling", "symlink", dir_fd=descriptor)
    os.link("file-29", "hard link", src_dir_fd=descriptor, dst_dir_fd=descriptor)
    os.mkfifo("fifo", dir_fd=descriptor)
    large = os.open("large", os.O_CREAT | os.O_WRONLY, 0o600, dir_fd=descriptor)
    os.write(large, b"x" * (5 * MIB))
    os.close(large)
    os.close(descriptor)


def sockets_and_fifos(place: Path) -> None:
    """Opening a FIFO blocks; skipping it loses it."""
    os.mkfifo(place / "fifo", 0o640)
    os.mknod(place / "socket", stat.S_IFSOCK | 0o751)
    for name in ("fifo", "socket"):
        os.utime(place / name, ns=(3, 4_000_000_005))


def empty(place: Path) -> None:
    (place / "directory").mkdir()
    (place / "file").touch()


def default_acls(place: Path) -> None:
    """Items without an ACL must not inherit one in the copy, where the directory is created before them."""
    for name in ("directory", "set-gid"):
        inside = place / name
        inside.mkdir()
        (inside / "plain").write_bytes(b"x")
        (inside / "plain-directory").mkdir()
        (inside / "plain-directory/file").write_bytes(b"x")
        (inside / "large").write_bytes(b"x" * (5 * MIB))
        os.mkfifo(inside / "fifo")
        os.setxattr(inside, DEFAULT_ACL, acl(7, 7, 7, {1000: 7}, {1000: 7}))
        (inside / "inheriting").mkdir()
        (inside / "inheriting-file").write_bytes(b"x")
        (inside / "both").write_bytes(b"x")
        os.setxattr(inside / "both", ACCESS_ACL, acl(6, 4, 0, {2: 6, 3: 0}, {4: 1}))
    (place / "set-gid").chmod(0o2770)


def unwritable_default_acl(place: Path) -> None:
    """A default ACL gives the owner no permissions: new subdirectories cannot be filled before it is removed."""
    inside = place / "directory"
    (inside / "sub/subsub").mkdir(parents=True)
    (inside / "sub/subsub/file").write_bytes(b"x")
    (inside / "sub/file").write_bytes(b"x")
    for path in (inside / "sub/subsub", inside / "sub", inside):
        os.setxattr(path, DEFAULT_ACL, acl(0, 0, 0, {}))


def xattrs(place: Path, largest: int) -> None:
    """Large, many, empty and binary attributes, on files and on directories."""
    (place / "directory").mkdir()
    for name in ("big", "many", "read-only"):
        (place / name).write_bytes(b"x")
    os.setxattr(place / "big", "user.big", os.urandom(largest))
    os.setxattr(place / "directory", "user.big", os.urandom(largest))
    for number in range(40):
        os.setxattr(place / "many", f"user.{number}", bytes([number, 0, 255]))
    os.setxattr(place / "many", "user.empty", b"")
    os.setxattr(place / "many", "user." + "n" * 240, b"long name")
    os.setxattr(place / "read-only", "user.x", b"set before the mode is")
    (place / "read-only").chmod(0o444)


def devices(place: Path) -> None:
    os.mknod(place / "character", stat.S_IFCHR | 0o620, os.makedev(1, 3))
    os.mknod(place / "block", stat.S_IFBLK | 0o660, os.makedev(259, 70000))
    os.chown(place / "character", 1000, 5)


def owners(place: Path) -> None:
    """chown clears set-id bits; symbolic links have owners, too."""
    for mode in (0o644, 0o4755, 0o2755, 0o6755):
        path = place / f"{mode:o}"
        path.write_bytes(b"x")
        os.chown(path, 1000, 1001)
        path.chmod(mode)
    os.symlink("nowhere", place / "symlink")
    os.chown(place / "symlink", 1000, 3_000_000_000, follow_symlinks=False)
    (place / "directory").mkdir()
    os.chown(place / "directory", 65534, 1000)
    (place / "directory").chmod(0o2770)
    (place / "directory/others").write_bytes(b"x")
    os.chown(place / "directory/others", 2, 3)
    (place / "unreadable").write_bytes(b"x")
    (place / "unreadable").chmod(0)


def capabilities(place: Path) -> None:
    """chown removes capabilities that were set before."""
    for owner in (0, 1000):
        path = place / f"of-{owner}"
        path.write_bytes(b"x")
        os.chown(path, owner, owner)
        os.setxattr(path, CAPABILITY, NET_RAW)
        path.chmod(0o755)


def trusted_xattrs(place: Path) -> None:
    """Symbolic links and FIFOs can have these, but cannot be opened to set them."""
    os.symlink("nowhere", place / "symlink")
    os.mkfifo(place / "fifo")
    (place / "file").write_bytes(b"x")
    (place / "directory").mkdir()
    for name in ("symlink", "fifo", "file", "directory"):
        os.setxattr(place / name, "trusted.test", name.encode(), follow_symlinks=False)


def closed_directories(place: Path, privileged: bool) -> None:
    """Nested directories with contents that their owner cannot write to."""
    modes = [0o555, 0o500] + ([0o000, 0o111] if privileged else [])
    inside = place
    inside.mkdir()
    made = []
    for mode in modes:
        inside = inside / f"{mode:04o}"
        inside.mkdir()
        (inside / "file").write_bytes(b"x")
        (inside / "directory").mkdir()
        (inside / "large").write_bytes(b"x" * (5 * MIB))
        made.append((inside, mode))
    for directory, mode in reversed(made):
        directory.chmod(mode)
        os.utime(directory, ns=(1, 2))
