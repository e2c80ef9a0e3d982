"""Unfinished jobs as their users meet them: listed, chosen, discarded."""

from __future__ import annotations

import base64
import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pcopy.checkpoint.job_file import FAILED_ITEMS, NOT_ALL_WRITTEN, OVER, STOPPED
from pcopy.checkpoint.jobs import StoredJob, create, open_job, update
from pcopy.checkpoint.lock import Held, holders
from pcopy.checkpoint.record import Record
from pcopy.checkpoint.resume import begin
from pcopy.checkpoint.segments import SegmentWriter
from pcopy.cli import jobs
from pcopy.errors import REFUSED, Refused
from tests.checkpoint.made import HOLD, child, job_of, root_of, some_root
from tests.support.users import NOBODY, require_root

BEGUN = 1_700_000_000.0


@pytest.fixture
def state(area: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    with monkeypatch.context() as patched:
        patched.setenv("XDG_STATE_HOME", str(area / "state"))
        patched.setenv("TZ", "UTC")
        time.tzset()
        yield area / "state" / "pcopy"
    time.tzset()


def made(area: Path, name: str, directory: Path | None = None, **fields: Any) -> StoredJob:
    """A job from ``area/source`` to ``area/target``, whose run has died."""
    for tree in ("source", "target"):
        (area / tree).mkdir(exist_ok=True)
    fields = {"created": BEGUN, **fields}
    file = job_of(root_of(area / "source", area / "target"), name=name, **fields)
    job, lock = create(None if directory is None else bytes(directory), file)
    lock.close()
    return job


class Told(list[str]):
    """What was told, for the assertions."""

    def __call__(self, line: str) -> None:
        assert all(part.isprintable() for part in line.split("\n"))
        self.append(line)


def columns(line: str) -> list[str]:
    return [cell.strip() for cell in line.split("  ") if cell.strip()]


def test_there_may_be_no_jobs(area: Path, state: Path) -> None:
    assert jobs.listing(False) == [f"no unfinished jobs in {state}"]
    assert jobs.listing(True) == []
    assert not os.listdir(area), "listing makes nothing"


def test_a_place_that_cannot_be_looked_at_is_not_empty(area: Path, state: Path) -> None:
    (area / "state").touch()
    for as_json in (False, True):
        with pytest.raises(Refused, match=f"{state}: cannot be looked at: Not a directory"):
            jobs.listing(as_json)


def test_paths_are_told_from_the_root(area: Path, state: Path) -> None:
    """Whoever lists jobs may be in another directory than whoever began them."""
    for name in ("source", "target"):
        (area / name).mkdir()
    root = root_of(area / "source", area / "target")._replace(source_shown=b"source", target_shown=b"../target/")
    for name, file in (("all", root), ("one", root._replace(item=b"file", name=b"copy"))):
        _, lock = create(None, job_of(file, name=name))
        lock.close()
    ways = [(f"{area}/source", f"{area}/target"), (f"{area}/source/file", f"{area}/target/copy")]
    table = jobs.listing(False)
    for source, target in ways:
        assert table.count(f"  {source}") == table.count(f"  -> {target}") == 1 or f"  {source} -> {target}" in table
    told = [json.loads(line) for line in jobs.listing(True)]
    assert sorted((*job["sources"], job["destination"]) for job in told) == ways


def test_a_table_tells_of_each_job(area: Path, state: Path) -> None:
    way = f"{area}/source -> {area}/target"
    totals = {"files": 1200, "directories": 34, "found": 5000, "bytes": 3 << 30, "unknown": 7}
    made(area, "aaa", totals=totals)
    made(area, "bbb", created=BEGUN + 60, state=STOPPED, totals={})
    made(area, "ccc", created=BEGUN + 120, state=FAILED_ITEMS, totals={"found": 1, "failed": 1})
    update(made(area, "over")._replace(file=job_of(some_root(), state=OVER)))
    with child(HOLD, bytes(state / "aaa"), "0", "1"):
        told = jobs.listing(False)
    host = os.uname().nodename
    ways = [f"  {way}"] if len(way) < 79 else [f"  {area}/source", f"  -> {area}/target"]
    assert told == [
        "JOB  BEGUN             STATE         COPIED",
        "ccc  2023-11-14 22:15  failed items  0 of 1, 0 B",
        *ways,
        "bbb  2023-11-14 22:14  stopped       -",
        *ways,
        "aaa  2023-11-14 22:13  running       1,234 of 5,000, 3.00 GiB",
        *ways,
        f"  2 ranks on {host}",
    ]
    assert columns(jobs.listing(False)[-len(ways) - 1])[2] == "interrupted"


def test_a_table_fits_80_columns_whatever_the_names(area: Path, state: Path) -> None:
    def totals(number: int) -> dict[str, int]:
        return {"files": number, "found": number, "bytes": number << 20}

    made(area, "0123456789", state=NOT_ALL_WRITTEN, totals=totals(10**9))
    made(area, "abcdefghij", state=STOPPED, totals=totals(10**5))
    for length in (20, 60, 90, 250):
        root = some_root()._replace(source=b"/" + length * b"s", target=b"/t" + length * b"\xff", item=b"", name=b"n")
        create(None, job_of(root, name=f"long{length}"))[1].close()
    made(area, "broken")
    (state / "broken" / "job").write_text("x")
    with child(HOLD, bytes(state / "long250"), *map(str, range(3))):
        told = jobs.listing(False)
    assert max(map(len, told)) <= 80
    assert any(line.startswith("  1,000,000,000 of 1,000,000,000, ") for line in told)
    ends = [line for line in told if "..." in line]
    assert len(ends) == 6 and all(line[2:4] in ("/s", "->") and line[-1] in "sn" for line in ends)


def test_an_interrupted_job_is_listed_with_what_is_on_record(area: Path, state: Path) -> None:
    """The least that all ranks have; a record that is being written, and one after a missing epoch, do not count."""
    job = made(area, "aaa", totals={"files": 1, "found": 1})
    begin(job.path, 2, [10], [])
    counts: dict[int, list[tuple[int, tuple[int, ...]]]] = {}
    counts |= {0: [(1, (20, 5, 0, 3, 1)), (2, (30, 6, 0, 4))], 1: [(1, (40, 7, 0, 5)), (3, (1000, 1000, 0, 1000))]}
    for rank, records in counts.items():
        writer = SegmentWriter(job.path, 1, rank)
        for epoch, count in records:
            writer.append(Record(1, rank, 2, epoch, 0, count, b"", ()))
        writer.close()
    with open(state / "aaa" / "run-1" / "facts-1", "ab") as file:
        file.write(bytes(7))
    before = {path for path in (state / "aaa").rglob("*") if path.is_file()}
    for torn in (bytes(20), b"\xff" * 40, b""):
        with open(state / "aaa" / "run-1" / "facts-1", "ab") as file:
            file.write(torn)
        (told,) = map(json.loads, jobs.listing(True))
        assert (told["found"], told["copied"], told["state"]) == (70, 9, "interrupted")
    assert jobs.listing(False)[1].endswith("  9 of 70, 0 B")
    assert {path.name for path in (state / "aaa").rglob("*") if path.is_file()} == {path.name for path in before}
    (state / "aaa" / "run-1" / "base-0").unlink()
    assert jobs.listing(False)[1].endswith("  1 of 1, 0 B"), "what the run before it left"


def test_a_job_that_stopped_in_order_is_listed_with_its_totals(area: Path, state: Path) -> None:
    job = made(area, "aaa", state=STOPPED, totals={"files": 4, "found": 5})
    begin(job.path, 1, [10], [])
    assert jobs.listing(False)[1].endswith("  4 of 5, 0 B")


def test_names_cannot_forge_a_line(area: Path, state: Path) -> None:
    _, lock = create(None, job_of(some_root()))
    lock.close()
    told = jobs.listing(False)
    assert len(told) == 3
    assert told[2] == "  /s\\xff\\n/item -> /t\\\\/näme"
    assert all(line.isprintable() for line in told)


def test_several_sources_are_counted(area: Path, state: Path) -> None:
    _, lock = create(None, job_of(some_root(), some_root()._replace(name=b"b")))
    lock.close()
    assert jobs.listing(False)[2] == "  2 sources -> /t\\\\"


def test_what_cannot_be_used_is_told(area: Path, state: Path) -> None:
    made(area, "bad")
    (state / "bad" / "job").write_text("x")
    assert squeezed(jobs.listing(False)) == squeezed([f"cannot be used: {state}/bad/job: not a job of pcopy's"])
    (told,) = map(json.loads, jobs.listing(True))
    assert (told["job"], told["state"]) == ("bad", None)
    made(area, "good")
    assert jobs.listing(False)[1].startswith("good ")


def squeezed(lines: list[str]) -> str:
    return "".join(lines).replace(" ", "")


def test_json_tells_of_each_job_on_a_line(area: Path, state: Path) -> None:
    made(area, "aaa", totals={"files": 3, "found": 5, "failed": 1, "bytes": 7}, runs=2)
    with child(HOLD, bytes(state / "aaa"), "4") as process:
        (told,) = map(json.loads, jobs.listing(True))
    locked = told.pop("locked")
    assert [(holder["rank"], holder["host"], holder["pid"]) for holder in locked] == [
        (4, os.uname().nodename, process.pid)
    ]
    path = str(state / "aaa")
    assert told.pop("directory_b64") == base64.b64encode(path.encode()).decode()
    assert told == {
        "job": "aaa", "directory": path, "begun": BEGUN, "sources": [f"{area}/source"],
        "destination": f"{area}/target", "state": "running", "runs": 2, "found": 5, "copied": 3, "skipped": 0,
        "failed": 1, "bytes": 7,
    }  # fmt: skip


def test_the_only_job_is_resumed(area: Path, state: Path) -> None:
    job = made(area, "aaa")
    told = Told()
    resumed = jobs.resume(b"", told)
    assert resumed.job == open_job(job.path)
    assert resumed.roots == job.file.roots
    assert resumed.lock.held
    assert [holder.rank for holder in holders(job.path)] == [0]
    resumed.lock.close()
    assert told == []


def test_the_only_free_job_is_resumed(area: Path, state: Path) -> None:
    for name in ("aaa", "bbb", "bad"):
        made(area, name)
    (state / "bad" / "job").write_text("x")
    told = Told()
    with child(HOLD, bytes(state / "bbb"), "2"):
        resumed = jobs.resume(b"", told)
        assert resumed.job.file.name == "aaa"
        with pytest.raises(Refused, match="all unfinished jobs are being worked on"):
            jobs.resume(b"", told)
        resumed.lock.close()
    (table,) = told
    assert table.count("running") == 2


def test_of_several_jobs_none_is_guessed(area: Path, state: Path) -> None:
    for name in ("aaa", "bbb"):
        made(area, name)
    told = Told()
    with pytest.raises(Refused, match="2 unfinished jobs can be meant; name one: pcopy --resume JOB") as caught:
        jobs.resume(b"", told)
    assert caught.value.status == REFUSED
    (table,) = told
    assert [line[:3] for line in table.split("\n") if line[0] != " "] == ["JOB", "aaa", "bbb"]
    assert holders(bytes(state / "aaa")) == holders(bytes(state / "bbb")) == []
    resumed = jobs.resume(b"bbb", told)
    assert resumed.job.file.name == "bbb"
    resumed.lock.close()


def test_without_jobs_there_is_nothing_to_resume(area: Path, state: Path) -> None:
    told = Told()
    with pytest.raises(Refused, match=f"no unfinished job in {state}; .*--resume DIR"):
        jobs.resume(b"", told)
    with pytest.raises(Refused, match="aaa: there is no such job; pcopy --jobs"):
        jobs.resume(b"aaa", told)
    assert not told
    assert not os.listdir(area)


def test_a_job_is_named_by_its_directory_too(area: Path, state: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made(area, "aaa")
    job = made(area, "bbb", area / "mine")
    made(area, "ccc", area / "aaa")
    monkeypatch.chdir(area)
    for word in (b"mine", b"./mine", b"mine/", bytes(area / "mine"), b"state/../mine"):
        assert jobs.job_path(word) == job.path
    assert open_job(jobs.job_path(b"aaa")).file.name == "aaa"
    assert open_job(jobs.job_path(b"./aaa")).file.name == "ccc"
    monkeypatch.chdir(area / "mine")
    assert jobs.job_path(b".") == job.path
    assert jobs.job_path(b"..") == bytes(area)
    resumed = jobs.resume(bytes(area / "mine"), Told())
    assert resumed.job == job
    resumed.lock.close()


@pytest.mark.parametrize("side", ["source", "target"])
def test_other_roots_are_refused_and_the_lock_is_given_back(side: str, area: Path, state: Path) -> None:
    job = made(area, "aaa")
    (area / side).rename(area / "moved")
    (area / side).mkdir()
    with pytest.raises(Refused, match=f"{area}/{side}: not the directory that job aaa began with: its inode"):
        jobs.resume(b"", Told())
    assert holders(job.path) == []


def test_a_job_that_is_worked_on_is_neither_resumed_nor_discarded(area: Path, state: Path) -> None:
    job = made(area, "aaa")
    removed: list[StoredJob] = []
    with child(HOLD, job.path, "2"):
        with pytest.raises(Held, match="rank 2 on "):
            jobs.resume(b"aaa", Told())
        with pytest.raises(Held, match="rank 2 on "):
            jobs.discard(b"aaa", removed.append, Told())
    assert not removed
    assert open_job(job.path) == job


def test_a_discarded_job_is_gone_with_its_temporary_files(area: Path, state: Path) -> None:
    job = made(area, "aaa")
    seen: list[tuple[StoredJob, list[int], bool]] = []
    told = Told()

    def remove_temporaries(job: StoredJob) -> None:
        seen.append((job, [holder.rank for holder in holders(job.path)], os.path.exists(job.path)))

    jobs.discard(b"aaa", remove_temporaries, told)
    assert seen == [(job, [0], True)], "the job is locked, and stays until its files are gone"
    assert not os.listdir(state)
    assert told == []


def test_a_job_stays_if_its_temporary_files_cannot_be_removed(area: Path, state: Path) -> None:
    job = made(area, "aaa")

    def failing(job: StoredJob) -> None:
        raise Refused("no")

    with pytest.raises(Refused, match="no"):
        jobs.discard(b"aaa", failing, Told())
    assert open_job(job.path) == job
    assert holders(job.path) == []


def test_nothing_is_removed_from_another_destination(area: Path, state: Path) -> None:
    made(area, "aaa")
    (area / "target").rmdir()
    removed: list[StoredJob] = []
    told = Told()
    jobs.discard(b"aaa", removed.append, told)
    assert not removed
    assert not os.listdir(state)
    assert len(told) == 1
    assert ".pcopy-aaa-* " in told[0].replace(")", " ")
    assert f"{area}/target: " in told[0]


def test_what_is_not_pcopys_is_left_and_told(area: Path, state: Path) -> None:
    made(area, "aaa", area / "mine")
    (area / "mine" / "thesis").write_text("mine")
    told = Told()
    jobs.discard(bytes(area / "mine"), lambda job: None, told)
    assert os.listdir(area / "mine") == ["thesis"]
    assert told == [f"{area}/mine/thesis: left, since it is not pcopy's"]


def test_only_jobs_are_discarded(area: Path, state: Path) -> None:
    (area / "data").mkdir()
    (area / "data" / "current").write_text("mine")
    for word, reason in (
        (bytes(area / "data"), "no job is in"),
        (b"aaa", "no such job"),
        (bytes(area / "x"), "no such"),
    ):
        with pytest.raises(Refused, match=reason):
            jobs.discard(word, lambda job: None, Told())
    assert os.listdir(area / "data") == ["current"]


def test_root_touches_nobody_elses_job(area: Path, state: Path) -> None:
    require_root("give a directory away")
    job = made(area, "aaa")
    os.chown(job.path, NOBODY, NOBODY)
    for action in (jobs.resume, lambda word, tell: jobs.discard(word, lambda job: None, tell)):
        with pytest.raises(Refused, match=f"belongs to user {NOBODY}"):
            action(b"aaa", Told())
    assert sorted(os.listdir(state / "aaa")) == ["job", "lock-0"]
    assert f"belongstouser{NOBODY}" in squeezed(jobs.listing(False))


def damage(directory: Path) -> None:
    with open(directory / "job", "ab") as file:
        file.write(b"x")


def test_a_damaged_job_is_discarded(area: Path, state: Path) -> None:
    made(area, "aaa")
    damage(state / "aaa")
    removed: list[StoredJob] = []
    told = Told()
    jobs.discard(b"aaa", removed.append, told)
    assert not removed and not os.listdir(state)
    (line,) = told
    assert "its digest does not fit" in line and "(.pcopy-aaa-*) may be left" in line


def test_what_looks_like_a_damaged_job_is_one_only_with_its_files(area: Path, state: Path) -> None:
    for name, change in (("more", "thesis"), ("less", "lock-0")):
        made(area, "aaa", area / name)
        damage(area / name)
        (area / name / change).unlink() if name == "less" else (area / name / change).touch()
        before = sorted(os.listdir(area / name))
        with pytest.raises(Refused, match="thesis, which is no job's" if name == "more" else "no job is in this"):
            jobs.discard(bytes(area / name), lambda job: None, Told())
        assert sorted(os.listdir(area / name)) == before


def test_a_damaged_job_that_is_worked_on_is_not_discarded(area: Path, state: Path) -> None:
    job = made(area, "aaa")
    damage(state / "aaa")
    with child(HOLD, job.path, "1"), pytest.raises(Held, match="rank 1 on "):
        jobs.discard(b"aaa", lambda job: None, Told())
    assert "job" in os.listdir(state / "aaa")
