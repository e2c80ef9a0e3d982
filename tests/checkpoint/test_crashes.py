"""A crash or an error at any step leaves the old state or the new one, and what was told to be durable is."""

from __future__ import annotations

import errno
import os
import tempfile
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any, BinaryIO
from unittest import mock

import pytest

from pcopy.checkpoint.framing import RecordFileWriter, read_record_frames, write_record_frame
from pcopy.checkpoint.resume import JobProgress, load_job_progress, write_first_run, write_next_run
from pcopy.engine.task import ANY_RANK, Task
from pcopy.errors import RequestRefused
from tests.checkpoint.histories import History, make_job, task
from tests.checkpoint.power import CALLS, Power
from tests.support.filesystems import mounted, remove
from tests.support.records import read_record

COUNTS = (100, 20, 3)
FIRST = [task(1), task(2), task(3)]
State = tuple[JobProgress, list[Task]]
open_spool: Callable[[], BinaryIO] = tempfile.TemporaryFile


def state(job: Path) -> State:
    reported, tasks = load_job_progress(job, open_spool=open_spool)
    return reported, sorted(tasks)


def worked_on(area: Path) -> tuple[Path, State, State]:
    """A job of two ranks with records that a crash has left behind; its state, and the one after a compaction for 3."""
    job = make_job(area)
    write_first_run(job, 2, COUNTS, FIRST)
    history = History(1, 2, FIRST, COUNTS)
    for number in range(20):
        history.step(number % 2, number * 7, number % 4, ANY_RANK, number % 3 == 0)
    history.cut(0)
    epoch = history.write(job, (9, 4))
    left = sorted(history.remaining(epoch).values())
    assert len(left) > 2
    counts = history.totals(epoch)
    return job, (JobProgress(1, 2, 0, epoch, counts), left), (JobProgress(2, 3, 0, 0, counts), left)


def compact_for_three(job: Path) -> None:
    write_next_run(job, 3, open_spool=open_spool)


@pytest.fixture(params=["from scratch", "after an earlier attempt"])
def attempt(request: pytest.FixtureRequest) -> bool:
    return bool(request.param != "from scratch")


def test_crash_during_compaction_leaves_old_or_new_state(area: Path, attempt: bool) -> None:
    job, old, new = worked_on(area)
    if attempt:
        (job / "run-2").mkdir(mode=0o700)
        for name in ("base-0", "base-1", "base-7"):
            (job / "run-2" / name).write_bytes(b"half a base")
        (job / "current.new").write_bytes(b"half")
    power = Power(job)
    power.run(lambda: compact_for_three(job))
    seen = []
    for image in power.images:
        copy = image.put(area / "copy")
        found = state(copy)
        assert found in (old, new), f"{image.kind}, {image.step}"
        seen.append(found == new)
        compact_for_three(copy)
        assert state(copy)[1] == old[1], f"{image.kind}, {image.step}: not to be compacted any more"
        remove(copy)
    assert len(seen) > 40
    assert not any(seen[:3])
    assert all(seen[-3:])


def test_crash_during_creation_leaves_a_complete_job_or_none(area: Path) -> None:
    job = make_job(area)
    power = Power(job)
    power.run(lambda: write_first_run(job, 2, COUNTS, FIRST))
    begun = []
    for image in power.images:
        copy = image.put(area / "copy")
        begun.append((copy / "current").exists())
        if not begun[-1]:
            with pytest.raises(RequestRefused, match="current: is missing"):
                state(copy)
            write_first_run(copy, 2, COUNTS, FIRST)
        assert state(copy) == (JobProgress(1, 2, 0, 0, COUNTS), FIRST), f"{image.kind}, {image.step}"
        remove(copy)
    assert not any(begun[:3])
    assert all(begun[-3:])


def test_appended_record_is_durable(area: Path) -> None:
    """The first one too, whose file is new."""
    job = make_job(area)
    write_first_run(job, 1, COUNTS, FIRST)
    history = History(1, 1, FIRST, COUNTS)
    for _ in range(3):
        history.step(0, 0, 1, ANY_RANK, False)
        history.cut(0)
    power = Power(job)
    writer = RecordFileWriter(job, 1, 0)
    for number, record in enumerate(history.records[0], 1):
        power.run(lambda record=record: writer.append(record))  # type: ignore[misc]
        for image in power.images[-3:]:  # after it: killed, names first, nothing more
            assert image.step == "after it"
            copy = image.put(area / "copy")
            assert state(copy)[0].epoch == number, image.kind
            remove(copy)
    for image in power.images:
        copy = image.put(area / "copy")
        reported, tasks = state(copy)
        assert tasks == sorted(history.remaining(reported.epoch).values()), f"{image.kind}, {image.step}"
        remove(copy)
    writer.close()


class Nth:
    """Lets ``call`` fail the ``number``-th time that any of these is called."""

    def __init__(self, number: int) -> None:
        self.left = number

    def of(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def replacement(*arguments: Any, **options: Any) -> Any:
            self.left -= 1
            if self.left == 0:
                raise OSError(errno.EIO, "no luck")
            return call(*arguments, **options)

        return replacement


def test_error_during_compaction_leaves_old_or_new_state(area: Path) -> None:
    for number in count(1):
        place = area / str(number)
        place.mkdir()
        job, old, new = worked_on(place)
        nth = Nth(number)
        patches = {call: nth.of(getattr(os, call)) for call in CALLS}
        failed = False
        with (
            mock.patch.dict(vars(os), patches),
            mock.patch("pcopy.checkpoint.base.write_record_frame", nth.of(write_record_frame)),
        ):
            try:
                compact_for_three(job)
            except (OSError, RequestRefused):
                failed = True
        found = state(job)
        assert found == new if not failed else found in (old, new)
        compact_for_three(job)
        assert state(job)[1] == old[1]
        assert len(os.listdir(job)) == 2
        remove(place)
        if nth.left > 0:
            break
    assert number > 30


def test_failed_compaction_removes_its_files(area: Path) -> None:
    job, _, _ = worked_on(area)

    def address(each: Task) -> Task:
        raise OSError(errno.ENOSPC, "no room")

    with pytest.raises(OSError, match="no room"):
        write_next_run(job, 3, address=address, open_spool=open_spool)
    assert sorted(os.listdir(job)) == ["current", "run-1"]


def test_no_record_is_written_after_the_disk_was_full(area: Path) -> None:
    """The half of it that had room is cut off, and nothing is written behind it even if there is room again."""
    with mounted("tmpfs", area, size=1 << 20) as point:
        job = make_job(point)
        write_first_run(job, 1, COUNTS, FIRST)
        history = History(1, 1, FIRST, COUNTS)
        history.cut(0)
        good = history.records[0][0]
        writer = RecordFileWriter(job, 1, 0)
        writer.append(good)
        size = (job / "run-1" / "facts-0").stat().st_size
        large = good._replace(epoch=2, spawned_tasks=((*task(9)[:2], os.urandom(2 << 20), 1, False, ANY_RANK),))
        with pytest.raises(OSError, match="No space left on device"):
            writer.append(large)
        assert (job / "run-1" / "facts-0").stat().st_size == size
        with pytest.raises(OSError, match="an earlier record could not be written"):
            writer.append(good._replace(epoch=2))
        writer.close()
        assert state(job)[0].epoch == 1


@pytest.mark.parametrize("when", [1, 2])
def test_no_record_is_written_after_a_failed_sync(area: Path, when: int) -> None:
    """The kernel reports it once, and may have dropped the pages: a second fsync would succeed over a hole."""
    job = make_job(area)
    write_first_run(job, 1, COUNTS, FIRST)
    history = History(1, 1, FIRST, COUNTS)
    history.cut(0)
    history.cut(0)
    writer = RecordFileWriter(job, 1, 0)
    if when == 2:
        writer.append(history.records[0][0])
    with (
        mock.patch("os.fsync", Nth(1).of(os.fsync)),
        pytest.raises(OSError, match="no luck"),
    ):
        writer.append(history.records[0][when - 1])
    for _ in range(2):
        with pytest.raises(OSError, match="an earlier record could not be written"):
            writer.append(history.records[0][1])
    writer.close()
    assert state(job)[0].epoch == when - 1


def test_first_record_creates_a_private_segment_file(area: Path) -> None:
    job = make_job(area)
    write_first_run(job, 1, COUNTS, FIRST)
    facts = job / "run-1" / "facts-0"
    writer = RecordFileWriter(job, 1, 0)
    assert not facts.exists()
    history = History(1, 1, FIRST, COUNTS)
    history.cut(0)
    writer.append(history.records[0][0])
    writer.close()
    assert facts.stat().st_mode & 0o7777 == 0o600
    assert [read_record(frame.payload) for frame in read_record_frames(facts)] == history.records[0]
    with pytest.raises(OSError, match="exists"):
        RecordFileWriter(job, 1, 0).append(history.records[0][0])
    facts.unlink()
    facts.symlink_to(area / "elsewhere")
    with pytest.raises(OSError, match="exists"):
        RecordFileWriter(job, 1, 0).append(history.records[0][0])
    assert not (area / "elsewhere").exists()
    with pytest.raises(OSError, match="earlier record"):
        writer.append(history.records[0][0])
