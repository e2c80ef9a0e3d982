"""Totals of a resumed job: each item is counted once over all its runs."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path
from typing import Any

from tests.chaos.dataset import SPLIT, make_dataset
from tests.chaos.interrupted import TOTALS
from tests.chaos.unfinished import INCOMPLETE, STOPPED, check_equal, listed
from tests.support.command import Completed, pcopy, show, succeed, summary
from tests.support.files import age_directories
from tests.support.filesystems import remove
from tests.support.users import NOBODY, is_root


def test_resume_retries_failed_items(area: Path, env: dict[str, str]) -> None:
    """Items that an ordinary user cannot read become readable between the runs."""
    source, copy = area / "source", area / "copy"
    make_dataset(source, 41, files=60, directories=10, crossing=10)
    os.chmod(source, 0o755)
    closed = source / "closed"
    closed.mkdir()
    (closed / "inside").write_bytes(b"inside")
    (source / "secret").write_bytes(b"secret")
    (source / "linked").write_bytes(b"linked")
    os.link(source / "linked", source / "also linked")
    give_away(source)
    for name, mode in (("closed", 0), ("secret", 0), ("linked", 0)):
        os.chmod(source / name, mode)
    copy.mkdir()
    os.chown(copy, NOBODY, NOBODY) if is_root() else None
    (area / "state").mkdir()
    os.chown(area / "state", NOBODY, NOBODY) if is_root() else None
    options: dict[str, Any] = {"env": env, "user": NOBODY, "ranks": 2}
    run = pcopy("--json", *SPLIT, "-T", source, copy, **options)
    assert run.returncode == INCOMPLETE, show(run)
    assert summary(run)["failed"] == 4, show(run)
    assert [job["state"] for job in listed(env, user=NOBODY)] == ["failed items"]
    again = pcopy("--resume", "--json", **options)
    assert again.returncode == INCOMPLETE, show(again)
    assert {key: summary(again)[key] for key in TOTALS} == {key: summary(run)[key] for key in TOTALS}
    for name, mode in (("closed", 0o755), ("secret", 0o644), ("linked", 0o600)):
        os.chmod(source / name, mode)
    done = pcopy("--resume", "--json", **options)
    assert done.returncode == 0, show(done)
    check_equal(source, copy)
    remove(area / "other")
    wanted = pcopy("--json", "--checkpoint", "none", *SPLIT, source, area / "other", env=env, ranks=2)
    assert {key: summary(done)[key] for key in TOTALS} == {key: summary(wanted)[key] for key in TOTALS}


def give_away(tree: Path) -> None:
    """Give a tree to the ordinary user, and remove items and attributes that only root can copy."""
    if not is_root():
        return
    for directory, names, files in os.walk(tree):
        for name in ("", *names, *files):
            path = os.path.join(directory, name)
            mode = os.lstat(path).st_mode
            if stat.S_ISBLK(mode) or stat.S_ISCHR(mode):
                os.unlink(path)
                continue
            for attribute in os.listxattr(path, follow_symlinks=False):
                if attribute.startswith(("trusted.", "security.")):
                    os.removexattr(path, attribute, follow_symlinks=False)
            os.chown(path, NOBODY, NOBODY, follow_symlinks=False)
            if not stat.S_ISLNK(mode):
                os.chmod(path, stat.S_IMODE(mode) & 0o777 | 0o700)


def test_no_count_is_negative_in_a_job_that_was_stopped_many_times(area: Path, env: dict[str, str]) -> None:
    source, copy = area / "source", area / "copy"
    for name in "abc":
        (source / name).mkdir(parents=True)
        (source / name / "file").write_bytes(b"file")
        (copy / name / "file" / "full").mkdir(parents=True)
    run = pcopy("--json", "--max-errors", "2", "-T", source, copy, ranks=2, env=env)
    for limit in (1, 1, 2, 1, 9):
        check_counts(run)
        run = pcopy("--resume", "--json", "--max-errors", str(limit), ranks=2, env=env)
    assert run.returncode == INCOMPLETE, show(run)
    assert (summary(run)["failed"], summary(run)["directories"]) == (3, 4)


def test_no_count_is_negative_if_a_directory_fails_before_it_is_counted(area: Path, env: dict[str, str]) -> None:
    """The directory was not finished when the job was stopped; its source is missing when its failed item is
    retried."""
    source, copy = area / "source", area / "copy"
    (source / "directory").mkdir(parents=True)
    (source / "directory" / "file").write_bytes(b"file")
    (copy / "directory" / "file" / "full").mkdir(parents=True)
    check_counts(pcopy("--json", "--max-errors", "1", "-T", source, copy, ranks=1, env=env))
    (source / "directory").rename(area / "elsewhere")
    check_counts(pcopy("--resume", "--json", "--max-errors", "1", ranks=1, env=env))
    done = pcopy("--resume", "--json", "--max-errors", "9", ranks=2, env=env)
    assert done.returncode == INCOMPLETE, show(done)
    assert (summary(done)["failed"], summary(done)["directories"]) == (2, 1)


def check_counts(run: Completed) -> None:
    counts = {key: value for key, value in json.loads(run.stdout).items() if type(value) is int}
    assert run.returncode == STOPPED, show(run)
    assert min(counts.values()) >= 0, counts
    assert counts["copied"] + counts["skipped"] + counts["failed"] <= counts["found"], counts


def test_resumed_job_reports_items_verified_in_all_runs(area: Path, env: dict[str, str]) -> None:
    """Items and bytes of all runs are reported; items that an earlier run verified are not read again."""
    source, copy = area / "source", area / "copy"
    source.mkdir()
    for number in range(5):
        (source / str(number)).write_bytes(bytes(10_000))
    (source / "large").write_bytes(os.urandom(3 << 20))
    (source / "late").write_bytes(bytes(1000))
    os.link(source / "large", source / "linked")
    (copy / "late" / "full").mkdir(parents=True)
    age_directories(copy)
    run = pcopy("--verify", *SPLIT, "-T", source, copy, ranks=2, env=env)
    assert run.returncode == INCOMPLETE, show(run)
    assert b"  verified: 8 items, 3.05 MiB read back\n" in run.stdout, show(run)
    remove(copy / "late")
    done = succeed("--resume", ranks=2, env=env)
    assert b"  verified: 9 items, 3.05 MiB read back\n" in done.stdout, show(done)
    assert b"9 found = 9 copied" in done.stdout, show(done)
