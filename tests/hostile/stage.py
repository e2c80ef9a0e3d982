"""The files of an attack: trees of an ordinary user, and items outside of them that must not be harmed.

``source``, ``target`` and ``lair`` belong to the attacker. ``safe`` (on the same file system) and ``far`` (on another
one) are accessible to root only; canaries in them are compared and watched, and their secret must never appear in the
target. Items of root in the lair are held by descriptors, since the attacker may rename them.
"""

from __future__ import annotations

import ctypes
import os
import stat
import struct
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from tests.support.oracle import Record, changes, snapshot
from tests.support.users import NOBODY
from tests.support.walk import walk

SECRET = b"nobody but root may read this\n"

_ACCESS, _MODIFY = 0x1, 0x2
_ANY = _ACCESS | _MODIFY | 0x8 | 0x20 | 0x40 | 0x80 | 0x100 | 0x200
"""See inotify(7): also closed after writing, opened, moved from and to, created, deleted. An item that is reached by a
planted hard link may be opened, and must be recognised then."""


class Watch:
    """Detects that items are opened, read or written, by whatever path."""

    def __init__(self) -> None:
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._descriptor = self._libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        self._names: dict[int, str] = {}

    def add(self, path: Path, mask: int) -> None:
        number = self._libc.inotify_add_watch(self._descriptor, os.fsencode(path), ctypes.c_uint32(mask))
        assert number > 0, os.strerror(ctypes.get_errno())
        self._names[number] = str(path)

    def seen(self) -> list[str]:
        """Return the events since the last call."""
        try:
            data = os.read(self._descriptor, 1 << 16)  # space for some thousand events; a single one is a failure
        except BlockingIOError:
            return []
        reported, at = [], 0
        while at < len(data):
            number, mask, _, length = struct.unpack_from("iIII", data, at)
            reported.append(f"event {mask:#x} on {self._names.get(number)}")
            at += 16 + length
        return reported

    def close(self) -> None:
        os.close(self._descriptor)


class Stage:
    """The trees, and the checks of the items outside of them."""

    def __init__(self, near: Path, other: Path) -> None:
        self.source, self.target, self.lair = (near / name for name in ("source", "target", "lair"))
        self.safe, self.far, self.scratch = near / "safe", other / "far", other / "scratch"
        for path in (self.source, self.target, self.lair):
            path.mkdir()
            os.chown(path, NOBODY, NOBODY)
        for path in (self.safe, self.far, self.scratch):
            path.mkdir(0o700)
        for path in (self.safe, self.far):
            (path / "canary").write_bytes(SECRET)
            (path / "canary").chmod(0o600)
            (path / "deep").mkdir(0o700)
        os.mkfifo(self.safe / "pipe", 0o600)
        self.linked: tuple[Path, ...] = ()
        self._held: dict[str, tuple[int, object]] = {}
        self._pipes: list[int] = []
        self._stack = ExitStack()
        self._watch = Watch()
        self._stack.callback(self._watch.close)
        self._before: dict[Path, dict[bytes, Record]] = {}

    def owned(self, path: Path, content: bytes | None = None, mode: int = 0, owner: int = NOBODY) -> Path:
        """Create a file, or without ``content`` a directory; ``mode`` 0 selects the usual one."""
        if content is None:
            path.mkdir()
            mode = mode or 0o755
        else:
            path.write_bytes(content)
            mode = mode or 0o644
        os.chown(path, owner, owner)
        path.chmod(mode)
        return path

    def link_to_canary(self, name: str = "linked") -> Path:
        """Create a file of root with a second name in the lair, as a user can plant one where hard links are not
        protected."""
        self.owned(self.safe / name, SECRET, 0o600, 0)
        os.link(self.safe / name, self.lair / name)
        self.linked += (self.safe / name,)
        return self.lair / name

    def hold(self, path: Path) -> Path:
        """Hold an item: from now on it may be renamed but must not change."""
        descriptor = os.open(path, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
        self._stack.callback(os.close, descriptor)
        self._held[str(path)] = (descriptor, _state(descriptor))
        return path

    def inode_of(self, name: str) -> int:
        """Return the inode number of a held item."""
        return os.fstat(self._held[str(self.lair / name)][0]).st_ino

    def watch_reads(self, path: Path) -> None:
        """Watch an item that may be opened, but not read."""
        self._watch.add(path, _ACCESS | _MODIFY)

    def begin(self) -> None:
        """Record the state of the items outside of the trees, which must not change."""
        for outside in (self.safe, self.far):
            for path in (outside, *outside.rglob("*")):
                os.utime(path, ns=(1, 2), follow_symlinks=False)  # any read would change the access time
                self._watch.add(path, _ACCESS | _MODIFY if path in self.linked else _ANY)
        self._watch.seen()
        self._before = {outside: snapshot(outside) for outside in (self.safe, self.far)}
        self._watch.seen()

    def harm(self) -> list[str]:
        """Return all changes outside since the last call, and secrets that appear in the target."""
        reported = self._watch.seen()
        for outside, before in self._before.items():
            reported += [line for line in changes(before, snapshot(outside)) if not self._is_of_links(outside, line)]
        self._watch.seen()  # events of the comparison itself
        for path, (descriptor, state) in self._held.items():
            if _state(descriptor) != state:
                reported.append(f"{path}: {state} became {_state(descriptor)}")
        return [*reported, *self._leaks()]

    def _is_of_links(self, outside: Path, line: str) -> bool:
        """Return True if the change is caused by the attacker, who adds and removes names of an inode."""
        names = [path.name for path in self.linked if path.parent == outside]
        return any(line.startswith((f"links of b'{name}'", f"ctime of b'{name}'")) for name in names)

    def _leaks(self) -> Iterator[str]:
        planted = [path.stat().st_ino for path in self.linked]
        for entry in walk(os.fsencode(self.target)):
            if stat.S_ISREG(entry.status.st_mode) and entry.status.st_ino not in planted:
                with open(entry.open(), "rb") as file:
                    if SECRET in file.read():
                        yield f"the secret is in {entry.path!r}"

    def fill(self, pipe: Path) -> None:
        """Write data into a FIFO that nobody may read, and keep it open."""
        descriptor = os.open(pipe, os.O_RDWR | os.O_NONBLOCK)
        self._stack.callback(os.close, descriptor)
        os.write(descriptor, SECRET)
        self._pipes.append(descriptor)

    def emptied(self) -> list[str]:
        """Return the FIFOs of ``fill`` from which data was read."""
        return [f"data was read from the FIFO {pipe}" for pipe in self._pipes if os.read(pipe, 1 << 16) != SECRET]

    def mount_over(self, path: Path, what: Path | None = None) -> None:
        """Mount another file or directory at ``path``, or without ``what`` a file system in memory."""
        words = ["--bind", what] if what else ["-t", "tmpfs", "none"]
        subprocess.run(["mount", *words, path], check=True)
        self._stack.callback(_unmount, path)

    def close(self) -> None:
        self._stack.close()


def _unmount(path: Path) -> None:
    subprocess.run(["umount", "-l", path], check=True)


def _state(descriptor: int) -> object:
    status = os.fstat(descriptor)
    content = None
    if stat.S_ISREG(status.st_mode):
        with open(f"/proc/self/fd/{descriptor}", "rb") as file:
            content = file.read()
    return oct(status.st_mode), status.st_uid, status.st_gid, content


@contextmanager
def staged(near: Path, other: Path) -> Iterator[Stage]:
    stage = Stage(near, other)
    try:
        yield stage
    finally:
        stage.close()
