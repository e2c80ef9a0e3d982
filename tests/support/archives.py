"""Runs of ptar, and archives that are built member by member."""

from __future__ import annotations

import subprocess
import tarfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path
from typing import Any

from tests.support.command import Argument, Completed, pcopy
from tests.support.users import require_root

MIB = 1 << 20

Made = tuple[tarfile.TarInfo, bytes]
"""A member and its contents."""


def ptar(*arguments: Argument, **options: Any) -> Completed:
    return pcopy(*arguments, **options, program="ptar")


def member(name: str, data: bytes = b"evil", kind: bytes = tarfile.REGTYPE, link: str = "") -> Made:
    """A member; only files have contents."""
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, link
    data = data if kind == tarfile.REGTYPE else b""
    info.size = len(data)
    return info, data


def made_of(path: Path, members: Sequence[Made]) -> Path:
    with tarfile.open(path, "w", format=tarfile.PAX_FORMAT) as archive:
        for info, data in members:
            archive.addfile(info, BytesIO(data))
    return path


@contextmanager
def small_file_system(place: Path, mebibytes: int, *more: str) -> Iterator[Path]:
    """Mount a file system in memory on the new directory ``place``; ``more`` are further mount options."""
    require_root("mounts a small file system")
    place.mkdir()
    options = ",".join((f"size={mebibytes}m", *more))
    subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", place], check=True)
    try:
        yield place
    finally:
        subprocess.run(["umount", place], check=True)
