"""Directories in which ``--discard`` looks for temporary files, for each kind of remaining task."""

from __future__ import annotations

import errno
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pcopy.fsio.backend.columns import pack_names
from pcopy.fsio.identity import ItemIdentity
from pcopy.fsio.problem import Problem
from pcopy.jobs.directories import StoredJob
from pcopy.jobs.leftovers import TemporaryFileRemover
from pcopy.tasks.base.codec import encode_task
from pcopy.tasks.base.job import Root
from pcopy.tasks.base.values import FailureRetry, Item, Place
from pcopy.tasks.directories.finish_dir import FinishDir, FinishDirLastNote
from pcopy.tasks.directories.scan_dir import ScanDir, ScanNames
from pcopy.tasks.files.copy_files import CopyFiles
from pcopy.tasks.links.link_group import CopyHardLinkGroup
from pcopy.tasks.report_failures import ReportFailures

DIRECTORIES = ("", "one", "one/two", "one/two/three", "other")


def place(path: str) -> Place:
    return Place(0, path.encode(), ItemIdentity(0, 0), ItemIdentity(0, 0), False, False)


def retry(task: Any) -> ReportFailures:
    return ReportFailures((), (), (FailureRetry(), FailureRetry(encode_task(task))))


FINISH = FinishDir(place("one"), None, True, -1)
PROBLEM = Problem("open", errno.EACCES).problem_as_tuple


@pytest.mark.parametrize(
    ("value", "first", "cleared"),
    [
        (CopyFiles(place("one/two"), b"file", b"", 0), True, {"one/two"}),
        (CopyFiles(place("gone"), b"file", b"", 0), True, set()),
        (CopyHardLinkGroup(Item(0, 1, 2, ((place("one"), b"a"), (place("other"), b"b")), 0)), True, {"one", "other"}),
        (CopyHardLinkGroup(Item(0, 1, 2, (), 0, ((place("one"), b"a", PROBLEM),))), True, {"one"}),
        (ScanDir(0, b"one", ItemIdentity(0, 0), place("")), True, {"one", "one/two", "one/two/three"}),
        (ScanDir(0, b"", ItemIdentity(0, 0), None), True, set(DIRECTORIES)),
        (ScanNames(place("one"), pack_names([b"file", b"two"]), 0), True, {"one", "one/two", "one/two/three"}),
        (retry(ScanNames(place("other"), b"file", 1)), True, {"other"}),
        (FINISH, True, set()),
        (FinishDirLastNote(FINISH), True, set()),
        (FINISH, False, {"one"}),
        (FinishDirLastNote(FINISH), False, {"one"}),
    ],
)
def test_directories_of_leftovers_are_found_by_each_kind_of_task(
    area: Path, value: Any, first: bool, cleared: set[str]
) -> None:
    files = {path: area / "copy" / path / ".pcopy-job-1-0.1" for path in DIRECTORIES}
    for file in files.values():
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch()
    root = Root(b"/source", bytes(area), b"", b"copy", b"source", b"copy", (0, 0), (0, 0))
    job: Any = SimpleNamespace(name="job", roots=(SimpleNamespace(as_root=root),))
    reported: list[str] = []
    clearing = TemporaryFileRemover(StoredJob(b"", job), reported.append)
    try:
        clearing.remove_temporary_files_of_task(value, first=first)
    finally:
        clearing.close()
    assert {path for path, file in files.items() if not file.exists()} == cleared
    assert reported == []
