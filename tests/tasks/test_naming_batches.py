"""Naming many items of one directory in a batch, some of which need the slow path."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from pcopy.fsio.backend.columns import unpack_names
from pcopy.fsio.preserve import PreservedMetadataKinds
from pcopy.tasks.base.job import CopyOptions, Options
from pcopy.tasks.base.phases import Phase
from pcopy.tasks.base.result import TaskResult
from pcopy.tasks.base.values import Place
from pcopy.tasks.files.name_items import RenameCopies, UnnamedCopies
from tests.tasks.one_rank import consistent, copy, root_of, surroundings
from tests.tasks.test_links import Once

FILES = 20
TAKEN, PLANTED = b"file07", b"file11"


@pytest.mark.parametrize("options", [{}, {"verify": True, "hash": "xxh3-128"}], ids=["plain", "verified"])
def test_each_item_of_a_naming_batch_is_handled_separately(area: Path, options: dict[str, Any]) -> None:
    """One name is taken by a file of the user, and one temporary file is replaced just before its rename."""
    source, target = area / "source", area / "target"
    for tree in source, target:
        tree.mkdir()
    for number in range(FILES):
        (source / f"file{number:02}").write_bytes(b"%d" % number)

    def interfere(task: RenameCopies) -> None:
        (target / os.fsdecode(TAKEN)).write_bytes(b"the user's")
        temporary = dict(zip(unpack_names(task.names), unpack_names(task.temporaries), strict=True))[PLANTED]
        (target / "part").write_bytes(b"planted")
        (target / "part").rename(target / os.fsdecode(temporary))

    copied = copy(root_of(source, target), before=Once(RenameCopies, interfere), existing="skip", **options)
    totals = consistent(copied)
    sizes = {os.fsencode(path.name): path.stat().st_size for path in source.iterdir()}
    assert (totals.files, totals.skipped, totals.failed) == (FILES - 2, 1, 1)
    assert totals.bytes == sum(sizes.values()) - sizes[TAKEN] - sizes[PLANTED]
    assert [failure.path for failure in copied.failures] == [bytes(target / os.fsdecode(PLANTED))]
    assert (target / os.fsdecode(TAKEN)).read_bytes() == b"the user's"
    for path in source.iterdir():
        if os.fsencode(path.name) not in (TAKEN, PLANTED):
            assert (target / path.name).read_bytes() == path.read_bytes()
    assert not list(target.glob(".pcopy-*"))
    assert totals.verified == (FILES - 1 if options else 0)  # including the directory


def test_links_and_fifos_of_a_batch_are_counted_by_type(area: Path) -> None:
    source, target = area / "source", area / "target"
    for tree in source, target:
        tree.mkdir()
    for number in range(3):
        os.symlink("nowhere", source / f"link{number}")
    os.mkfifo(source / "fifo")
    totals = consistent(copy(root_of(source, target), existing="newer", preserve=PreservedMetadataKinds()))
    assert (totals.symlinks, totals.special, totals.files, totals.bytes) == (3, 1, 0, 0)


@pytest.mark.parametrize("error", [GeneratorExit, MemoryError, OSError])
def test_items_of_an_unfinished_task_are_removed(area: Path, error: type[BaseException]) -> None:
    """No other task knows their temporary names."""
    with surroundings([root_of(area, area)], Options(), program=CopyOptions(existing="skip")) as (rank, _):
        place = Place(
            0, b"", rank.sources[0].identity_of_directory(b""), rank.targets[0].identity_of_directory(b""), False, False
        )
        temporary = rank.temporary_names.next_name()
        result = TaskResult(rank, int(Phase.COPY), (1, 0, 1), None)
        waiting = UnnamedCopies(rank, place, 0)
        with pytest.raises(error), waiting.spawn_naming_task_at_end(result):
            waiting.add_temporary_names([temporary])
            (area / os.fsdecode(temporary)).touch()
            raise error
        assert list(area.iterdir()) == []
