"""Many sources that are items of one directory (``pcopy * DST``) cost a name each, not a task and several look-ups."""

from __future__ import annotations

import os
import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pcopy.jobs.paths import resolve_sources_and_targets
from pcopy.jobs.roots import roots_with_file_systems
from pcopy.launch import mounts
from pcopy.launch.group import RankGroup
from pcopy.tasks.base.codec import decode_task
from pcopy.tasks.base.job import Job, Options
from pcopy.tasks.base.phases import Phase
from pcopy.tasks.directories.scan_dir import ScanDir, ScanNames
from pcopy.tools.director import CopyDirector
from tests.support.command import pcopy, show, summary
from tests.support.oracle import differences
from tests.tasks.one_rank import root_of, surroundings

CALLS = ("open", "readlink", "fstat", "statvfs")


@pytest.fixture
def places(tmp_path: Path) -> tuple[Path, Path]:
    source, target = tmp_path / "source", tmp_path / "target"
    source.mkdir()
    target.mkdir()
    return source, target


def named(source: Path, number: int) -> list[bytes]:
    names = [b"f%04d" % each for each in range(number)]
    for name in names:
        (source / os.fsdecode(name)).write_bytes(name)
    return names


def test_first_tasks_contain_many_names(places: tuple[Path, Path]) -> None:
    source, target = places
    roots = [root_of(source, target, name) for name in named(source, 600)]
    roots[300] = roots[300]._replace(name=b"renamed")
    (source / "directory").mkdir()
    roots.insert(7, root_of(source / "directory", target)._replace(name=b"directory"))
    with surroundings(roots, Options()) as (rank, _):
        director = CopyDirector(rank, lambda rank, totals: 0, 75)
        tasks = [decode_task(spawn.payload) for spawn in director.first_tasks_of_phase(Phase.COPY)]
        place = next(task.place for task in tasks if isinstance(task, ScanNames))
        shown = (
            rank.path_for_display(place, b"f0123", on_source=False),
            rank.path_for_display(place, b"f0123", on_source=True),
        )
        renamed = next(task.place for task in tasks if isinstance(task, ScanNames) and task.place.root == 301)
        new_names = rank.target_name(place, b"f0123"), rank.target_name(renamed, b"f0300")
    assert Counter(type(task) for task in tasks) == {ScanNames: 4, ScanDir: 1}
    names = [name for task in tasks if isinstance(task, ScanNames) for name in task.names.split(b"/")]
    assert sorted(names) == [b"f%04d" % each for each in range(600)]
    assert shown == (bytes(target / "f0123"), bytes(source / "f0123"))
    assert new_names == (b"f0123", b"renamed")


def _counted(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    calls: Counter[str] = Counter()

    def counting(name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            calls[name] += 1
            return real(*arguments, **options)

        return call

    for name in CALLS:
        monkeypatch.setattr(os, name, counting(name, getattr(os, name)))
    monkeypatch.setattr(os.path, "realpath", counting("realpath", os.path.realpath))
    return calls


def test_directories_are_looked_up_once(places: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    source, target = places
    paths = [os.path.join(bytes(source), name) for name in named(source, 400)]
    used = []
    for number in (10, 400):
        with monkeypatch.context() as patch:
            calls = _counted(patch)
            roots = resolve_sources_and_targets(paths[:number], bytes(target), False)
            roots_with_file_systems(roots)
            job = Job("test", 1, roots, Options())
            opened = mounts.open_source_and_target_directories(job)
            below = mounts.MountsBelowRoots(job, opened, targets=True)
            mounts.agree_on_mounts(job, below, RankGroup())
            below.close()
        used.append(calls)
        for descriptor in {descriptor for root in opened for descriptor in root}:
            os.close(descriptor)
    assert used[0] == used[1]
    assert used[0].total() > 0


@pytest.mark.parametrize(("backend", "ranks"), [("c", 1), ("c", 2), ("python", 2)])
def test_many_sources_of_all_types_are_copied(places: tuple[Path, Path], backend: str, ranks: int) -> None:
    """The result is that of rsync, each path is reported as it was given, and each failure names its own path."""
    source, target = places
    named(source, 300)
    (source / "directory").mkdir()
    (source / "directory/below").write_bytes(b"below")
    (source / "link").symlink_to("f0000")
    os.mkfifo(source / "fifo")
    os.link(source / "f0001", source / "second")
    (source / "large").write_bytes(b"large")
    os.truncate(source / "large", 40 << 20)
    words: list[str | Path] = ["--json", *sorted(os.listdir(source)), target]
    log = source.parent / "log"
    run = pcopy("--verify", "--log", log, *words, ranks=ranks, cwd=source, env={"PCOPY_BACKEND": backend}, timeout=120)
    assert run.returncode == 0, show(run)
    shutil.copystat(source, target)  # the directory itself is not a source
    assert not differences(source, target)
    assert (target / "second").samefile(target / "f0001")
    lines = log.read_text().splitlines()
    assert all(sum(f"f{number:04}" in line for line in lines) == 1 for number in range(300)), lines[:9]

    (target / "f0123").unlink()
    (target / "f0123").mkdir()
    (target / "f0123/kept").touch()
    (source / "f0124").write_bytes(b"newer")
    run = pcopy("--existing", "changed", *words, ranks=ranks, cwd=source, env={"PCOPY_BACKEND": backend})
    reported = summary(run)
    assert (run.returncode, reported["failed"], reported["files"]) == (1, 1, 1), show(run)
    assert b"/f0123: " in run.stderr and b"f0000" not in run.stderr, show(run)
    assert (target / "f0124").read_bytes() == b"newer"
