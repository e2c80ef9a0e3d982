"""A disk whose power can fail: the image of a file system in memory, of which copies are taken while it is written.

The image file lies on an XFS, where a reflinked copy is made at one instant: it has what the disk had been given by
then, and nothing of what was only in the page cache of the file system in the image. Mounted at the same place, from
the same loop device, it is what a machine finds there that comes up again.
"""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support import loops
from tests.support.filesystems import MAKE, make_image, mounted, unmount
from tests.support.processes import wait_until

SIZE = 600 << 20
"""Bytes of the disk; its image is sparse."""

ROOM = 6 << 30
"""Bytes for all images."""


@contextmanager
def stable(place: Path) -> Iterator[Path]:
    """Where images can be copied in an instant."""
    with mounted("xfs", place, size=ROOM) as point:
        yield point


class Disk:
    """The image ``kind`` below ``images``, mounted at ``point``."""

    def __init__(self, kind: str, images: Path, template: Path | None = None) -> None:
        self._kind = kind
        self._place = Path(tempfile.mkdtemp(prefix=f"{kind}-", dir=images))
        self.point = self._place / "point"
        self.point.mkdir()
        self._copies = 0
        self.image = self._place / "image"
        if template is not None:
            clone(template, self.image)
        else:
            make_image(MAKE[kind], self.image, SIZE)
        self._attached = loops.attach(self.image)
        self._device = str(self._attached.path)
        try:
            self._mount()
        except BaseException:
            self._attached.close()
            raise

    def _mount(self) -> None:
        options = ["-o", "nouuid"] if self._kind == "xfs" else []  # several disks are copies of one
        _run("mount", "-t", self._kind, *options, self._device, str(self.point))

    def sync(self) -> None:
        """Of this file system alone: others may be slow, or stand still for another test."""
        _run("sync", "--file-system", str(self.point))

    def as_it_is_now(self) -> Path:
        """A copy of what would be left if the power failed now."""
        self._copies += 1
        copy = self._place / f"copy-{self._copies}"
        clone(self.image, copy)
        return copy

    def come_up_with(self, image: Path) -> None:
        """What is on the disk becomes what ``image`` holds. The device stays, by which XFS is known."""
        _run("umount", str(self.point))
        # Another test's mount namespace may hold a copy of the mount: then the device is still in use.
        assert wait_until(self._is_unused, seconds=60)
        clone(image, self.image)
        _run("blockdev", "--flushbufs", self._device)
        self._mount()

    def _is_unused(self) -> bool:
        """Is no file system mounted from it, wherever?"""
        try:
            os.close(os.open(self._device, os.O_RDONLY | os.O_EXCL))
        except OSError as error:
            if error.errno != errno.EBUSY:
                raise
            return False
        return True

    def close(self) -> None:
        if self.point.is_mount():
            unmount(self.point)
        self._attached.close()
        shutil.rmtree(self._place, ignore_errors=True)


def clone(image: Path, copy: Path) -> None:
    _run("cp", "--reflink=always", str(image), str(copy))


def _run(*command: str) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout
