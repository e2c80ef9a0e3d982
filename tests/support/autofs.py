"""An automounter: when a process enters a name in its directory, it mounts another directory there.

It has its own process group, because the operating system shows the mounted items to the automounter itself (autofs(5)
of the kernel documentation: packets of version 5, and the ioctls that answer them).
"""

from __future__ import annotations

import fcntl
import os
import struct
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.command import REPOSITORY
from tests.support.filesystems import unmount
from tests.support.users import require_root

_PACKET = struct.Struct("=iiIIQIIIII256s")  # type and token are the second and third field, the name is the last one
_PADDED = 304
_MISSING_INDIRECT = 3
_READY, _FAIL = 0x9360, 0x9361

BIND = ("mount", "--bind")
"""The command that mounts the directory; all mounts have the same device number."""
FUSE = ("bindfs",)
"""A command whose mounts have different device numbers, as with a network file system."""


@contextmanager
def automounted(point: Path, what: Path, names: list[str], by: Sequence[str] = BIND) -> Iterator[None]:
    """Entering one of ``names`` in ``point`` mounts the directory ``what`` there. The names are listed before.

    If the test unmounts one, as an automounter does after some idle time, it is mounted again when it is entered.
    """
    require_root("mount")
    line: list[str | Path] = [sys.executable, "-m", "tests.support.autofs", " ".join(by), point, what, *names]
    process = subprocess.Popen(line, cwd=REPOSITORY, stdout=subprocess.PIPE, start_new_session=True)
    assert process.stdout is not None
    try:
        if process.stdout.readline() != b"ready\n":
            pytest.skip("no automounter can be had here")
        yield
    finally:
        for name in names:
            if os.path.ismount(point / name):
                unmount(point / name)
        if os.path.ismount(point):
            unmount(point)
        process.kill()
        process.communicate()


def _serve(by: list[str], point: str, what: str, names: list[str]) -> None:
    reading, writing = os.pipe()
    options = f"fd={writing},pgrp={os.getpgrp()},minproto=5,maxproto=5,indirect"
    command = ["mount", "-t", "autofs", "-o", options, "pcopy-test", point]
    subprocess.run(command, check=True, pass_fds=[writing])
    os.close(writing)
    directory = os.open(point, os.O_RDONLY | os.O_DIRECTORY)
    for name in names:
        os.mkdir(name, dir_fd=directory)
    os.write(1, b"ready\n")
    while packet := os.read(reading, _PADDED):
        _, kind, token, *_, padded = _PACKET.unpack_from(packet)
        name = padded.rstrip(b"\0").decode()
        mounts = [*by, what, f"{point}/{name}"]
        done = kind == _MISSING_INDIRECT and subprocess.run(mounts, check=False).returncode == 0
        fcntl.ioctl(directory, _READY if done else _FAIL, token)


if __name__ == "__main__":
    _serve(sys.argv[1].split(), sys.argv[2], sys.argv[3], sys.argv[4:])
