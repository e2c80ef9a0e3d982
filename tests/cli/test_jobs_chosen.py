"""Unfinished jobs that users name to resume or discard them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from pcopy.errors import EXIT_REFUSED, RequestRefused
from pcopy.jobs import job_choice as jobs
from pcopy.jobs.directories import StoredJob, open_job
from pcopy.jobs.lock import JobLockedError, lock_holders
from tests.checkpoint.made import HOLD, child
from tests.cli.stored import RecordedLines, made, without_spaces
from tests.support.users import NOBODY, require_root


def as_killed(job: StoredJob) -> StoredJob:
    """The job as its resume sees it if no run of it ended normally."""
    return job._replace(file=job.file._replace(killed=True))


def test_the_only_job_is_resumed(area: Path, state: Path) -> None:
    job = made(area, "aaa")
    reported = RecordedLines()
    resumed, lock = jobs.job_to_resume(b"", reported)
    assert resumed == as_killed(open_job(job.path))
    assert lock.descriptor >= 0
    assert [holder.rank for holder in lock_holders(job.path)] == [0]
    lock.close()
    assert reported == []


def test_the_only_free_job_is_resumed(area: Path, state: Path) -> None:
    for name in ("aaa", "bbb", "bad"):
        made(area, name)
    (state / "bad" / "job").write_text("x")
    reported = RecordedLines()
    with child(HOLD, bytes(state / "bbb"), "2"):
        resumed, lock = jobs.job_to_resume(b"", reported)
        assert resumed.file.name == "aaa"
        with pytest.raises(RequestRefused, match="all unfinished jobs are being worked on"):
            jobs.job_to_resume(b"", reported)
        lock.close()
    (table,) = reported
    assert table.count("running") == 2


def test_several_resumable_jobs_require_a_name(area: Path, state: Path) -> None:
    for name in ("aaa", "bbb"):
        made(area, name)
    reported = RecordedLines()
    with pytest.raises(RequestRefused, match="2 unfinished jobs match; name one: pcopy --resume JOB") as caught:
        jobs.job_to_resume(b"", reported)
    assert caught.value.status == EXIT_REFUSED
    (table,) = reported
    assert [line[:3] for line in table.split("\n") if line[0] != " "] == ["JOB", "aaa", "bbb"]
    assert lock_holders(bytes(state / "aaa")) == lock_holders(bytes(state / "bbb")) == []
    resumed, lock = jobs.job_to_resume(b"bbb", reported)
    assert resumed.file.name == "bbb"
    lock.close()


def test_resume_without_jobs_is_refused(area: Path, state: Path) -> None:
    reported = RecordedLines()
    with pytest.raises(RequestRefused, match=f"no unfinished job in {state}; .*--resume DIR"):
        jobs.job_to_resume(b"", reported)
    with pytest.raises(RequestRefused, match="aaa: there is no such job; pcopy --jobs"):
        jobs.job_to_resume(b"aaa", reported)
    assert not reported
    assert not os.listdir(area)


def test_job_may_be_named_by_its_directory(area: Path, state: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made(area, "aaa")
    job = made(area, "bbb", area / "mine")
    made(area, "ccc", area / "aaa")
    monkeypatch.chdir(area)
    for word in (b"mine", b"./mine", b"mine/", bytes(area / "mine"), b"state/../mine"):
        assert jobs.path_of_named_job(word) == job.path
    assert open_job(jobs.path_of_named_job(b"aaa")).file.name == "aaa"
    assert open_job(jobs.path_of_named_job(b"./aaa")).file.name == "ccc"
    monkeypatch.chdir(area / "mine")
    assert jobs.path_of_named_job(b".") == job.path
    assert jobs.path_of_named_job(b"..") == bytes(area)
    resumed, lock = jobs.job_to_resume(bytes(area / "mine"), RecordedLines())
    assert resumed == as_killed(job)
    lock.close()


@pytest.mark.parametrize("side", ["source", "target"])
def test_replaced_root_is_refused_and_the_lock_is_released(side: str, area: Path, state: Path) -> None:
    job = made(area, "aaa")
    (area / side).rename(area / "moved")
    (area / side).mkdir()
    with pytest.raises(RequestRefused, match=f"{area}/{side}: not the directory that job aaa began with: its inode"):
        jobs.job_to_resume(b"", RecordedLines())
    assert lock_holders(job.path) == []


def test_running_job_is_neither_resumed_nor_discarded(area: Path, state: Path) -> None:
    job = made(area, "aaa")
    removed: list[StoredJob] = []
    with child(HOLD, job.path, "2"):
        with pytest.raises(JobLockedError, match="rank 2 on "):
            jobs.job_to_resume(b"aaa", RecordedLines())
        with pytest.raises(JobLockedError, match="rank 2 on "):
            jobs.discard_job(b"aaa", removed.append, RecordedLines())
    assert not removed
    assert open_job(job.path) == job


def test_discarded_job_is_removed_with_its_temporary_files(area: Path, state: Path) -> None:
    job = made(area, "aaa")
    seen: list[tuple[StoredJob, list[int], bool]] = []
    reported = RecordedLines()

    def remove_temporaries(job: StoredJob) -> None:
        seen.append((job, [holder.rank for holder in lock_holders(job.path)], os.path.exists(job.path)))

    jobs.discard_job(b"aaa", remove_temporaries, reported)
    assert seen == [(job, [0], True)], "the job is locked, and stays until its files are gone"
    assert not os.listdir(state)
    assert reported == []


def test_job_remains_if_its_temporary_files_cannot_be_removed(area: Path, state: Path) -> None:
    job = made(area, "aaa")

    def failing(job: StoredJob) -> None:
        raise RequestRefused("no")

    with pytest.raises(RequestRefused, match="no"):
        jobs.discard_job(b"aaa", failing, RecordedLines())
    assert open_job(job.path) == job
    assert lock_holders(job.path) == []


def test_nothing_is_removed_if_the_destination_was_replaced(area: Path, state: Path) -> None:
    made(area, "aaa")
    (area / "target").rmdir()
    removed: list[StoredJob] = []
    reported = RecordedLines()
    jobs.discard_job(b"aaa", removed.append, reported)
    assert not removed
    assert not os.listdir(state)
    assert len(reported) == 1
    assert ".pcopy-aaa-* " in reported[0].replace(")", " ")
    assert f"{area}/target: " in reported[0]


def test_foreign_files_in_a_job_directory_are_kept_and_reported(area: Path, state: Path) -> None:
    made(area, "aaa", area / "mine")
    (area / "mine" / "thesis").write_text("mine")
    reported = RecordedLines()
    jobs.discard_job(bytes(area / "mine"), lambda job: None, reported)
    assert os.listdir(area / "mine") == ["thesis"]
    assert reported == [f"{area}/mine/thesis: not removed: pcopy did not create it"]


def test_discard_refuses_directories_that_are_not_jobs(area: Path, state: Path) -> None:
    (area / "data").mkdir()
    (area / "data" / "current").write_text("mine")
    for word, reason in (
        (bytes(area / "data"), "no job is in"),
        (b"aaa", "no such job"),
        (bytes(area / "x"), "no such"),
    ):
        with pytest.raises(RequestRefused, match=reason):
            jobs.discard_job(word, lambda job: None, RecordedLines())
    assert os.listdir(area / "data") == ["current"]


def test_root_refuses_jobs_of_other_users(area: Path, state: Path) -> None:
    require_root("give a directory away")
    job = made(area, "aaa")
    os.chown(job.path, NOBODY, NOBODY)
    for action in (jobs.job_to_resume, lambda word, tell: jobs.discard_job(word, lambda job: None, tell)):
        with pytest.raises(RequestRefused, match=f"belongs to user {NOBODY}"):
            action(b"aaa", RecordedLines())
    assert sorted(os.listdir(state / "aaa")) == ["job", "lock-0"]
    assert f"belongstouser{NOBODY}" in without_spaces(jobs.job_list_lines(False))


def damage(directory: Path) -> None:
    with open(directory / "job", "ab") as file:
        file.write(b"x")


def test_damaged_job_is_discarded(area: Path, state: Path) -> None:
    made(area, "aaa")
    damage(state / "aaa")
    removed: list[StoredJob] = []
    reported = RecordedLines()
    jobs.discard_job(b"aaa", removed.append, reported)
    assert not removed and not os.listdir(state)
    (line,) = reported
    assert "its digest does not match its contents" in line and "(.pcopy-aaa-*) may be left" in line


def test_job_of_another_version_is_discarded_without_that_advice(area: Path, state: Path) -> None:
    made(area, "aaa")
    job = state / "aaa/job"
    job.write_bytes(job.read_bytes().replace(b"pcopy job 6 ", b"pcopy job 1 "))
    reported = RecordedLines()
    jobs.discard_job(b"aaa", lambda job: None, reported)
    reason = f"{job}: version 1 of pcopy's jobs; this pcopy reads version 6; "
    assert reported == [f"{reason}temporary files (.pcopy-aaa-*) may be left in its destination"]
    assert not os.listdir(state)


def test_damaged_job_is_recognized_only_by_all_its_files(area: Path, state: Path) -> None:
    for name, change in (("more", "thesis"), ("less", "lock-0")):
        made(area, "aaa", area / name)
        damage(area / name)
        (area / name / change).unlink() if name == "less" else (area / name / change).touch()
        before = sorted(os.listdir(area / name))
        with pytest.raises(
            RequestRefused, match="thesis, which pcopy did not create" if name == "more" else "no job is in this"
        ):
            jobs.discard_job(bytes(area / name), lambda job: None, RecordedLines())
        assert sorted(os.listdir(area / name)) == before


def test_running_damaged_job_is_not_discarded(area: Path, state: Path) -> None:
    job = made(area, "aaa")
    damage(state / "aaa")
    with child(HOLD, job.path, "1"), pytest.raises(JobLockedError, match="rank 1 on "):
        jobs.discard_job(b"aaa", lambda job: None, RecordedLines())
    assert "job" in os.listdir(state / "aaa")
