"""What only the Python kernel can be made to show: system calls that answer as scripted."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest

from pcopy.fsio import python_kernel
from pcopy.fsio.kernel import CARE, Verdict
from pcopy.fsio.preserve import Preserve
from pcopy.fsio.problem import Problem
from pcopy.fsio.python_kernel import PythonKernel


def copy_one(area: Path) -> Verdict:
    source, target = area / "source", area / "target"
    source.mkdir()
    target.mkdir()
    (source / "file").touch()
    status = (source / "file").stat()
    reading, writing = os.open(source, os.O_RDONLY), os.open(target, os.O_RDONLY)
    kernel = PythonKernel(Preserve(), 0o022)
    try:
        return next(kernel.copy_new_files(reading, writing, [b"file"], [status.st_ino], status.st_dev, inherits=False))
    finally:
        os.close(reading)
        os.close(writing)


def test_an_endless_file_is_not_read_into_memory(area: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file of size 0 in FUSE or debugfs may go on for ever."""
    got = 0

    def read(_: int, size: int) -> bytes:
        nonlocal got
        got += size
        assert got < 64 << 20
        return bytes(size)

    monkeypatch.setattr(python_kernel, "_read", read)
    monkeypatch.setattr(os, "read", read)
    assert copy_one(area) == CARE
    assert not (area / "target/file").exists()


def test_a_source_that_cannot_be_closed_fails_alone(area: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """FUSE passes on what its file system answers to flush."""
    calls = 0

    def close(descriptor: int) -> None:
        nonlocal calls
        os.close(descriptor)
        calls += 1
        if calls == 1:
            raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(python_kernel, "_close", close)
    verdict: Any = copy_one(area)
    assert isinstance(verdict, Problem)
    assert (verdict.operation, verdict.errno, verdict.on_source) == ("close", errno.EIO, True)
