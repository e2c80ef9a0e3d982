"""Existing files in the target: ``--existing`` and ``-u``; no copy ever writes through a link."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.support.command import Argument, pcopy, runs_in_c, show, succeed, summary
from tests.support.files import NOW, age_directories, write
from tests.support.held import held
from tests.support.oracle import changes, differences, snapshot

SECOND = 10**9


@pytest.fixture
def trees(area: Path) -> tuple[Path, Path]:
    """A source and a destination that both have ``file``; only the source has ``new``."""
    source, copy = area / "source", area / "copy"
    write(source / "file", b"from the source")
    write(source / "new", b"new")
    write(copy / "file", b"was there, and is longer than what replaces it", NOW - 100 * SECOND)
    write(copy / "extra", b"extra")
    return source, copy


@pytest.mark.parametrize("options", [[], ["--existing", "replace"]])
def test_existing_replace_replaces_files(trees: tuple[Path, Path], options: list[str]) -> None:
    """``replace`` is the default. Nothing of a longer old file remains at the end of the new one."""
    source, copy = trees
    reported = summary(succeed("--json", *options, f"{source}/", copy))
    (copy / "extra").unlink()
    os.utime(copy, ns=(0, source.stat().st_mtime_ns))
    assert differences(source, copy) == []
    assert (reported["files"], reported["skipped"]) == (2, 0)


def test_existing_large_files_are_replaced(area: Path) -> None:
    for name, size in {"source": 40 << 20, "copy": 50 << 20}.items():
        write(area / name / "file", os.urandom(size))
    succeed(f"{area}/source/", area / "copy", "--chunk-size", "16M", ranks=2)
    assert differences(area / "source", area / "copy") == []


def test_existing_skip_leaves_files_unchanged(trees: tuple[Path, Path]) -> None:
    source, copy = trees
    before = snapshot(copy)[b"file"]
    reported = summary(succeed("--json", "--existing", "skip", f"{source}/", copy))
    assert snapshot(copy)[b"file"] == before
    assert (reported["files"], reported["skipped"], reported["directories"]) == (1, 1, 1)
    assert (copy / "new").read_bytes() == b"new"


def test_existing_fail_counts_files_as_failed(trees: tuple[Path, Path]) -> None:
    source, copy = trees
    before = snapshot(copy)[b"file"]
    run = pcopy("--json", "--existing", "fail", f"{source}/", copy)
    assert run.returncode == 1, show(run)
    reported = summary(run)
    assert snapshot(copy)[b"file"] == before
    assert (reported["files"], reported["failed"]) == (1, 1)
    assert b"file" in run.stderr, show(run)


CHANGED = {
    # Difference: (content in the target, its time minus that of the source, copied?). The source has 4 bytes.
    "nothing": (b"xxxx", 0, False),
    "size": (b"xxxxx", 0, True),
    "newer there": (b"xxxx", 5 * SECOND, True),
    "older there": (b"xxxx", -5 * SECOND, True),
    "less than a second": (b"xxxx", SECOND // 2, True),
    "a nanosecond": (b"xxxx", 1, True),
    "a whole second": (b"xxxx", SECOND, True),
}


@pytest.mark.parametrize("case", CHANGED)
def test_existing_changed_copies_files_of_different_size_or_time(area: Path, case: str) -> None:
    """``test_equal_times`` tests which times count as equal."""
    content, later, copied = CHANGED[case]
    write(area / "source/file", b"data")
    write(area / "copy/file", content, NOW + later)
    reported = summary(succeed("--json", "--existing", "changed", f"{area}/source/", area / "copy"))
    assert (area / "copy/file").read_bytes() == (b"data" if copied else content)
    assert (reported["files"], reported["skipped"]) == ((1, 0) if copied else (0, 1))


NEWER = {
    # (time in the target minus that of the source, copied?)
    "older there": (-5 * SECOND, True),
    "a second older there": (-SECOND, True),
    "same": (0, True),  # another size, as with rsync
    "newer there": (5 * SECOND, False),
    "newer there within the second": (SECOND // 2, False),
}


@pytest.mark.parametrize("option", [["-u"], ["--existing", "newer"]], ids=["-u", "newer"])
@pytest.mark.parametrize("case", NEWER)
def test_existing_newer_skips_files_that_are_newer_in_the_target(area: Path, case: str, option: list[str]) -> None:
    later, copied = NEWER[case]
    write(area / "source/file", b"data")
    write(area / "copy/file", b"another size", NOW + later)
    reported = summary(succeed("--json", *option, f"{area}/source/", area / "copy"))
    assert (area / "copy/file").read_bytes() == (b"data" if copied else b"another size")
    assert (reported["files"], reported["skipped"]) == ((1, 0) if copied else (0, 1))


def test_existing_newer_treats_a_truncated_time_as_equal(area: Path) -> None:
    write(area / "source/file", b"data", NOW + SECOND // 2)
    write(area / "copy/file", b"copy")
    age_directories(area / "copy")
    reported = summary(succeed("--json", "-u", f"{area}/source/", area / "copy"))
    assert (reported["files"], reported["directories"], reported["skipped"]) == (0, 1, 1)
    write(area / "copy/file", b"of another size")
    reported = summary(succeed("--json", "-u", f"{area}/source/", area / "copy"))
    assert (reported["files"], reported["directories"], reported["skipped"]) == (1, 0, 1)


@pytest.mark.parametrize("option", ["changed", "newer", "skip"])
def test_a_second_run_copies_nothing(area: Path, option: str) -> None:
    for number in range(50):
        write(area / f"source/{number % 5}/{number}", b"x" * number, NOW + number)
    succeed(area / "source", area / "copy", ranks=2)
    reported = summary(succeed("--json", "--existing", option, f"{area}/source/", area / "copy", ranks=2))
    assert (reported["files"], reported["skipped"], reported["directories"]) == (0, 56, 0)
    assert differences(area / "source", area / "copy") == []


def test_directories_that_differ_only_in_access_time_are_not_modified(area: Path) -> None:
    """Somebody has listed the directories of the source, so that their access times differ."""
    if not runs_in_c():
        pytest.skip("only the C backend leaves them unchanged")
    for number in range(3):
        write(area / f"source/{number}/file", b"content")
    succeed("-T", area / "source", area / "copy")
    for directory in (area / "source").iterdir():
        os.utime(directory, ns=(NOW, directory.stat().st_mtime_ns))
    before = {path: path.stat().st_ctime_ns for path in (area / "copy").rglob("*")}
    options: list[Argument] = ["--json", "--checkpoint", "none", "--existing", "changed", "-T"]
    reported = summary(succeed(*options, area / "source", area / "copy"))
    assert (reported["files"], reported["skipped"], reported["directories"]) == (0, 7, 0)
    assert {path: path.stat().st_ctime_ns for path in (area / "copy").rglob("*")} == before


@pytest.mark.parametrize("size", [10, 40 << 20], ids=["small", "large"])
def test_hard_linked_targets_are_replaced(area: Path, size: int) -> None:
    write(area / "source/file", b"n" * size)
    write(area / "copy/file", b"old")
    os.link(area / "copy/file", area / "elsewhere")
    before = snapshot(area / "elsewhere")[b""]
    succeed(f"{area}/source/", area / "copy", ranks=2)
    after = snapshot(area / "elsewhere")[b""]
    assert differences(area / "source", area / "copy") == []
    assert after.content == before.content
    assert (after.mode, after.mtime, after.links) == (before.mode, before.mtime, 1)


@pytest.mark.parametrize("size", [10, 40 << 20], ids=["small", "large"])
def test_symlinked_targets_are_replaced(area: Path, size: int) -> None:
    write(area / "source/file", b"n" * size)
    write(area / "elsewhere", b"old")
    (area / "copy").mkdir()
    (area / "copy/file").symlink_to(area / "elsewhere")
    before = snapshot(area / "elsewhere")
    succeed(f"{area}/source/", area / "copy", ranks=2)
    assert differences(area / "source", area / "copy") == []
    assert changes(before, snapshot(area / "elsewhere")) == []


def test_fifo_as_target_is_replaced(area: Path) -> None:
    """Opening the FIFO for writing would block forever."""
    write(area / "source/file", b"new")
    (area / "copy").mkdir()
    os.mkfifo(area / "copy/file")
    succeed(f"{area}/source/", area / "copy", timeout=60)
    assert differences(area / "source", area / "copy") == []


def test_target_hard_linked_to_its_source_keeps_the_content(area: Path) -> None:
    """``cp -al`` creates such targets; opening the target for writing would truncate the source."""
    write(area / "source/file", b"precious")
    (area / "copy").mkdir()
    os.link(area / "source/file", area / "copy/file")
    pcopy(f"{area}/source/", area / "copy")
    assert (area / "source/file").read_bytes() == b"precious"
    assert (area / "copy/file").read_bytes() == b"precious"


def test_hard_link_groups_replace_existing_files(area: Path) -> None:
    """Existing files that were separate, or linked in another way, are linked as in the source."""
    write(area / "source/a", b"new")
    os.link(area / "source/a", area / "source/b")
    write(area / "source/c", b"alone")
    write(area / "copy/b", b"old")
    os.link(area / "copy/b", area / "copy/c")
    succeed(f"{area}/source/", area / "copy", ranks=3)
    assert differences(area / "source", area / "copy") == []


def test_read_only_targets_are_replaced(area: Path) -> None:
    write(area / "source/file", b"new")
    write(area / "copy/file", b"old")
    (area / "copy/file").chmod(0o400)
    (area / "source/file").chmod(0o444)
    succeed(f"{area}/source/", area / "copy")
    assert differences(area / "source", area / "copy") == []


@pytest.mark.parametrize("ranks", [1, 3])
def test_copying_twice_is_the_same_as_once(area: Path, ranks: int) -> None:
    for number in range(30):
        write(area / f"source/{number % 3}/{number}", b"x" * number)
    os.link(area / "source/0/0", area / "source/linked")
    (area / "source/link").symlink_to("nowhere")
    os.mkfifo(area / "source/fifo")
    for _ in range(2):
        succeed(f"{area}/source/", area / "copy", ranks=ranks)
        assert differences(area / "source", area / "copy") == []


def test_unknown_policy_is_refused(area: Path) -> None:
    write(area / "source", b"x")
    run = pcopy("--existing", "sometimes", area / "source", area / "copy")
    assert run.returncode == 2, show(run)
    assert b"sometimes" in run.stderr, show(run)
    assert not (area / "copy").exists()


@pytest.mark.parametrize("size", [1000, 7 << 20])
@pytest.mark.parametrize("policy", ["skip", "newer"])
def test_no_hard_link_is_made_to_a_skipped_file_that_was_not_compared(area: Path, policy: str, size: int) -> None:
    """The skipped file looks like the copy of the first name, but has another content."""
    for tree, leads_to in (("source", "one"), ("copy", "two")):
        (area / tree).mkdir()
        (area / tree / "link").symlink_to(leads_to)
        os.utime(area / tree / "link", ns=(0, 10**18), follow_symlinks=False)
    os.link(area / "source/link", area / "source/link, too", follow_symlinks=False)
    write(area / "source/a", b"n" * size)
    write(area / "copy/a", b"o" * size)
    for name in ("b", "c"):
        os.link(area / "source/a", area / "source" / name)
    words: list[Argument] = [
        "--json",
        "--verify",
        "--existing",
        policy,
        "--chunk-size",
        "1M",
        f"{area}/source/",
        area / "copy",
    ]
    reported = summary(succeed(*words, ranks=3))
    assert (area / "copy/a").read_bytes() == b"o" * size
    for name in ("b", "c"):
        assert (area / "copy" / name).read_bytes() == b"n" * size
    assert (area / "copy/b").samefile(area / "copy/c")
    assert os.readlink(area / "copy/link, too") == "one"
    is_replaced = policy == "newer"  # the times are equal, and the link text differs
    assert os.readlink(area / "copy/link") == ("one" if is_replaced else "two")
    linked, skipped = (2, 1) if is_replaced else (1, 2)
    assert (reported["files"], reported["hardlinks"], reported["skipped"], reported["symlinks"]) == (
        1,
        linked,
        skipped,
        1,
    )
    # The copied files are verified: if their contents are lost meanwhile, the job must not succeed.
    (area / "copy/b").unlink()
    (area / "copy/c").unlink()
    with held(area / "trace", *words, ranks=2, calls=("fadvise64",)) as run:  # in VERIFY, after all links were created
        (area / "copy/b").write_bytes(b"m" * size)
        ended = run.go_on()
    assert (ended.returncode, summary(ended)["failed"]) == (1, 2), show(ended)
