"""``--dry-run`` reports what a copy would do with each item, and changes nothing, not even a time."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path

import pytest

from tests.support.command import Argument, Completed, pcopy, show, summary
from tests.support.files import NOW, write
from tests.support.mixed import expected, mixed
from tests.support.users import NOBODY, is_root
from tests.support.walk import Entry, walk

WORDS = {b"copy", b"replace", b"meta", b"delete", b"skip"}

State = dict[bytes, tuple[object, ...]]


def state(place: Path) -> State:
    """Return the status of a tree and of each item in it, with all times and extended attributes."""
    fields = [field for field in dir(os.lstat(place)) if field.startswith("st_")]
    return {
        entry.path: (*(getattr(entry.status, field) for field in fields if _is_compared(entry, field)), entry.xattrs())
        for entry in walk(os.fsencode(place))
    }


def _is_compared(entry: Entry, field: str) -> bool:
    """Return False for the access time of symbolic links, whose texts a dry run reads."""
    return not (field.startswith("st_atime") and stat.S_ISLNK(entry.status.st_mode))


def item_lines(output: bytes) -> list[bytes]:
    """Return the lines about items, sorted."""
    return sorted(line for line in output.split(b"\n") if line.partition(b" ")[0] in WORDS)


def assert_dry_run_agrees(
    area: Path, *words: Argument, ranks: int = 2, launcher: str | None = None, status: int = 0
) -> Completed:
    """Assert that a dry run changes nothing, and that a copy then does what it reported."""
    before = state(area)
    dry = pcopy("--dry-run=all", *words, ranks=ranks, launcher=launcher, cwd=area)
    assert dry.returncode == status, show(dry)
    assert {path: (before[path], now) for path, now in state(area).items() if before.get(path) != now} == {}
    run = pcopy("-vv", "--progress", "none", *words, ranks=ranks, cwd=area)
    assert (run.returncode, item_lines(dry.stdout)) == (status, item_lines(run.stderr)), show(run)
    return dry


@pytest.mark.parametrize("policy", ["replace", "changed", "newer", "skip", "fail"])
def test_dry_run_reports_the_actions_of_the_copy(area: Path, policy: str) -> None:
    mixed(area / "source", area / "copy")
    wanted = expected(area / "source", area / "copy", policy)
    dry = assert_dry_run_agrees(
        area, "--existing", policy, "source/", "copy", ranks=3, status=1 if policy == "fail" else 0
    )
    reported = sorted(word for word in wanted.values() if word != "fail")
    assert sorted(line.partition(b" ")[0].decode() for line in item_lines(dry.stdout)) == reported


@pytest.mark.parametrize(
    "words",
    [
        ("--inplace",),
        ("--checksum",),
        ("--existing", "changed", "--modify-window", "200"),
        ("--existing", "changed", "--chown", "1:1"),
        ("--no-preserve", "all", "--existing", "newer"),
        ("--no-preserve", "links"),
        ("--exclude", "small*", "--larger-than", "3"),
        ("--signature", "sig", "--verify"),
    ],
    ids=" ".join,
)
def test_dry_run_respects_options(area: Path, words: tuple[str, ...]) -> None:
    if "--chown" in words and not is_root():
        pytest.skip("only root may give files away")
    mixed(area / "source", area / "copy")
    assert_dry_run_agrees(area, *words, "-T", "source", "copy")


@pytest.mark.parametrize("words", [("--mirror",), ("--mirror", "--max-delete", "9"), ("--mirror", "--exclude", "o*")])
def test_dry_run_reports_items_that_a_mirror_deletes(area: Path, words: tuple[str, ...]) -> None:
    mixed(area / "source", area / "copy")
    for name in ("old/one", "old/deep/two", "only"):
        write(area / "copy" / name, b"only there")
    dry = assert_dry_run_agrees(area, *words, "source/", "copy")
    deleted = [line for line in item_lines(dry.stdout) if line.startswith(b"delete ")]
    there = [
        b"copy/old",
        b"copy/old/deep",
        b"copy/old/deep/two",
        b"copy/old/one",
        b"copy/only",
        b"copy/other/only-there",
    ]
    assert deleted == ([] if "--exclude" in words else [b"delete " + path for path in there])


def test_dry_run_reports_all_items_of_a_missing_target_as_copied(area: Path) -> None:
    mixed(area / "source", area / "other")
    (area / "source/new/deep").chmod(0o500)
    assert_dry_run_agrees(area, "--mirror", "source/", "mirror")
    dry = assert_dry_run_agrees(area, "source", "new")
    assert {line.partition(b" ")[0] for line in item_lines(dry.stdout)} == {b"copy"}
    assert dry.stdout.startswith(b"source -> ")


def test_dry_run_reports_existing_items_of_other_types(area: Path) -> None:
    for name in ("file", "directory/inside", "full/inside"):
        write(area / "source" / name, b"contents")
    write(area / "copy/directory", b"a file")
    (area / "copy/file").mkdir()
    assert_dry_run_agrees(area, "source/", "copy")


@pytest.mark.parametrize(
    ("words", "status"),
    [((), 1), (("--delete",), 0), (("--mirror",), 0), (("--mirror", "--max-delete", "9"), 1)],
    ids=str,
)
def test_dry_run_reports_directories_at_the_names_of_files(area: Path, words: tuple[str, ...], status: int) -> None:
    """An empty directory is replaced. The items in a full one are deleted first, if deletion was requested."""
    for way in ("empty", "full"):
        source = area / "source" / way
        write(source / "small", b"contents")
        write(source / "large", bytes(5 << 20))
        write(source / "hard", b"of three names")
        for name in ("hard1", "hard2"):
            os.link(source / "hard", source / name)
        (source / "link").symlink_to("nowhere")
        os.mkfifo(source / "fifo")
        for name in ("small", "large", "hard1", "link", "fifo"):
            (area / "copy" / way / name).mkdir(parents=True)
            if way == "full":
                write(area / "copy/full" / name / "deep/inside", b"only there")
    assert_dry_run_agrees(area, *words, "source/", "copy", status=status)


def test_dry_run_reports_several_sources_and_single_files(area: Path) -> None:
    write(area / "one", b"1")
    write(area / "tree/two", b"22")
    write(area / "copy/one", b"1", NOW - 10**10)
    dry = assert_dry_run_agrees(area, "one", "tree", "copy")
    assert item_lines(dry.stdout) == [b"copy tree", b"copy tree/two", b"replace time one"]
    assert item_lines(assert_dry_run_agrees(area, "one", "another").stdout) == [b"copy one"]
    assert item_lines(assert_dry_run_agrees(area, "-u", "one", "copy/one").stdout) == [b"skip one"]


def test_run_under_a_launcher_succeeds(area: Path) -> None:
    mixed(area / "source", area / "copy")
    assert_dry_run_agrees(area, "--existing", "changed", "source/", "copy", launcher="mpi", ranks=2)


def test_dry_run_reports_totals_file_sizes_and_free_space(area: Path) -> None:
    """The test computes the sizes itself; the keys are those of the summary."""
    sizes = [0, 1, 4096, 4097, 65536, 65537, 3 << 20]
    for number, size in enumerate(sizes):
        write(area / f"source/{number}", bytes(size))
    os.link(area / "source/1", area / "source/link")
    dry = pcopy("--dry-run", "--json", "source", "copy", cwd=area)
    reported = summary(dry)
    assert dry.stdout.count(b"\n") == 1 and reported["dry_run"] is True
    assert reported["sizes"] == [
        {"up_to": 0, "files": 1, "bytes": 0},
        {"up_to": 4096, "files": 2, "bytes": 4097},
        {"up_to": 65536, "files": 2, "bytes": 4097 + 65536},
        {"up_to": 1 << 20, "files": 1, "bytes": 65537},
        {"up_to": 16 << 20, "files": 1, "bytes": 3 << 20},
    ]
    free = os.statvfs(area)
    assert abs(reported["free_bytes"] - free.f_bfree * free.f_frsize) < 1 << 30
    assert abs(reported["free_inodes"] - free.f_ffree) < 1 << 16
    real = summary(pcopy("--json", "source", "copy", cwd=area))
    same = set(real) - {"seconds", "bytes_per_second", "layouts"}
    assert {key: reported[key] for key in same} == {key: real[key] for key in same}
    shown = pcopy("--dry-run", "source", "other", cwd=area).stdout.decode()
    assert "up to 4.00 KiB: 2 files, 4.00 KiB" in shown and "free on " in shown, shown


def test_dry_run_counts_an_unreadable_directory_as_failed(area: Path) -> None:
    """Run as an ordinary user, since root can read every directory."""
    write(area / "source/dark/file", b"contents")
    write(area / "source/file", b"contents")
    (area / "source/dark").chmod(0)
    area.chmod(0o777)
    user = 65534 if is_root() else None
    run = pcopy("--dry-run", "--json", area / "source", area / "copy", user=user)
    assert run.returncode == 1 and b"dark" in run.stderr, show(run)
    assert (summary(run)["failed"], summary(run)["found"]) == (1, 3)
    (area / "source/dark").chmod(0o700)


def test_dry_run_reports_a_target_directory_without_permissions(area: Path) -> None:
    """A real copy makes the directory accessible, and sets its final mode at the end."""
    write(area / "source/dark/file", b"contents")
    (area / "copy/dark").mkdir(parents=True)
    for path in (area / "copy", area / "copy/dark"):
        os.chown(path, NOBODY if is_root() else -1, -1)
    (area / "copy/dark").chmod(0)
    user = NOBODY if is_root() else None
    run = pcopy("--dry-run", area / "source/", "-T", area / "copy", user=user)
    assert run.returncode == 1 and b"copy/dark/file: stat: Permission denied" in run.stderr, show(run)
    assert (area / "copy/dark").stat().st_mode & 0o777 == 0
    run = pcopy(area / "source/", "-T", area / "copy", user=user)
    assert run.returncode == 0 and (area / "copy/dark/file").read_bytes() == b"contents", show(run)


def test_dry_run_creates_no_job_and_cannot_resume_one(area: Path) -> None:
    write(area / "source/file", b"contents")
    env = {"XDG_STATE_HOME": str(area / "state")}
    words = ("--checkpoint", area / "job", "--log", area / "log", area / "source", area / "copy")
    run = pcopy("--dry-run", *words, env=env)
    assert run.returncode == 0, show(run)
    assert sorted(os.listdir(area)) == ["log", "source"]
    assert [json.loads(line)["action"] for line in (area / "log").read_text().splitlines()] == ["copy", "copy"]
    run = pcopy("--dry-run", "-q", area / "source", area / "copy", env=env)
    assert (run.returncode, run.stdout, run.stderr) == (0, b"", b""), show(run)
    run = pcopy("--resume", "--dry-run", env=env)
    assert run.returncode == 2 and b"--dry-run cannot be given with --resume" in run.stderr, show(run)
