"""What a rank keeps of a task while that runs: another task may run, and end, while it waits."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from pcopy.fsio.identity import FUSE
from pcopy.fsio.problem import Problem
from pcopy.fsio.storage import Storage
from pcopy.fsio.syncer import Syncer
from pcopy.tasks.base.job import Options
from pcopy.tasks.base.phases import Phase
from pcopy.tasks.base.rank import Running
from pcopy.tasks.base.values import Place
from tests.tasks.one_rank import root_of, surroundings


def test_the_names_of_a_task_that_waits_are_synced_when_it_ends(area: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[int] = []
    real = os.fsync

    def fsync(descriptor: int) -> None:
        synced.append(os.fstat(descriptor).st_ino)
        real(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    with surroundings([root_of(area, area)], Options()) as (rank, _):
        rank.storage = Storage(lambda descriptor: FUSE, Syncer())
        place = Place(0, b"", rank.sources[0].identity(b""), rank.targets[0].identity(b""), False, False)
        waits, other = Running(int(Phase.COPY)), Running(int(Phase.COPY))
        rank.running = waits
        rank.open_target(place)
        rank.running = other
        rank.ended()
        assert synced == []
        rank.running = waits
        rank.ended()
        rank.storage.close()
    assert synced == [area.stat().st_ino]


def test_a_task_that_ends_without_an_outcome_gives_its_directories_back(area: Path) -> None:
    with surroundings([root_of(area, area)], Options()) as (rank, _):
        rank.storage = Storage(lambda descriptor: FUSE, Syncer())
        place = Place(0, b"", rank.sources[0].identity(b""), rank.targets[0].identity(b""), False, False)
        dropped = rank.running = Running(int(Phase.COPY))
        rank.open_target(place)
        (kept,) = dropped.changed.values()
        os.fstat(kept)
        rank.end(dropped)
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(kept)
        rank.storage.close()


def test_each_task_has_its_phase(area: Path) -> None:
    with surroundings([root_of(area, area)], Options()) as (rank, _):
        for phase in (Phase.COPY, Phase.REPAIR, Phase.COPY):
            rank.running = Running(int(phase))
            assert rank.phase == phase


@pytest.mark.parametrize("writes", [False, True])
def test_a_destination_is_full_when_it_was_twice_in_a_row(area: Path, writes: bool) -> None:
    """Whichever tasks have met that; what one of them has written says that it is not."""
    full = Problem("write", errno.ENOSPC)
    with surroundings([root_of(area, area)], Options()) as (rank, _):
        rank.running = Running(int(Phase.COPY))
        rank.failed(full)
        rank.ended()
        assert rank.stop_reason is None
        rank.running = Running(int(Phase.COPY))
        if writes:
            rank.succeeded()
        rank.failed(full)
        assert (rank.stop_reason is None) == writes
