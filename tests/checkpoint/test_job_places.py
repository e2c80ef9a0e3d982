"""Where jobs are kept, and that nobody else can have a hand in them."""

from __future__ import annotations

import os
import pwd
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from pcopy.checkpoint import directory as files
from pcopy.checkpoint.directory import check_can_make_directory
from pcopy.jobs import directories as jobs
from pcopy.jobs.directories import (
    StoredJob,
    create_job,
    open_and_lock_unfinished_job,
    open_job,
    state_directory,
    unfinished_jobs,
    write_job_file,
)
from pcopy.jobs.job_file import encode_job
from pcopy.jobs.lock import JobLockedError, LockHolder, RankLock
from tests.checkpoint.made import job_of, made, some_root, tree
from tests.support.refusals import refusal
from tests.support.users import NOBODY, as_user, require_root


def test_job_directory_follows_xdg_state_home(area: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = area / "home"
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("XDG_STATE_HOME", str(area / "state"))
    assert jobs.state_directory() == bytes(area / "state/pcopy")
    for ignored in ("", "relative"):
        monkeypatch.setenv("XDG_STATE_HOME", ignored)
        assert jobs.state_directory() == bytes(home / ".local/state/pcopy")
    monkeypatch.delenv("XDG_STATE_HOME")
    assert made(None).path == bytes(home / ".local/state/pcopy/0123456789")
    assert set(tree(area).values()) == {0o700, 0o600}


@pytest.mark.parametrize("home", [None, "", "relative"])
def test_home_is_read_from_user_database_if_variable_is_unset(
    home: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("XDG_STATE_HOME", raising=False)
    monkeypatch.delenv("HOME")
    if home is not None:
        monkeypatch.setenv("HOME", home)
    expected = os.path.join(pwd.getpwuid(os.geteuid()).pw_dir, ".local/state/pcopy")
    assert jobs.state_directory() == os.fsencode(expected)

    def unknown(uid: int) -> None:
        raise KeyError(uid)

    monkeypatch.setattr(pwd, "getpwuid", unknown)
    text = refusal(jobs.state_directory)
    assert "--checkpoint DIR" in text
    assert "--checkpoint none" in text


def test_refusal_of_unwritable_state_directory_names_options(area: Path, state: Path) -> None:
    require_root("make a directory that the user may not write")

    def tried() -> None:
        for action in (
            lambda: check_can_make_directory(state_directory()),
            lambda: create_job(None, job_of(some_root())),
        ):
            text = refusal(action)
            assert text.startswith(str(area))
            assert "--checkpoint DIR" in text
            assert "--checkpoint none" in text

    as_user(tried)
    assert not os.listdir(area)
    check_can_make_directory(state_directory())
    assert not os.listdir(area), "looking has made something"


def test_state_directory_of_another_user_is_refused(state: Path) -> None:
    require_root("give a directory away")
    state.mkdir(parents=True)
    os.chown(state, NOBODY, NOBODY)
    for action in (lambda: create_job(None, job_of(some_root())), lambda: unfinished_jobs(bytes(state))):
        assert f"belongs to user {NOBODY}" in refusal(action)
    assert not os.listdir(state)


def test_file_in_the_path_of_a_job_directory_is_refused(area: Path) -> None:
    (area / "file").touch()
    assert "--checkpoint DIR" in refusal(lambda: check_can_make_directory(bytes(area / "file" / "job")))
    for path in (area / "file", area / "file" / "job"):
        refusal(partial(create_job, bytes(path), job_of(some_root())))
        refusal(partial(check_can_make_directory, bytes(path)))
    assert os.listdir(area) == ["file"]


def uses(directory: Path) -> list[Callable[[], object]]:
    path = bytes(directory)
    return [
        lambda: open_job(path),
        lambda: open_and_lock_unfinished_job(path),
        lambda: create_job(path, job_of(some_root())),
        lambda: check_can_make_directory(path),
        lambda: jobs.has_unfinished_job(path),
        lambda: write_job_file(StoredJob(path, job_of(some_root()))),
    ]


@pytest.mark.parametrize("mode", [0o770, 0o720, 0o707, 0o702, 0o1777])
def test_job_directory_that_others_may_write_is_refused(mode: int, area: Path) -> None:
    made(area / "job")
    (area / "job").chmod(mode)
    for use in uses(area / "job"):
        assert "others may write" in refusal(use)


def test_file_that_others_may_write_is_refused(area: Path) -> None:
    stored = made(area / "job")
    (area / "job" / "job").chmod(0o620)
    text = refusal(lambda: open_job(stored.path))
    assert text.startswith(f"{area}/job/job: others may write to it (mode 0620); ")
    assert "chmod go-w" in text and "--checkpoint" not in text


@pytest.mark.parametrize("what", ["directory", "file"])
def test_job_owned_by_another_user_is_refused_even_by_root(what: str, area: Path) -> None:
    require_root("give a file away")
    stored = made(area / "job")
    os.chown(area / "job" if what == "directory" else area / "job" / "job", NOBODY, NOBODY)
    for use in uses(area / "job")[:1] if what == "file" else uses(area / "job"):
        assert f"belongs to user {NOBODY}" in refusal(use)
    assert stored.path == bytes(area / "job")


def test_job_owned_by_root_is_refused_for_other_users(area: Path) -> None:
    require_root("be two users")
    made(area / "job")
    (area / "job").chmod(0o755)
    (area / "job" / "job").chmod(0o644)
    (area / "job" / "lock-0").chmod(0o666)

    def tried() -> None:
        for use in uses(area / "job"):
            assert "belongs to user 0" in refusal(use)

    as_user(tried)


def test_job_recorded_for_another_user_is_refused(area: Path) -> None:
    stored = made(area / "job", user=os.geteuid() + 1)
    assert f"a job of user {os.geteuid() + 1}" in refusal(lambda: open_job(stored.path))


@pytest.mark.parametrize("ending", ["", "/", "//", "/."])
def test_symbolic_link_to_a_job_directory_is_refused(ending: str, area: Path) -> None:
    made(area / "job")
    (area / "link").symlink_to("job")
    actions: list[Callable[[bytes], object]] = [
        open_job,
        open_and_lock_unfinished_job,
        check_can_make_directory,
        jobs.has_unfinished_job,
    ]
    for action in actions:
        assert "a symbolic link" in refusal(partial(action, os.fsencode(f"{area}/link{ending}")))
    assert "a symbolic link" in refusal(lambda: create_job(os.fsencode(f"{area}/link{ending}"), job_of(some_root())))


def test_symbolic_link_in_place_of_the_job_file_is_not_followed(area: Path) -> None:
    stored = made(area / "job")
    (area / "job" / "job").rename(area / "moved")
    (area / "job" / "job").symlink_to(area / "moved")
    refusal(lambda: open_job(stored.path))
    write_job_file(stored)
    assert (area / "moved").read_bytes() == encode_job(stored.file)
    assert not (area / "job" / "job").is_symlink()


def test_fifo_in_place_of_the_job_file_does_not_block(area: Path) -> None:
    stored = made(area / "job")
    (area / "job" / "job").unlink()
    os.mkfifo(area / "job" / "job", 0o600)
    assert "not a regular file" in refusal(lambda: open_job(stored.path))


def test_parent_of_a_job_directory_may_be_a_link(area: Path) -> None:
    (area / "real").mkdir()
    (area / "link").symlink_to("real")
    assert open_job(made(area / "link" / "job").path).file.name == "0123456789"


def test_job_directory_locked_by_another_process_is_not_removed(area: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It was made by this one, and locked by that one in the same moment."""
    path = area / "job"

    def taken(directory: bytes) -> RankLock:
        (path / "lock-0").touch()
        raise JobLockedError(directory, [LockHolder(0, "elsewhere", 1, 0.0)])

    monkeypatch.setattr(jobs, "take_lock_unless_job_is_locked", taken)
    with pytest.raises(JobLockedError):
        create_job(bytes(path), job_of(some_root()))
    assert os.listdir(path) == ["lock-0"]


@pytest.mark.parametrize("there", [False, True])
def test_interrupted_creation_of_a_job_leaves_nothing(area: Path, monkeypatch: pytest.MonkeyPatch, there: bool) -> None:
    """Whatever ends it: a signal, too, raises at any point."""
    path = area / "above" / "job"
    if there:
        path.mkdir(parents=True, mode=0o700)

    def interrupted(directory: int, name: bytes, data: bytes, *, durable: bool) -> None:
        real(directory, name, data, durable=durable)
        raise KeyboardInterrupt

    real = files.replace_file
    monkeypatch.setattr(files, "replace_file", interrupted)
    with pytest.raises(KeyboardInterrupt):
        create_job(bytes(path), job_of(some_root()))
    assert [*area.rglob("*")] == ([path.parent, path] if there else [])
