"""Small trees with one item, called ``victim``, whose operations fail. All other items must be copied."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tests.support.command import Argument
from tests.support.walk import walk

VICTIM = "victim"
OTHER = "victim's other name"
"""The other name of a hard-linked victim. The file system determines which name comes first."""

LARGE = (4 << 20) + 70_000
"""Size in bytes of a file that is split, if there are two ranks and ``CHUNKS``."""

CHUNKS = ("--chunk-size", "512K", "--block-size", "64K")
OLD = b"old content"


def _nothing(target: Path) -> None:
    """Leave the target missing before the run."""


@dataclass(frozen=True, slots=True)
class World:
    """``make`` creates the victim in the directory ``room`` of the source; ``prepare`` creates the target before the
    run."""

    make: Callable[[Path], None]
    prepare: Callable[[Path], None] = _nothing
    ranks: int = 1
    arguments: tuple[Argument, ...] = ()
    only_victim: bool = False
    """True if all other items exist in the target and are skipped: then no other item is created or written."""

    def build(self, source: Path) -> None:
        """Create the source tree; sizes and contents differ between files."""
        for number, name in enumerate(("plain/one", "plain/two", "room/before", "room/last")):
            path = source / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(name.encode() * (number + 10))
            if name == "room/before":
                self.make(source / "room" / VICTIM)
        (source / "plain/empty").mkdir()
        for path in (source / "plain", source / "room", source):
            os.utime(path, (1_000_000_000, 1_100_000_000))

    def prepare_target(self, source: Path, target: Path) -> None:
        if self.only_victim:
            (target / "room").mkdir(parents=True)
            for name in ("before", "last"):
                (target / "room" / name).write_bytes((source / "room" / name).read_bytes())
                status = (source / "room" / name).stat()
                os.utime(target / "room" / name, ns=(status.st_atime_ns, status.st_mtime_ns))
        self.prepare(target / "room" / VICTIM)

    def line(self, source: Path, target: Path) -> list[Argument]:
        """Return the arguments of the run."""
        if self.only_victim:
            # Spelled differently from the paths that strace watches: these are examined before the copy.
            items = [f"{source}/room/./{name}" for name in ("before", VICTIM, "last")]
            return [*self.arguments, "--existing", "changed", *items, f"{target}/./room"]
        return [*self.arguments, "-T", source, target]

    def compared(self, source: Path, target: Path) -> tuple[Path, Path]:
        """Return the two trees that should be equal after the run."""
        return (source / "room", target / "room") if self.only_victim else (source, target)


def _small(path: Path) -> None:
    path.write_bytes(b"victim" * 1000)


def _with_xattr(path: Path) -> None:
    _small(path)
    os.setxattr(path, "user.dress", b"blue")


def _labelled(path: Path) -> None:
    _small(path)
    os.setxattr(path, "security.selinux", b"label")


def _large(path: Path) -> None:
    path.write_bytes(bytes(range(256)) * (LARGE // 256))


def _large_with_xattr(path: Path) -> None:
    _large(path)
    os.setxattr(path, "user.dress", b"blue")


def _linked(path: Path) -> None:
    _with_xattr(path)
    os.link(path, path.with_name(OTHER))


def _symlink(path: Path) -> None:
    os.symlink("somewhere", path)


def _fifo(path: Path) -> None:
    os.mkfifo(path, 0o640)
    if os.geteuid() == 0:
        os.setxattr(path, "trusted.dress", b"blue")


def _directory(path: Path) -> None:
    path.mkdir(mode=0o750)
    (path / "inside").write_bytes(b"inside")
    os.setxattr(path, "user.dress", b"blue")
    os.utime(path, (1, 1_200_000_000))


def _old_file(target: Path) -> None:
    target.parent.mkdir(parents=True)
    target.write_bytes(OLD)


def _old_directory(target: Path) -> None:
    target.mkdir(parents=True)


WORLDS = {
    "small": World(_with_xattr),
    "label": World(_labelled),
    "replaced": World(_with_xattr, _old_file),
    "large": World(_large_with_xattr),
    "chunked": World(_large_with_xattr, ranks=2, arguments=CHUNKS, only_victim=True),
    "links": World(_linked),
    "symlink": World(_symlink),
    "fifo": World(_fifo),
    "directory": World(_directory),
    "existing directory": World(_directory, _old_directory),
}


def partly_written(source: Path, target: Path) -> list[str]:
    """Return the regular files in the target that are neither like the source nor like before."""
    found = []
    for entry in walk(os.fsencode(target)):
        if stat.S_ISREG(entry.status.st_mode):
            name = os.fsdecode(entry.path)
            content = (target / name).read_bytes()
            if content != OLD and content != (source / name).read_bytes():
                found.append(name)
    return found
