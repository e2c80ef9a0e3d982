"""A disk with simulated power failures: the image of a file system, copied while the file system is in use.

The image file lies on XFS, where a reflinked copy is made at one instant. The copy contains what the disk had received
by then, and nothing that was only in the page cache of the file system in the image. Mounted at the same mount point,
from the same loop device, the copy is what a machine would find after a restart.
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
"""Size of the disk in bytes; its image is sparse."""

ROOM = 6 << 30
"""Space for all images, in bytes."""


@contextmanager
def reflink_directory(place: Path) -> Iterator[Path]:
    """Yield a directory in which images can be copied at one instant."""
    with mounted("xfs", place, size=ROOM) as point:
        yield point


class Disk:
    """A file system of the type ``kind``, mounted at ``point``; its image lies below ``images``."""

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
        options = (
            ["-o", "nouuid"] if self._kind == "xfs" else []
        )  # several disks are copies of one image and have its UUID
        _run("mount", "-t", self._kind, *options, self._device, str(self.point))

    def sync(self) -> None:
        """Sync this file system only: other file systems may be slow, or frozen by another test."""
        _run("sync", "--file-system", str(self.point))

    def image_after_power_failure(self) -> Path:
        """Return a copy of the image as it would be after a power failure at this moment."""
        self._copies += 1
        copy = self._place / f"copy-{self._copies}"
        clone(self.image, copy)
        return copy

    def restart_with(self, image: Path) -> None:
        """Replace the contents of the disk by ``image``. The device remains the same: XFS is identified by it."""
        _run("umount", str(self.point))
        # Another test's mount namespace may hold a copy of the mount: then the device is still in use.
        assert wait_until(self._is_unused, seconds=60)
        clone(image, self.image)
        _run("blockdev", "--flushbufs", self._device)
        self._mount()

    def _is_unused(self) -> bool:
        """Return True if no mount namespace has a mount of this device."""
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
