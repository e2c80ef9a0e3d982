"""What a directory holds after a crash at any moment of an action: the process killed, or the power lost.

The action runs for real, and each call that changes a name or syncs is looked at before it is made. File systems
promise only this: the contents of a file are there after its fsync, a name (or its going away) after the fsync of its
directory. So these images are kept of each moment:

- *killed*: everything as the process left it;
- *nothing more*: only what has been synced, so names that have gone are back;
- *names first*: all names as they are now, and files that were not synced as zeros, which XFS and ext4 are known for;
- *NAME alone*, for each name that has come or gone since: only what has been synced, and that change.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

CALLS = ("fsync", "rename", "unlink", "rmdir", "mkdir", "open")


Names = dict[int, dict[str, int]]
"""What directories hold: inodes by name, by the directory's inode."""


class Image(NamedTuple):
    """``files`` by path relative to the directory; directories have None. ``step`` says when, ``kind`` which."""

    step: str
    kind: str
    files: dict[str, bytes | None]

    def put(self, place: Path) -> Path:
        """Makes it a real directory."""
        place.mkdir(mode=0o700)
        for name, content in sorted(self.files.items()):
            if content is None:
                (place / name).mkdir(mode=0o700)
            else:
                (place / name).write_bytes(content)
                (place / name).chmod(0o600)
        return place


class Power:
    """Watches one directory, all of which is durable at first."""

    def __init__(self, top: Path) -> None:
        self._top = top
        self._contents: dict[int, bytes] = {}
        self._names: Names = {}
        self.images: list[Image] = []
        for directory, _, files in os.walk(top):
            self._sync_path(Path(directory))
            for name in files:
                self._sync_path(Path(directory, name))

    def _sync_path(self, path: Path) -> None:
        status = path.stat()
        if stat.S_ISDIR(status.st_mode):
            self._names[status.st_ino] = {name: (path / name).lstat().st_ino for name in os.listdir(path)}
        else:
            self._contents[status.st_ino] = path.read_bytes()

    def run(self, action: Callable[[], object]) -> None:
        """Runs ``action`` and keeps images of every moment of it, the last one too."""
        real = {call: getattr(os, call) for call in CALLS}

        def watched(call: str) -> Callable[..., Any]:
            def replacement(*arguments: Any, **options: Any) -> Any:
                if call != "open" or arguments[1] & os.O_CREAT:
                    with mock.patch.dict(vars(os), real):
                        self.look(f"before {call} {arguments}")
                done = real[call](*arguments, **options)
                if call == "fsync":
                    with mock.patch.dict(vars(os), real):
                        self._sync_path(Path(os.readlink(f"/proc/self/fd/{arguments[0]}")))
                return done

            return replacement

        with mock.patch.dict(vars(os), {call: watched(call) for call in CALLS}):
            action()
        self.look("after it")

    def look(self, step: str) -> None:
        """Keeps the images of this moment."""
        killed: dict[str, bytes | None] = {}
        names_first: dict[str, bytes | None] = {}
        for path in self._top.rglob("*"):
            name = str(path.relative_to(self._top))
            content = None if path.is_dir() else path.read_bytes()
            killed[name] = names_first[name] = content
            if content is not None:
                names_first[name] = self._contents.get(path.stat().st_ino, bytes(len(content)))
        self.images.append(Image(step, "killed", killed))
        self.images.append(Image(step, "names first", names_first))
        self.images += [Image(step, f"{name} alone", self.durable(names)) for name, names in self._changes()]
        self.images.append(Image(step, "nothing more", self.durable(self._names)))

    def _changes(self) -> Iterator[tuple[str, Names]]:
        """Each name that is not as it was synced, and the synced names but for that one."""
        for path in (self._top, *(each for each in self._top.rglob("*") if each.is_dir())):
            directory = path.stat().st_ino
            then = self._names.get(directory, {})
            now = {name: (path / name).lstat().st_ino for name in os.listdir(path)}
            for name in sorted(now.keys() | then.keys()):
                if now.get(name) != then.get(name):
                    others = {other: inode for other, inode in then.items() if other != name}
                    changed = others | ({name: now[name]} if name in now else {})
                    made: Names = {inode: {} for each, inode in now.items() if (path / each).is_dir()}
                    yield name, made | self._names | {directory: changed}

    def durable(self, synced: Names) -> dict[str, bytes | None]:
        """What is sure to be there, if these names are."""
        found: dict[str, bytes | None] = {}
        waiting = [("", self._top.stat().st_ino)]
        while waiting:
            above, directory = waiting.pop()
            for name, inode in synced.get(directory, {}).items():
                path = above + name
                if inode in synced or inode not in self._contents:
                    found[path] = None if inode in synced else b""
                    waiting.append((path + "/", inode))
                else:
                    found[path] = self._contents[inode]
        return found
