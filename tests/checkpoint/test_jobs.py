"""Job directories: what they hold comes back, nobody else has a hand in them, and nothing foreign goes with them."""

from __future__ import annotations

import hashlib
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from pcopy.checkpoint.directory import check_can_make_directory
from pcopy.jobs import directories as jobs
from pcopy.jobs.directories import (
    StoredJob,
    create_job,
    nonce_of_job,
    open_and_lock_job,
    open_and_lock_unfinished_job,
    open_job,
    remove_job,
    remove_late_records,
    remove_unreadable_job,
    unfinished_jobs,
    write_job_file,
)
from pcopy.jobs.job_file import (
    JOB_OVER,
    JOB_STOPPED,
    JobFile,
    JobFileVersionError,
    decode_job,
    decode_nonce,
    encode_job,
)
from pcopy.jobs.lifecycle import CheckpointSettings
from pcopy.jobs.lock import JobLockedError, RankLock, take_lock_unless_job_is_locked
from pcopy.jobs.rank_store import wait_until_job_is_visible
from tests.checkpoint.made import HOLD, child, job_of, made, some_root, tree
from tests.support.filesystems import mounted
from tests.support.refusals import refusal


def test_stored_job_is_read_back_unchanged(area: Path) -> None:
    job = job_of(some_root(), some_root()._replace(item=b""), runs=3, state=JOB_STOPPED)
    stored, lock = create_job(bytes(area / "job"), job)
    lock.close()
    assert open_job(bytes(area / "job")) == stored == StoredJob(bytes(area / "job"), job)


def test_named_tuples_and_lists_are_read_back_as_tuples(area: Path) -> None:
    stored = made(area / "job", options={"root": some_root(), "list": [1, [b"2"]], "map": {"bytes": {"map": b"3"}}})
    options = open_job(stored.path).file.options
    assert options == {"root": tuple(some_root()), "list": (1, (b"2",)), "map": {"bytes": {"map": b"3"}}}
    assert type(options["root"]) is tuple


@pytest.mark.parametrize("value", [object(), {1: 2}, {b"k": 2}, float("nan"), {1}])
def test_only_primitives_are_stored(value: object) -> None:
    with pytest.raises((TypeError, ValueError)):
        encode_job(job_of(some_root(), options={"key": value}))


def test_job_file_is_json_with_a_checksum(area: Path) -> None:
    stored = made(area / "job")
    head, _, body = (area / "job" / "job").read_bytes().partition(b"\n")
    assert head == b"pcopy job 6 " + hashlib.blake2b(body, digest_size=16).hexdigest().encode()
    reported = json.loads(body)
    assert reported["name"] == stored.file.name
    assert reported["roots"][0][1] == {"bytes": "/t\\"}


def _of_many(number: int) -> JobFile:
    """Its sources are items of one directory."""
    names = [b"f%d\xff\n" % each for each in range(number)]
    return job_of(*(some_root()._replace(item=name, name=name, source_shown=name, target_shown=name) for name in names))


def _calls(action: Callable[[], object]) -> int:
    """How many calls of functions, of Python's or C's, that takes."""
    number = 0

    def count(frame: FrameType, event: str, argument: object) -> None:
        nonlocal number
        number += event in ("call", "c_call")

    sys.setprofile(count)
    try:
        action()
    finally:
        sys.setprofile(None)
    return number


def test_number_of_calls_to_store_a_root_is_limited() -> None:
    """Two calls for each field, and some more for a name that is met first; what is written is what json reads."""
    few, many = _of_many(100), _of_many(600)
    assert _calls(lambda: encode_job(many)) - _calls(lambda: encode_job(few)) < 500 * 45
    body = encode_job(many).partition(b"\n")[2]
    name = {"bytes": "f599\udcff\n"}
    head, tail = [{"bytes": "/s\udcff\n"}, {"bytes": "/t\\"}], [[1 << 40, 2], [3, 4], [0xEF53, 1 << 63], [6, 7]]
    assert json.loads(body)["roots"][-1] == [*head, name, name, name, name, *tail, [0, 0, 0, 0]]


def test_nonce_is_read_without_parsing_the_roots(area: Path) -> None:
    """Each rank compares it before its first record."""
    job = _of_many(600)._replace(nonce="cd" * 16)
    _, lock = create_job(bytes(area / "many"), job)
    lock.close()
    assert (
        _calls(
            lambda: wait_until_job_is_visible(CheckpointSettings(directory=bytes(area / "many"), nonce=job.nonce), 0.0)
        )
        < 600
    )
    many = encode_job(job)
    assert decode_nonce(many) == job.nonce
    stored = made(area / "job", options={"key": b'\n "nonce": "no",\n'})
    assert nonce_of_job(stored.path) == stored.file.nonce
    with pytest.raises(ValueError, match="damaged"):
        decode_nonce(many.replace(b"cdcd", b"abab"))
    with pytest.raises(JobFileVersionError):
        decode_nonce(many.replace(b"job 6 ", b"job 5 "))


def test_job_of_another_version_is_refused_and_can_be_discarded(area: Path) -> None:
    stored = made(area / "job")
    path = area / "job" / "job"
    path.write_bytes(path.read_bytes().replace(b"pcopy job 6", b"pcopy job 1", 1))
    said = refusal(lambda: open_and_lock_unfinished_job(stored.path))
    assert "version 1 of pcopy's jobs; this pcopy reads version 6" in said
    assert said.endswith(f"or discard it: pcopy --discard {area}/job")
    remove_unreadable_job(stored.path)
    assert not (area / "job").exists()


def test_roots_of_another_version_are_read_if_their_form_is_unchanged() -> None:
    """And if what is stored is whole."""
    body = encode_job(job_of(some_root())).partition(b"\n")[2]
    job, fields = job_of(some_root()), json.loads(body)
    other = {**fields, "more": 1, "tasks": "none"}
    forms = [(other, job.roots), ({**fields, "roots": fields["roots"][0]}, ()), ({**fields, "roots": 7}, ()), ([], ())]
    for value in ({"bytes": "t"}, {"bytes": "/t\0"}, "/t", None):
        forms.append(({**fields, "roots": [[fields["roots"][0][0], value, *fields["roots"][0][2:]]]}, ()))
    for form, roots in forms:
        body = json.dumps(form).encode()
        digest = hashlib.blake2b(body, digest_size=16).hexdigest().encode()
        for end, found in ((b"", roots), (b" ", ())):
            with pytest.raises(JobFileVersionError) as caught:
                decode_job(b"pcopy job 5 %s\n%s%s" % (digest, body, end))
            assert caught.value.roots == found


def test_any_damage_of_a_job_file_is_detected() -> None:
    contents = encode_job(job_of(some_root()))
    for at in range(len(contents)):
        for damaged in (contents[:at], contents[:at] + bytes([contents[at] ^ 4]) + contents[at + 1 :]):
            with pytest.raises(ValueError, match=r"not a job|this pcopy reads version 6$|damaged"):
                decode_job(damaged)


BODIES = (
    b"", b"{", b"[]", b"7", b'{"name": "a"}', b'{"a": {"map": {}, "bytes": ""}}', b'{"a": {"global": "os.system"}}',
    b'{"a": {}}', b'{"a": {"bytes": 7}}', b"[" * 100_000,
)  # fmt: skip


@pytest.mark.parametrize("body", BODIES, ids=lambda body: repr(body[:30]))
def test_job_file_with_invalid_body_is_refused(body: bytes, area: Path) -> None:
    stored = made(area / "job")
    digest = hashlib.blake2b(body, digest_size=16).hexdigest().encode()
    (area / "job" / "job").write_bytes(b"pcopy job 6 %s\n%s" % (digest, body))
    assert "job/job: not what pcopy writes" in refusal(lambda: open_job(stored.path))


def test_unknown_kind_of_value_in_job_file_is_refused() -> None:
    body = encode_job(job_of(some_root())).partition(b"\n")[2].replace(b'"map"', b'"mop"', 1)
    digest = hashlib.blake2b(body, digest_size=16).hexdigest().encode()
    with pytest.raises(ValueError, match="unknown kind of value: mop"):
        decode_job(b"pcopy job 6 %s\n%s" % (digest, body))


def test_missing_field_of_job_file_is_named() -> None:
    body = encode_job(job_of(some_root())).partition(b"\n")[2].replace(b'"stored"', b'"shored"', 1)
    digest = hashlib.blake2b(body, digest_size=16).hexdigest().encode()
    with pytest.raises(ValueError, match=r"^not what pcopy writes: the field stored is missing$"):
        decode_job(b"pcopy job 6 %s\n%s" % (digest, body))


@pytest.mark.parametrize(
    "wrong", [{"name": "../x"}, {"name": ""}, {"state": "well"}, {"runs": 0}, {"runs": "1"}, {"totals": ()}]
)
def test_invalid_values_in_job_file_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="not what pcopy writes"):
        decode_job(encode_job(job_of(some_root(), **wrong)))
    with pytest.raises(ValueError, match="not what pcopy writes"):
        decode_job(encode_job(job_of()))


def test_job_files_are_private_whatever_the_umask(area: Path) -> None:
    before = os.umask(0)
    try:
        job = made(area / "a" / "b" / "job")
        write_job_file(job)
    finally:
        os.umask(before)
    assert tree(area) == {
        "a": 0o700, "a/b": 0o700, "a/b/job": 0o700, "a/b/job/job": 0o600, "a/b/job/lock-0": 0o600
    }  # fmt: skip


def test_new_job_file_is_synced_before_it_replaces_the_old_one(area: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stored = made(area / "job")
    calls: list[str] = []
    fsync, rename = os.fsync, os.rename

    def synced(descriptor: int) -> None:
        calls.append(os.path.basename(os.readlink(f"/proc/self/fd/{descriptor}")))
        fsync(descriptor)

    def renamed(source: bytes, target: bytes, **directories: int) -> None:
        calls.append(f"{source.decode()} to {target.decode()}")
        rename(source, target, **directories)

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(os, "rename", renamed)
    write_job_file(stored._replace(file=stored.file._replace(runs=2)))
    assert calls == ["job.new", "job.new to job", "job"]
    assert open_job(stored.path).file.runs == 2


def test_full_disk_keeps_the_old_job_file(session_scratch: Path) -> None:
    with mounted("tmpfs", session_scratch, size=64 << 10) as point:
        stored = made(point / "job")
        with open(point / "filler", "wb") as filler:
            with pytest.raises(OSError):
                filler.write(bytes(1 << 20))
                filler.flush()
            assert "cannot be recorded: No space left" in refusal(lambda: write_job_file(stored))
            assert open_job(stored.path) == stored
            assert remove_job(*open_and_lock_unfinished_job(stored.path)) == []
            filler.truncate(0)
        assert os.listdir(point) == ["filler"]


def test_directory_with_other_files_is_refused_as_job_directory(area: Path) -> None:
    (area / "job").mkdir(0o755)
    (area / "job" / "thesis").write_text("mine")
    assert "contains thesis, which pcopy did not create" in refusal(
        lambda: create_job(bytes(area / "job"), job_of(some_root()))
    )
    assert "no job is in" in refusal(lambda: open_and_lock_unfinished_job(bytes(area / "job")))
    assert not jobs.has_unfinished_job(bytes(area / "job"))
    assert os.listdir(area / "job") == ["thesis"]


def test_empty_directory_can_become_a_job_directory(area: Path) -> None:
    (area / "job").mkdir(0o755)
    check_can_make_directory(bytes(area / "job"))
    made(area / "job")
    assert jobs.has_unfinished_job(bytes(area / "job"))


def test_existing_job_is_never_overwritten(area: Path) -> None:
    stored = made(area / "job")
    other = job_of(some_root(), name="other")
    assert "contains a job already" in refusal(lambda: create_job(bytes(area / "job"), other))
    assert open_job(stored.path) == stored
    job, lock = open_and_lock_unfinished_job(stored.path)
    with pytest.raises(JobLockedError):
        create_job(bytes(area / "job"), other)
    assert job == stored
    lock.close()


def test_new_job_removes_files_of_a_finished_one(area: Path) -> None:
    stored = made(area / "job")
    write_job_file(stored._replace(file=stored.file._replace(state=JOB_OVER)))
    fill(area / "job")
    assert not jobs.has_unfinished_job(stored.path)
    assert "the job is finished" in refusal(lambda: open_and_lock_unfinished_job(stored.path))
    made(area / "job", name="other")
    assert sorted(os.listdir(area / "job")) == ["job", "lock-0"]
    assert open_job(stored.path).file.name == "other"


OURS = (
    *("current", "current.new", "job.new", "lock-1", "lock-12", "run-1/base-0", "run-1/facts-0", "run-1/base-1.new"),
    *("run-12/facts-345",),
)


def fill(directory: Path) -> None:
    for name in OURS:
        (directory / name).parent.mkdir(exist_ok=True)
        (directory / name).write_text("x")


def test_removed_job_leaves_no_files(area: Path) -> None:
    made(area / "job")
    fill(area / "job")
    assert remove_job(*open_and_lock_unfinished_job(bytes(area / "job"))) == []
    assert not os.listdir(area)


def test_records_written_during_removal_of_a_job_are_removed(area: Path) -> None:
    """By ranks that do not know yet; but not what a new job in its place has made."""
    made(area / "job")
    job, lock = open_and_lock_unfinished_job(bytes(area / "job"))
    remove_job(job, lock)
    (area / "job").mkdir(0o700)
    fill(area / "job")
    remove_late_records(job)
    assert not os.listdir(area)
    remove_late_records(job)
    made(area / "job")
    fill(area / "job")
    remove_late_records(job)
    assert all((area / "job" / name).exists() for name in OURS)


def test_removal_of_a_job_keeps_files_that_pcopy_did_not_create(area: Path) -> None:
    made(area / "job")
    fill(area / "job")
    (area / "outside").mkdir()
    (area / "outside" / "base-0").write_text("mine")
    foreign = ["thesis", "run-1/thesis", "run-x/base-0", "jobs", "lock-x", "lock-7/base-0", "run-1/base-7/facts-0"]
    for name in foreign:
        (area / "job" / name).parent.mkdir(parents=True, exist_ok=True)
        (area / "job" / name).write_text("mine")
    (area / "job" / "run-9").symlink_to(area / "outside")
    left = remove_job(*open_and_lock_unfinished_job(bytes(area / "job")))
    paths = [path for path in (area / "job").rglob("*") if path.is_symlink() or not path.is_dir()]
    assert {str(path.relative_to(area / "job")) for path in paths} == {*foreign, "run-9"}
    assert set(left) == {os.fsencode(name) for name in os.listdir(area / "job")}
    assert (area / "outside" / "base-0").read_text() == "mine"
    assert all((area / "job" / name).read_text() == "mine" for name in foreign)


def test_partly_removed_job_counts_as_finished(area: Path, state: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stored = made(None)
    fill(state / "0123456789")
    unlink = os.unlink

    def failing(name: bytes, *, dir_fd: int | None = None) -> None:
        if name == b"facts-345":
            raise OSError(5, "Input/output error")
        unlink(name, dir_fd=dir_fd)

    job, lock = open_and_lock_unfinished_job(stored.path)
    with monkeypatch.context() as patched:
        patched.setattr(os, "unlink", failing)
        assert "cannot be removed: Input/output error" in refusal(lambda: remove_job(job, lock))
    lock.close()
    assert unfinished_jobs(bytes(state)) == []
    assert "the job is finished" in refusal(lambda: open_and_lock_unfinished_job(stored.path))


def test_unfinished_jobs_are_listed_newest_first(state: Path) -> None:
    assert unfinished_jobs(bytes(state)) == []
    for name, created in (("a", 2.0), ("b", 3.5), ("c", 1.0)):
        made(None, name=name, created=created)
    over = made(None, name="d", created=9.0)
    write_job_file(over._replace(file=over.file._replace(state=JOB_OVER)))
    (state / "file").write_text("x")
    (state / "empty").mkdir()
    (state / "link").symlink_to("a")
    made(None, name="e", created=9.0)
    (state / "e" / "job").write_text("x")
    found = unfinished_jobs(bytes(state))
    assert [os.path.basename(listed.path) for listed in found] == [b"b", b"a", b"c", b"e", b"link"]
    assert [listed.file.name if listed.file else "" for listed in found] == ["b", "a", "c", "", ""]
    assert "not a job of pcopy's" in found[3].reason
    assert "symbolic link" in found[4].reason


def test_job_in_use_is_not_opened(area: Path) -> None:
    stored = made(area / "job")
    with (
        child(HOLD, stored.path, "3") as holder,
        pytest.raises(JobLockedError, match=rf"rank 3 on .*process {holder.pid}\b"),
    ):
        open_and_lock_unfinished_job(stored.path)
    _, lock = open_and_lock_unfinished_job(stored.path)
    lock.close()


def test_only_one_of_two_processes_creates_a_job(area: Path) -> None:
    first, lock = create_job(bytes(area / "job"), job_of(some_root()))
    with pytest.raises(JobLockedError):
        create_job(bytes(area / "job"), job_of(some_root(), name="other"))
    assert open_job(first.path) == first
    lock.close()


def test_opening_a_missing_job_leaves_no_lock_file(area: Path) -> None:
    (area / "empty").mkdir()
    refusal(lambda: open_and_lock_unfinished_job(bytes(area / "empty")))
    refusal(lambda: open_and_lock_unfinished_job(bytes(area / "missing")))
    assert os.listdir(area) == ["empty"]
    assert not os.listdir(area / "empty")


def test_requested_arguments_are_compared_by_name(area: Path) -> None:
    asked = {"SRC": [b"/a"], "--existing": "newer", "--preserve": (True, (-1, -1))}
    stored = open_job(made(area / "job", asked=asked).path).file
    assert stored.differing_option_names(asked) == []
    assert stored.differing_option_names({**asked, "SRC": (b"/a",)}) == []
    assert stored.differing_option_names({**asked, "SRC": (b"/b",), "--delete": True}) == ["SRC", "--delete"]
    assert stored.differing_option_names({"SRC": [b"/a"]}) == ["--existing", "--preserve"]


@pytest.mark.parametrize("whole", [True, False], ids=["with its directory", "but for its directory"])
@pytest.mark.parametrize("action", [open_and_lock_unfinished_job, open_and_lock_job])
def test_job_that_ends_while_it_is_opened_is_reported_as_finished(
    area: Path, monkeypatch: pytest.MonkeyPatch, action: Callable[[bytes], object], whole: bool
) -> None:
    """Its end leaves no trace, nor does who asked."""
    job = made(area / "job")

    def late(path: bytes) -> RankLock:
        if whole:
            remove_job(job, take_lock_unless_job_is_locked(path))
            return take_lock_unless_job_is_locked(path)
        os.unlink(area / "job" / "job")
        return take_lock_unless_job_is_locked(path)

    monkeypatch.setattr(jobs, "take_lock_unless_job_is_locked", late)
    assert refusal(lambda: action(job.path)) == f"{area}/job: the job has finished or was removed in the meantime"
    assert os.listdir(area) == []
