"""Loop devices from one pool for all workers, all test runs on a machine, and other programs.

The operating system is the pool: it lists the devices and accepts one image per device, so two processes never get the
same one. A device is free as soon as its descriptor is closed and nothing is mounted from it, even if its process was
killed.

If no device is free, and none can be added (a container may be limited to some devices), a process waits for one. Other
processes notice this, and release devices that they keep only to save time (``FileSystems.release``).
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
import stat
import struct
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

DEVICES = Path("/dev")
SECONDS = 90
"""Longest wait for a device in seconds. It is shorter than the time limit of a test, so that the reason is reported."""

_MAJOR = 7
_LOOP_SET_FD = 0x4C00
_LOOP_CLR_FD = 0x4C01
_LOOP_SET_STATUS64 = 0x4C04
_LOOP_CTL_GET_FREE = 0x4C82
_AUTOCLEAR = 4
_LOOP_INFO64 = struct.Struct("=5Q4I64s64s32s2Q")
_IN_USE = (errno.EBUSY, errno.ENXIO)
"""Errors of a device that another process uses, or that is just being detached or removed."""
_FORBIDDEN = (errno.EPERM, errno.EACCES, errno.EROFS, errno.ENOENT, errno.ENODEV, errno.ENOTTY)
"""Errors of a machine that does not allow this process to use such devices."""

_WAITING = Path(tempfile.gettempdir()) / f"pcopy-test-loops-{os.geteuid()}"
"""A lock file that each process that waits for a device locks in shared mode."""


class Attached:
    """The image ``image`` at ``path``. It stays attached until ``close``, and as long as it is mounted."""

    def __init__(self, path: Path, descriptor: int) -> None:
        self.path = path
        self._descriptor = descriptor

    def close(self) -> None:
        """Detach the image, or let the kernel do it when the last mount ends."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


@contextmanager
def attached(image: Path) -> Iterator[Path]:
    """The path of a device with the contents of ``image``, for as long as the context lasts or it is mounted."""
    device = attach(image)
    try:
        yield device.path
    finally:
        device.close()


def attach(image: Path) -> Attached:
    """Attach ``image`` to a free device, and wait for one if there is none.

    The test is skipped if the machine has no loop devices, and fails if none becomes free within ``SECONDS``.
    """
    if found := _attach_now(image):
        return found
    until = time.monotonic() + SECONDS
    with _waiting():
        while time.monotonic() < until:
            time.sleep(0.1)
            if found := _attach_now(image):
                return found
    used = subprocess.run(["losetup", "--all"], check=False, capture_output=True, text=True).stdout
    pytest.fail(f"no loop device became free within {SECONDS} s; these are in use:\n{used}", pytrace=False)


def is_awaited() -> bool:
    """True if any process of this user's tests waits for a device."""
    try:
        descriptor = os.open(_WAITING, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


@contextmanager
def _waiting() -> Iterator[None]:
    descriptor = os.open(_WAITING, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH)
        yield
    finally:
        os.close(descriptor)


def _attach_now(image: Path) -> Attached | None:
    """Attach ``image``, or return None if all devices are in use."""
    refused: OSError | str = "it has none"
    backing = os.open(image, os.O_RDWR | os.O_CLOEXEC)
    try:
        for number in _numbers():
            try:
                return _attach_to(number, image, backing)
            except OSError as error:
                if error.errno in _FORBIDDEN:
                    refused = error
                elif error.errno not in _IN_USE:
                    raise
    finally:
        os.close(backing)
    if not any(_is_usable(number) for number in _existing()):
        pytest.skip(f"this machine has no loop device for tests: {refused}")
    return None


def _numbers() -> Iterator[int]:
    """Yield devices to try: first some that the operating system reports as free, for which nodes are created, then
    those with nodes.
    """
    last = -1
    for _ in range(20):  # another process may be faster
        number = _free_number()
        if number is None or number == last:
            break
        yield number
        last = number
    yield from _existing()


def _existing() -> list[int]:
    return sorted(int(path.name[4:]) for path in DEVICES.glob("loop[0-9]*") if re.fullmatch(r"loop\d+", path.name))


def _free_number() -> int | None:
    """Return a device that no process uses, added if there was none; None if the process may not query the system."""
    control = DEVICES / "loop-control"
    try:
        descriptor = os.open(control, os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        return fcntl.ioctl(descriptor, _LOOP_CTL_GET_FREE)
    except OSError:
        return None
    finally:
        os.close(descriptor)


def _is_usable(number: int) -> bool:
    """Return True if this process may open the device, used or not."""
    try:
        os.close(os.open(DEVICES / f"loop{number}", os.O_RDWR | os.O_CLOEXEC))
    except OSError as error:
        return error.errno in _IN_USE
    return True


def _attach_to(number: int, image: Path, backing: int) -> Attached:
    path = DEVICES / f"loop{number}"
    if not path.exists():
        with suppress(FileExistsError):  # another process was faster
            os.mknod(path, stat.S_IFBLK | 0o660, os.makedev(_MAJOR, number))
    descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    try:
        fcntl.ioctl(descriptor, _LOOP_SET_FD, backing)
        try:
            info = _LOOP_INFO64.pack(0, 0, 0, 0, 0, number, 0, 0, _AUTOCLEAR, os.fsencode(image)[:63], b"", b"", 0, 0)
            fcntl.ioctl(descriptor, _LOOP_SET_STATUS64, info)
        except BaseException:
            fcntl.ioctl(descriptor, _LOOP_CLR_FD)
            raise
    except BaseException:
        os.close(descriptor)
        raise
    return Attached(path, descriptor)
