"""Directories that wait until everything in them is done are processed the deepest first, a few levels by one task."""

from __future__ import annotations

import io
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any
from unittest import mock

from pcopy.tasks.base.values import NO_DIRECTORY_IDENTITY, Place
from pcopy.tasks.listed.deepest_first import (
    DeferredDirectories,
    SpawnDeepestDirectoryTasks,
    VisitDeferredDirectories,
)


def path(depth: int, number: int = 0) -> bytes:
    return b"/".join([b"d%d" % number] * depth)


def test_levels_with_few_directories_need_no_phase_each() -> None:
    """All levels of a chain are processed by two tasks; a level with many directories between them by other tasks."""
    deferred = DeferredDirectories(SimpleNamespace(open_spool=io.BytesIO))  # type: ignore[arg-type]
    for each in [*map(path, range(1, 51)), *(path(20, number) for number in range(1, 10))]:
        place = Place(0, each, NO_DIRECTORY_IDENTITY, NO_DIRECTORY_IDENTITY, False, False)
        deferred.add(VisitDeferredDirectories(place, b"name", b""))
    rank: Any = SimpleNamespace(shared_instance=lambda _: deferred, stop_reason=None)
    visited, spawned = list[int](), list[int]()

    def visit(task: VisitDeferredDirectories, *_: object) -> Iterator[None]:
        visited.append(task.place.path.count(b"/") + 1)
        yield None

    def spawn(tasks: Iterator[VisitDeferredDirectories], *_: object, **__: object) -> None:
        spawned.extend(task.place.path.count(b"/") + 1 for task in tasks)

    result: Any = SimpleNamespace(spawn_tasks_lazily=spawn)
    with (
        mock.patch.object(VisitDeferredDirectories, "run", visit),
        mock.patch("pcopy.tasks.listed.deepest_first.MAX_TASK_SECONDS", 60),
    ):
        list(SpawnDeepestDirectoryTasks().run(rank, result))
        assert (visited, spawned) == ([*range(50, 20, -1)], [20] * 10)
        assert not deferred.is_empty
        list(SpawnDeepestDirectoryTasks().run(rank, result))
        assert (visited[30:], spawned[10:]) == ([*range(19, 0, -1)], [])
        assert deferred.is_empty
    deferred.close()


def test_job_that_is_stopped_processes_no_further_level() -> None:
    deferred = DeferredDirectories(SimpleNamespace(open_spool=io.BytesIO))  # type: ignore[arg-type]
    place = Place(0, b"d", NO_DIRECTORY_IDENTITY, NO_DIRECTORY_IDENTITY, False, False)
    deferred.add(VisitDeferredDirectories(place, b"name", b""))
    rank: Any = SimpleNamespace(shared_instance=lambda _: deferred, stop_reason="SIGTERM")
    list(SpawnDeepestDirectoryTasks().run(rank, SimpleNamespace()))  # type: ignore[arg-type]
    assert not deferred.is_empty
