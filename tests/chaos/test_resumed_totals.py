"""Items that a resumed job retries are counted once: the totals are those of an uninterrupted job, after any number of
resumes."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from tests.chaos.dataset import SPLIT
from tests.chaos.interrupted import TOTALS
from tests.chaos.unfinished import INCOMPLETE, Stop
from tests.support.command import Completed, pcopy, show, succeed, summary
from tests.support.faults import ITEM_BY_ITEM, READS, Fault
from tests.support.files import age_directories, noise
from tests.support.held import held
from tests.support.users import NOBODY, require_root

COUNTED = (*TOTALS, "excused", "warnings")


def totals(run: Completed) -> dict[str, int]:
    reported = summary(run)
    return {key: reported[key] for key in COUNTED}


@pytest.mark.parametrize("directory", [False, True], ids=["file", "and directory"])
def test_excused_items_are_counted_once_over_all_runs(area: Path, env: dict[str, str], directory: bool) -> None:
    """An ordinary user copies files of root, and cannot read all of them."""
    require_root("have files that are not the user's")
    source = area / "source"
    (source / "closed").mkdir(parents=True)
    for name in ("open", "secret", "closed/inside"):
        (source / name).write_bytes(b"root's")
    for name in ("state", "copies"):
        (area / name).mkdir()
        os.chown(area / name, NOBODY, NOBODY)
    unreadable = [source / "secret", *([source / "closed"] if directory else [])]
    for path in unreadable:
        path.chmod(0)
    failing = [pcopy("--json", "-T", source, area / "copies/one", ranks=2, env=env, user=NOBODY)]
    failing += [pcopy("--resume", "--json", ranks=ranks, env=env, user=NOBODY) for ranks in (1, 3)]
    not_roots = 2 if directory else 4  # the copied ones of five items
    for run in failing:
        assert run.returncode == INCOMPLETE, show(run)
        assert summary(run)["excused"] == not_roots, show(run)
        assert totals(run) == totals(failing[0])
    for path in unreadable:
        path.chmod(0o755)
    done = succeed("--resume", "--json", ranks=2, env=env, user=NOBODY)
    assert summary(done)["excused"] == sum(path.lstat().st_uid == NOBODY for path in walk(area / "copies/one")) == 5
    whole = succeed("--json", "-T", source, area / "copies/two", ranks=2, env=env, user=NOBODY)
    assert totals(done) == totals(whole)


def walk(tree: Path) -> list[Path]:
    return [tree, *tree.rglob("*")]


@pytest.mark.parametrize("kind", ["small", "split", "link"])
def test_item_excused_before_it_failed_is_not_counted_as_excused(area: Path, env: dict[str, str], kind: str) -> None:
    """A new item has its metadata before a full directory is found under its name; it is created again later."""
    require_root("have files that are not the user's")
    source, copy = area / "source", area / "copy"
    source.mkdir()
    if kind == "link":
        (source / "item").symlink_to("somewhere")
    else:
        (source / "item").write_bytes(bytes(5) if kind == "small" else noise(6 << 20))
    (copy / "item/full").mkdir(parents=True)
    (area / "state").mkdir()
    for path in (copy, *copy.rglob("*"), area / "state"):
        os.chown(path, NOBODY, NOBODY)
    run = pcopy("--json", *SPLIT, "-T", source, copy, ranks=2, env=env, user=NOBODY)
    assert run.returncode == INCOMPLETE, show(run)
    assert (summary(run)["failed"], summary(run)["excused"]) == (1, 1), show(run)
    shutil.rmtree(copy / "item")
    done = succeed("--resume", "--json", ranks=2, env=env, user=NOBODY)
    assert summary(done)["excused"] == 2, show(done)


def test_excused_file_that_could_not_be_closed_is_not_counted_as_excused(area: Path, env: dict[str, str]) -> None:
    require_root("have files that are not the user's")
    source, copy = area / "source", area / "copy"
    source.mkdir()
    (source / "item").write_bytes(b"file")
    for path in (copy, area / "state"):
        path.mkdir()
        os.chown(path, NOBODY, NOBODY)
    fault = Fault(area / "trace", ["close"], copy / "item", "EIO")
    run = pcopy("--json", "-T", source, copy, ranks=1, env=env, user=NOBODY, wrap=fault.wrap())
    fault.check()
    assert run.returncode == INCOMPLETE, show(run)
    assert (summary(run)["failed"], summary(run)["excused"]) == (1, 1), show(run)
    done = succeed("--resume", "--json", ranks=2, env=env, user=NOBODY)
    assert summary(done)["excused"] == 2, show(done)


@pytest.mark.parametrize("repair", [True, False], ids=["repaired", "resumed"])
def test_excused_items_that_failed_verification_are_counted_once(area: Path, env: dict[str, str], repair: bool) -> None:
    require_root("have files that are not the user's")
    source, copy = area / "source", area / "copies/one"
    source.mkdir()
    for name, size in {"small": 5, "large": 6 << 20, "linked": 7}.items():
        (source / name).write_bytes(os.urandom(size))
    (source / "link").symlink_to("somewhere")
    os.link(source / "linked", source / "name")
    for name in ("copies", "state"):
        (area / name).mkdir()
        os.chown(area / name, NOBODY, NOBODY)
    words = ("--json", "--repair" if repair else "--verify", *SPLIT, "-T", source)
    with held(area / "trace", *words, copy, ranks=2, env=env, user=NOBODY) as run:
        for name in ("small", "large", "linked"):
            (copy / name).write_bytes(b"else")
        (copy / "link").unlink()
        ended = run.go_on()
    assert summary(ended)["failed"] == (0 if repair else 5), show(ended)
    if not repair:
        ended = pcopy("--resume", "--json", ranks=3, env=env, user=NOBODY)
    assert ended.returncode == 0, show(ended)
    whole = succeed(*words, area / "copies/two", ranks=2, env=env, user=NOBODY)
    assert summary(ended)["excused"] == summary(whole)["excused"] == 5, show(ended)  # once per inode


def test_excused_file_whose_chunk_fails_on_resume_is_counted_once(area: Path, env: dict[str, str]) -> None:
    """A file that failed verification is copied again, fails in one of its chunks, and is retried by the next run."""
    require_root("have files that are not the user's")
    source, copy = area / "source", area / "copy"
    source.mkdir()
    (source / "large").write_bytes(noise(6 << 20))
    for path in (copy, area / "state"):
        path.mkdir()
        os.chown(path, NOBODY, NOBODY)
    with held(area / "trace", "--json", "--verify", *SPLIT, "-T", source, copy, ranks=2, env=env, user=NOBODY) as run:
        (copy / "large").write_bytes(b"else")
        ended = run.go_on()
    assert (summary(ended)["failed"], summary(ended)["excused"]) == (1, 2), show(ended)
    fault = Fault(area / "trace", READS, source / "large", "EREMOTEIO")
    failed = pcopy("--resume", "--json", ranks=2, env=env, user=NOBODY, wrap=fault.wrap())
    fault.check()
    assert (summary(failed)["failed"], summary(failed)["excused"]) == (1, 2), show(failed)
    done = succeed("--resume", "--json", ranks=3, env=env, user=NOBODY)
    assert summary(done)["excused"] == 2, show(done)


def test_source_directory_replaced_by_a_symlink_still_counts_as_a_directory(
    area: Path, env: dict[str, str], stop: Stop
) -> None:
    """Some of its files were not copied when the job was stopped, and can no longer be; the copied directory itself
    exists."""
    source, copy = area / "source", area / "copy"
    for number in range(6):
        (source / str(number)).mkdir(parents=True)
        for file in range(50):
            (source / str(number) / str(file)).write_bytes(b"file")
    copy.mkdir()
    stop("--json", "-T", source, copy, ranks=2, until=lambda: len(os.listdir(copy)) == 6, slow=(ITEM_BY_ITEM, 20))
    copied, name = min((len(os.listdir(path)), path.name) for path in copy.iterdir() if path.is_dir())
    assert copied < 50, "the job had come too far"
    shutil.rmtree(source / name)
    (source / name).symlink_to("/etc")
    runs = [pcopy("--resume", "--json", ranks=ranks, env=env) for ranks in (2, 2, 3)]
    directories = sum(path.is_dir() for path in walk(copy))
    for run in runs:
        assert run.returncode == INCOMPLETE, show(run)
        assert totals(run) == totals(runs[0]), show(run)
        assert summary(run)["directories"] == directories == 7, show(run)
        assert 50 - copied <= summary(run)["failed"] <= 50, show(run)


def test_directory_without_a_source_fails_if_a_resume_writes_into_it(area: Path, env: dict[str, str]) -> None:
    """A name that could not be linked before is linked now, and the source times of the directory are no longer
    available."""
    source, copy = area / "source", area / "copy"
    for name in "ab":
        (source / name).mkdir(parents=True)
    (source / "a/name").write_bytes(b"file")
    os.link(source / "a/name", source / "b/name")
    (copy / "b/name/full").mkdir(parents=True)
    age_directories(copy)
    failing = pcopy("--json", "-T", source, copy, ranks=2, env=env)
    reported = summary(failing)
    assert (failing.returncode, reported["failed"], reported["directories"]) == (INCOMPLETE, 1, 3), show(failing)
    (source / "b").rename(area / "elsewhere")
    shutil.rmtree(copy / "b/name")
    for _ in range(2):
        failing = pcopy("--resume", "--json", ranks=2, env=env)
        reported = summary(failing)
        assert (copy / "b/name").samefile(copy / "a/name")
        assert (failing.returncode, reported["failed"], reported["directories"]) == (INCOMPLETE, 1, 2), show(failing)
