"""The unfinished archive, as the other ranks open it by its temporary name."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pcopy.fsio.problem import Problem
from pcopy.tasks.archive.archive_file import ArchiveFile, temporary_archive_name


@pytest.mark.parametrize("planted", ["readable by others", "hard link", "symbolic link"])
def test_another_file_with_the_temporary_name_is_not_written(tmp_path: Path, planted: str) -> None:
    """A user who may write to the directory can link the name to a file that the user may only read, or to one of
    another user.
    """
    directory = os.open(tmp_path, os.O_RDONLY)
    rank: Any = SimpleNamespace(descriptors=[SimpleNamespace(target=directory)], job=SimpleNamespace(name="job"))
    first, second, third = ArchiveFile(rank), ArchiveFile(rank), ArchiveFile(rank)
    try:
        first.create(resume=False)
        second.write(b"contents", 0)
        temporary, other = tmp_path / os.fsdecode(temporary_archive_name("job")), tmp_path / "other"
        other.write_bytes(b"other")
        os.chmod(other, 0o666 if planted == "readable by others" else 0o600)
        temporary.unlink()
        if planted == "symbolic link":
            temporary.symlink_to(other)
        else:
            os.link(other, temporary)
            if planted == "readable by others":
                other.unlink()
        with pytest.raises(Problem):
            third.write(b"contents", 0)
        assert temporary.read_bytes() == b"other"
    finally:
        for each in (first, second, third):
            each.close()
        os.close(directory)
