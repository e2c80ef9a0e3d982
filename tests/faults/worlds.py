"""Small trees with one item, called ``victim``, that meets the fault. Everything else in them has to be copied."""

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
"""Of a hard link. Which of the two names comes first is up to the file system."""

LARGE = (4 << 20) + 70_000
"""Bytes of a file that is split, if there are two ranks and ``CHUNKS``."""

CHUNKS = ("--chunk-size", "512K", "--block-size", "64K")
OLD = b"old content"


def _nothing(target: Path) -> None:
    """The target does not exist before the run."""


@dataclass(frozen=True, slots=True)
class World:
    """``make`` puts the victim into the source's directory ``room``; ``prepare`` makes what the target holds before."""

    make: Callable[[Path], None]
    prepare: Callable[[Path], None] = _nothing
    ranks: int = 1
    arguments: tuple[Argument, ...] = ()
    only_victim: bool = False
    """Everything else is in the target already and is skipped: then no other item is created, written or dressed."""

    def build(self, source: Path) -> None:
        """Makes the source tree; sizes and contents differ from file to file."""
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
        """The arguments of the run."""
        if self.only_victim:
            # Spelled so that strace doesn't take them for the paths that it watches: they are looked at before work.
            items = [f"{source}/room/./{name}" for name in ("before", VICTIM, "last")]
            return [*self.arguments, "--existing", "changed", *items, f"{target}/./room"]
        return [*self.arguments, "-T", source, target]

    def compared(self, source: Path, target: Path) -> tuple[Path, Path]:
        """The two trees that should be alike after the run."""
        return (source / "room", target / "room") if self.only_victim else (source, target)


def _small(path: Path) -> None:
    path.write_bytes(b"victim" * 1000)


def _dressed(path: Path) -> None:
    _small(path)
    os.setxattr(path, "user.dress", b"blue")


def _labelled(path: Path) -> None:
    _small(path)
    os.setxattr(path, "security.selinux", b"label")


def _large(path: Path) -> None:
    path.write_bytes(bytes(range(256)) * (LARGE // 256))


def _dressed_large(path: Path) -> None:
    _large(path)
    os.setxattr(path, "user.dress", b"blue")


def _linked(path: Path) -> None:
    _dressed(path)
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
    "small": World(_dressed),
    "label": World(_labelled),
    "replaced": World(_dressed, _old_file),
    "large": World(_dressed_large),
    "chunked": World(_dressed_large, ranks=2, arguments=CHUNKS, only_victim=True),
    "links": World(_linked),
    "symlink": World(_symlink),
    "fifo": World(_fifo),
    "directory": World(_directory),
    "existing directory": World(_directory, _old_directory),
}


def partly_written(source: Path, target: Path) -> list[str]:
    """The regular files in the target that are neither their source nor what was there before."""
    found = []
    for entry in walk(os.fsencode(target)):
        if stat.S_ISREG(entry.status.st_mode):
            name = os.fsdecode(entry.path)
            content = (target / name).read_bytes()
            if content != OLD and content != (source / name).read_bytes():
                found.append(name)
    return found
