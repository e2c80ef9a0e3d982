"""Temporary files of an earlier run are removed before their directory is finished, whatever its mode is."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pcopy.fsio import preserve
from pcopy.fsio.problem import Problem
from pcopy.fsio.temporary import remove_leftover_temporary_files
from pcopy.tasks.directories import finish_dir

JOB = "0123456789"
SOMEBODY = 65534


def finished(area: Path, owner: int) -> int:
    """A descriptor of a directory that has the mode of its source already, with a temporary file of the first run in
    it.
    """
    directory = area / "finished"
    directory.mkdir()
    (directory / f".pcopy-{JOB}-1-0.1").touch()
    if os.geteuid() == 0:
        os.chown(directory, owner, owner)
    directory.chmod(0o555)
    return os.open(directory, os.O_RDONLY)


def cleared(target: int) -> str:
    """Remove the leftovers as an ordinary user, in a child process. Return the error, or an empty string."""
    rank: Any = SimpleNamespace(remove_leftover_files=lambda target: remove_leftover_temporary_files(target, JOB, 2))
    child = os.fork()
    if child == 0:
        status = 1
        try:
            if os.geteuid() == 0:
                os.setuid(SOMEBODY)
            preserve.has_capability.cache_clear()
            finish_dir._remove_leftover_temporary_files(rank, target)
            status = 0
        except Problem as problem:
            status = problem.errno or 1
        finally:
            os._exit(status)
    return os.strerror(status) if (status := os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])) else ""


def test_finished_directory_is_made_writable_to_remove_leftovers(area: Path) -> None:
    """After a loss of power its mode was stored, but not the removal."""
    target = finished(area, SOMEBODY)
    assert cleared(target) == ""
    assert os.listdir(target) == []
    os.close(target)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs a directory of somebody else's")
def test_directory_of_another_user_is_not_changed(area: Path) -> None:
    target = finished(area, 1)
    assert cleared(target) == "Permission denied"
    assert os.fstat(target).st_mode & 0o777 == 0o555
    os.close(target)
