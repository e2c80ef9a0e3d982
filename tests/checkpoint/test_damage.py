"""Job directories that are damaged, or that somebody else has had a hand in: refused, and never taken for whole."""

from __future__ import annotations

import os
import pickle
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

import pytest

from pcopy.checkpoint.layout import JOB_FORMAT_VERSION
from pcopy.checkpoint.resume import load_job_progress, read_initial_tasks, write_first_run, write_next_run
from pcopy.engine.task import ANY_RANK
from pcopy.errors import EXIT_REFUSED, RequestRefused
from tests.checkpoint.histories import History, make_job, task
from tests.support.frames import Evil, framed
from tests.support.users import NOBODY, require_root

COUNTS = (100, 20, 3)
FIRST = [task(number) for number in range(1, 200)]
open_spool: Callable[[], BinaryIO] = tempfile.TemporaryFile


@pytest.fixture
def history() -> History:
    made = History(1, 2, FIRST, COUNTS)
    for number in range(30):
        made.step(number % 2, number * 5, number % 3, ANY_RANK, number % 5 == 4)
    for rank in range(2):
        while len(made.records[rank]) < 4:
            made.cut(rank)
    return made


@pytest.fixture
def job(area: Path, history: History) -> Path:
    """Two ranks, four records each."""
    made = make_job(area)
    write_first_run(made, 2, COUNTS, FIRST)
    assert history.write(made, (4, 4)) == 4
    return made


def read(job: Path) -> int:
    """Reads all that a resume needs; the epoch that counts."""
    reported, tasks = load_job_progress(job, open_spool=open_spool)
    assert list(tasks)
    return reported.epoch


def refused(job: Path, why: str) -> None:
    before = sorted(job.rglob("*"))
    for action in (lambda: read(job), lambda: write_next_run(job, 3, open_spool=open_spool)):
        with pytest.raises(RequestRefused, match=why) as caught:
            action()
        assert caught.value.status == EXIT_REFUSED
    assert sorted(job.rglob("*")) == before


def test_truncated_segment_counts_up_to_its_last_complete_record(job: Path, history: History) -> None:
    facts = job / "run-1" / "facts-1"
    whole = facts.read_bytes()
    at, ends = 0, []
    while at < len(whole):
        at += 24 + int.from_bytes(whole[at : at + 8], "big")
        ends.append(at)
    assert len(ends) == 4
    for length in range(len(whole), -1, -1):
        os.truncate(facts, length)
        reported, tasks = load_job_progress(job, open_spool=open_spool)
        assert reported.epoch == sum(end <= length for end in ends)
        assert reported.counts == history.totals(reported.epoch)
        if length in ends or length + 1 in ends or length < 2:
            assert {each.id: each for each in tasks} == history.remaining(reported.epoch)


def test_flipped_byte_is_ignored_in_last_record_and_refused_elsewhere(job: Path) -> None:
    """In the last record: as if it had been torn. Anywhere else: refused, with path and offset."""
    facts = job / "run-1" / "facts-1"
    whole = bytearray(facts.read_bytes())
    whole[-1] ^= 255
    facts.write_bytes(whole)
    assert read(job) == 3
    second = 24 + int.from_bytes(whole[:8], "big")
    whole[second + 30] ^= 255
    facts.write_bytes(whole)
    refused(job, f"run-1/facts-1: damaged at byte {second}: ")


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("name", ["base-{}", "current"])
def test_damaged_base_or_current_file_is_refused(job: Path, name: str, rank: int) -> None:
    """Cut off at any length, or with any byte flipped: it was complete before its name counted."""
    path = job / "run-1" / name.format(rank) if "{}" in name else job / name
    whole = path.read_bytes()
    stride = max(len(whole) // 80, 1)
    for length in {*range(0, len(whole), stride), len(whole) - 1}:
        os.truncate(path, 0)
        path.write_bytes(whole[:length])
        with pytest.raises(RequestRefused, match=f"{path.name}: damaged"):
            read(job)
    for at in {*range(0, len(whole), stride), len(whole) - 1}:
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 255]) + whole[at + 1 :])
        with pytest.raises(RequestRefused, match=f"{path.name}: damaged"):
            read(job)


@pytest.mark.parametrize("name", ["current", "run-1/base-0", "run-1/base-1"])
def test_missing_checkpoint_file_is_refused(job: Path, name: str) -> None:
    (job / name).unlink()
    refused(job, f"{name}: is missing")


def test_missing_run_directory_is_refused(job: Path) -> None:
    (job / "run-1").rename(job / "run-4")
    refused(job, "run-1: ")


def test_base_of_another_rank_or_run_is_refused(job: Path) -> None:
    (job / "run-1" / "base-0").replace(job / "run-1" / "base-1")
    (job / "run-1" / "base-0").write_bytes((job / "run-1" / "base-1").read_bytes())
    refused(job, "base-1: damaged at byte 0: the file was written for run 1, rank 0, not for run 1, rank 1")


def pickled(*values: Any) -> bytes:
    return framed(*(pickle.dumps(value, 5) for value in values))


HEAD = ("pcopy-base", JOB_FORMAT_VERSION, 1, 1, 2, -1, ())


@pytest.mark.parametrize(
    ("values", "why"),
    [
        (
            (("pcopy-base", JOB_FORMAT_VERSION + 1, *HEAD[2:]), 0),
            "version 7 of pcopy-base; this pcopy reads version 6; end the job",
        ),
        ((("pcopy-base", 1, *HEAD[2:]), 0), "version 1 of pcopy-base; this pcopy reads version 6; end the job"),
        ((("pcopy", *HEAD[1:]), 0), "the file does not have the format pcopy-base"),
        ((HEAD[:-1], 0), "not the header"),
        ((HEAD, [], 1), "the record says that 1 tasks were written, but the file has more or fewer"),
        ((HEAD, 0, 0), "the record says that 0 tasks were written, but the file has more or fewer"),
        ((HEAD, 0, [tuple(FIRST[0])]), "the record says that 0 tasks were written, but the file has more or fewer"),
        ((HEAD, [tuple(FIRST[0])], 0), "the record says that 0 tasks were written, but the file has more or fewer"),
        ((HEAD, [tuple(FIRST[0])]), "the file ends after 1 tasks"),
        ((HEAD, [7], 1), "not a task"),
        ((HEAD, "tasks", 0), "neither tasks nor their number"),
        ((("pcopy-base", JOB_FORMAT_VERSION, 1, 1, 3, -1, ()), 0), "was written for 3 ranks, but the run has 2"),
        ((*HEAD,), "the file does not have the format"),
    ],
)
def test_base_with_invalid_contents_is_refused(job: Path, values: tuple[Any, ...], why: str) -> None:
    (job / "run-1" / "base-1").write_bytes(pickled(*values))
    refused(job, f"base-1: .*{why}")


@pytest.mark.parametrize(
    ("value", "why"),
    [
        (
            ("pcopy-checkpoint", JOB_FORMAT_VERSION + 1, 1, 2),
            "version 7 of pcopy-checkpoint; this pcopy reads version 6; end the job",
        ),
        (("pcopy-checkpoint", 1, 1, 2), "version 1 of pcopy-checkpoint; this pcopy reads version 6; end the job"),
        (("pcopy-checkpoint", JOB_FORMAT_VERSION, 1), "does not consist of the number of a run"),
        (("pcopy-checkpoint", JOB_FORMAT_VERSION, 1, 0), "does not consist of the number of a run"),
        (("pcopy-checkpoint", JOB_FORMAT_VERSION, 0, 2), "does not consist of the number of a run"),
        (("pcopy-checkpoint", JOB_FORMAT_VERSION, "1", 2), "does not consist of the number of a run"),
        (("pcopy-checkpoint", "1", 1, 2), "the file does not have the format"),
        ((), "the file does not have the format"),
        (1, "the file does not have the format"),
    ],
)
def test_current_with_invalid_contents_is_refused(job: Path, value: Any, why: str) -> None:
    (job / "current").write_bytes(pickled(value))
    refused(job, f"current: .*{why}")


@pytest.mark.parametrize("name", ["current", "run-1/base-0", "run-1/base-1", "run-1/facts-0", "run-1/facts-1"])
def test_pickled_command_is_not_executed(area: Path, job: Path, name: str) -> None:
    proof = area / "proof"
    evil = Evil(proof)
    good = (job / name).read_bytes()
    for content in (pickled(evil), pickled((1, evil)), pickled(evil) + good, good + pickled(evil)):
        (job / name).write_bytes(content)
        if name == "current" and content.startswith(good):
            continue  # nothing behind the first record is looked at
        refused(job, f"{name}: damaged")
        assert not proof.exists()
    pickle.loads(pickle.dumps(evil))
    assert proof.exists()


ALL = ["current", "run-1", "run-1/base-0", "run-1/base-1", "run-1/facts-0", "run-1/facts-1", "."]


@pytest.mark.parametrize("name", ALL)
def test_checkpoint_file_of_another_user_is_refused(job: Path, name: str) -> None:
    require_root("give files away")
    os.chown(job / name, NOBODY, -1)
    refused(job, f"{(job / name).name}: belongs to user {NOBODY}")


@pytest.mark.parametrize("bit", [0o020, 0o002])
@pytest.mark.parametrize("name", ALL)
def test_checkpoint_file_that_others_may_write_is_refused(job: Path, name: str, bit: int) -> None:
    mode = (job / name).stat().st_mode & 0o777 | bit
    (job / name).chmod(mode)
    refused(job, f"{(job / name).name}: .*{mode:04o}")


@pytest.mark.timeout(60)
@pytest.mark.parametrize("kind", ["fifo", "link", "dangling link", "directory"])
@pytest.mark.parametrize("name", [name for name in ALL if name != "."])
def test_item_that_is_no_regular_file_is_refused(area: Path, job: Path, name: str, kind: str) -> None:
    path = job / name
    path.rename(area / "moved")
    if kind == "fifo":
        os.mkfifo(path, 0o600)
    elif kind == "directory":
        path.mkdir(mode=0o700)
    else:
        path.symlink_to(area / "moved" if kind == "link" else area / "gone")
    refused(job, path.name)


def test_reading_a_base_refuses_unsafe_modes_and_links(area: Path, job: Path) -> None:
    (job / "run-1").chmod(0o770)
    with pytest.raises(RequestRefused, match=r"run-1: .*0770"):
        list(read_initial_tasks(job, 1, 0))
    (job / "run-1").chmod(0o700)
    (area / "link").symlink_to(job)
    with pytest.raises(RequestRefused, match="link: "):
        list(read_initial_tasks(area / "link", 1, 0))
    assert [each for rank in range(2) for each in read_initial_tasks(job, 1, rank)]
